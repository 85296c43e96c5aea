"""Providers: the installed packages and files that extend mtdinterp, and how they are loaded.

An installed package announces its extensions as entry points, which can be listed without importing
it. A file is given with `--plugin` or `load_plugin`. Code is loaded because a user installed or
named it, never because a checkpoint, a grid or a link mentions a name.

Nothing heavy is imported here: the command line lists what is installed before it imports torch.
"""

import hashlib
import importlib.metadata
import os
import re
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from mtdinterp.bounded_files import UnreadableFile, read_bounded
from mtdinterp.errors import CannotCompute, PluginFailed
from mtdinterp.formatting import printable

GROUPS = {
    "task": "mtdinterp.tasks",
    "estimator": "mtdinterp.estimators",
    "architecture": "mtdinterp.architectures",
    "algorithm": "mtdinterp.algorithms",
    "probe": "mtdinterp.probes",
}
"""The entry-point group of every kind of extension."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
"""What an extension may be called: names become file names, JSON keys and words on the command
line."""
LARGEST_FILE = 2**20
"""The largest plugin file in bytes; a larger one is unlikely to be source code written by hand."""
LONGEST_WARNING = 600
"""Characters of a warning, which quotes what a package says about itself."""
OWN_PACKAGES = ("mtdinterp", "probes")
"""Where the built-in extensions are defined."""
LIBRARIES = {"mtdinterp", "torch", "numpy", "importlib", "<frozen importlib._bootstrap>"}
"""Folders to skip when locating the error in a plugin."""


class PluginWarning(UserWarning):
    """An installed plugin that was skipped, with the reason in one sentence."""


class PluginError(ValueError):
    """A plugin file that cannot be loaded, with the reason in one sentence."""


@dataclass(frozen=True)
class Provider:
    """An installed package, or a file, that registers extensions."""

    name: str
    """The distribution's name, or the file's name without its folder."""
    version: str = ""
    """The distribution's version; empty for a file."""
    sha256: str = ""
    """The checksum of a file; empty for a distribution."""

    def __str__(self) -> str:
        if self.sha256:
            return f"the plugin file {self.name}"
        return f"{self.name} {self.version}".strip()

    def to_dict(self) -> dict[str, str]:
        """The fields that have a value, as a checkpoint records them."""
        return {name: value for name, value in asdict(self).items() if value}


@dataclass(frozen=True)
class Installed:
    """One extension that an installed package announces."""

    kind: str
    name: str
    provider: Provider
    entry: importlib.metadata.EntryPoint


_providing: ContextVar[Provider | None] = ContextVar("providing", default=None)
_attempted: set[tuple[str, str]] = set()
_files: dict[str, Provider] = {}

LOADING = threading.RLock()
"""Held while built-in modules or plugins are imported. One lock for all registries, because a
plugin of one kind may look up another kind while it is imported."""


def current() -> Provider | None:
    """The provider whose code is being loaded; None outside of loading."""
    return _providing.get()


@cache
def installed(kind: str) -> tuple[Installed, ...]:
    """The extensions of one kind that installed packages announce, without importing them.

    Args:
        kind: a key of `GROUPS`.

    Returns:
        The extensions by name. A warning names those that are skipped: the second of two with the
        same name, and names that cannot be registered.
    """
    found: dict[str, Installed] = {}
    for entry in _announced(GROUPS[kind]):
        provider = _provider_of(entry)
        known = found.get(entry.name)
        if not NAME.fullmatch(entry.name):
            _warn(
                f"{provider} announces the {kind} {entry.name!r:.90}, which is skipped: expected "
                "letters, digits, hyphens, dots and underscores"
            )
        elif known is None:
            found[entry.name] = Installed(kind, entry.name, provider, entry)
        elif known.entry.value != entry.value:
            _warn(
                f"{known.provider} and {provider} both announce the {kind} {entry.name!r}; that of "
                f"{provider} is skipped"
            )
    return tuple(found[name] for name in sorted(found))


def _announced(group: str) -> list[importlib.metadata.EntryPoint]:
    """The entry points of a group, without those of packages whose metadata cannot be read."""
    try:
        return list(importlib.metadata.entry_points(group=group))
    # Python parses the metadata of all packages at once, and raises whatever comes up.
    except Exception:
        return _announced_one_by_one(group)


def _announced_one_by_one(group: str) -> list[importlib.metadata.EntryPoint]:
    """The same, package by package; a warning names those that are skipped."""
    found: list[importlib.metadata.EntryPoint] = []
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        # Only the files' place is certain to be readable.
        name = Path(str(getattr(distribution, "_path", "an unknown package"))).name
        try:
            entries = [entry for entry in distribution.entry_points if entry.group == group]
            name = distribution.name or name
        except Exception:
            _warn(f"the metadata of {name} are damaged, so its plugins are skipped")
            continue
        if name not in seen:
            seen.add(name)
            found += entries
    return found


def load_installed(kind: str, is_registered: Callable[[str], bool]) -> None:
    """Load the installed plugins of one kind, once per process.

    A plugin that cannot be loaded, or that does not register what it announces, is named in a
    warning and skipped.

    Args:
        kind: a key of `GROUPS`.
        is_registered: whether an extension of this kind is registered under a name.
    """
    for plugin in installed(kind):
        if (kind, plugin.name) in _attempted:
            continue
        _attempted.add((kind, plugin.name))
        subject = f"the {kind} {plugin.name!r} of {plugin.provider}"
        try:
            with _provided_by(plugin.provider):
                plugin.entry.load()
        # A foreign module may fail in any way, and must not crash mtdinterp.
        except (Exception, SystemExit) as error:
            _warn(f"{subject} could not be loaded and is skipped ({_failure(error)})")
            continue
        if not is_registered(plugin.name):
            _warn(f"{subject} is skipped: loading it registered no {kind} of that name")


def load_plugin(path: str | os.PathLike) -> Provider:
    """Run a Python file that registers extensions, as `--plugin` does.

    A file is run once per process, and again if it has changed.

    Args:
        path: the file; it may import whatever is installed.

    Returns:
        The file as a provider.

    Raises:
        PluginError: if the file cannot be read, or fails.
    """
    file = Path(path).absolute()
    source = read_plugin(file)
    provider = Provider(file.name, sha256=hashlib.sha256(source).hexdigest())
    # The name depends on the path, so that a file which was edited replaces what it registered.
    name = f"_mtdinterp_plugin_{hashlib.sha256(os.fsencode(file)).hexdigest()[:12]}"
    with LOADING:
        if _files.get(name) == provider:
            return provider
        module = types.ModuleType(name)
        module.__file__ = str(file)
        # Dataclasses look up the module that defines them.
        sys.modules[name] = module
        try:
            with _provided_by(provider):
                exec(compile(source, str(file), "exec"), module.__dict__)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise PluginError(f"{path}: this plugin failed to load ({_failure(error)})") from error
        _files[name] = provider
    return provider


def read_plugin(file: Path) -> bytes:
    """The contents of a plugin file, without running it.

    Args:
        file: a regular file whose name ends in .py.

    Returns:
        Its bytes.

    Raises:
        PluginError: if there is no such file, or it is not one that can be run.
    """
    if file.suffix != ".py":
        raise PluginError(f"{file}: expected a Python file (.py)")
    try:
        return read_bounded(file, LARGEST_FILE)
    except UnreadableFile as error:
        raise PluginError(f"{file}: {error}") from None


def loaded_files() -> tuple[Provider, ...]:
    """The plugin files that were loaded in this process, in order."""
    return tuple(_files.values())


@contextmanager
def failures_named(kind: str, name: str, provider: Provider | None) -> Iterator[None]:
    """Turn any failure of a plugin's code into a `PluginFailed` that names it.

    Failures of built-in code, and of code that was registered by hand in this process, pass
    unchanged: the author needs their traceback.

    Args:
        kind: of the extension that runs, such as "probe".
        name: of the extension.
        provider: who registered it; None for built-in and hand-registered extensions.
    """
    try:
        yield
    except CannotCompute:
        raise
    except Exception as error:
        if provider is None:
            raise
        raise PluginFailed(
            f"the {kind} {name!r} of {provider} failed: {_failure(error)}"
        ) from error


def is_own(module: str) -> bool:
    """Whether a module belongs to mtdinterp itself."""
    return module.split(".")[0] in OWN_PACKAGES


@contextmanager
def _provided_by(provider: Provider) -> Iterator[None]:
    token = _providing.set(provider)
    try:
        yield
    finally:
        _providing.reset(token)


def _provider_of(entry: importlib.metadata.EntryPoint) -> Provider:
    if entry.dist is None:
        return Provider("an unknown package")
    # Both are None if the package's metadata are damaged.
    return Provider(entry.dist.name or "an unknown package", entry.dist.version or "")


def _failure(error: BaseException) -> str:
    """An error in one line, with the place outside mtdinterp where it happened."""
    text = " ".join(str(error).split()) or "no message"
    words = f"{type(error).__name__}: {text}"[:300]
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if not LIBRARIES & set(Path(frame.filename).parts)]
    if not foreign:
        return words
    place = foreign[-1]
    return f"{words}; {Path(place.filename).name}, line {place.lineno}"


def _warn(sentence: str) -> None:
    shown = sentence if len(sentence) <= LONGEST_WARNING else sentence[:LONGEST_WARNING] + "…"
    warnings.warn(printable(shown), PluginWarning, stacklevel=3)
