"""The catalogue: what installed packages announce, read from metadata that anything can be in.

The metadata may name the canary module. Listing must never import it; only a look-up in a registry
loads installed plugins, and then without the canary.
"""

import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

from fuzzing import canaries
from fuzzing.drivers.commands import CommandRefused, run_command
from fuzzing.materials import Materials
from mtdinterp import catalogue, providers, registry

REFUSALS = (CommandRefused,)


def prepare(materials: Materials) -> None:
    """Load the built-in extensions."""
    for found in registry.REGISTRIES:
        len(found)


def build(reader: str, case: Any, directory: Path, materials: Materials) -> None:
    """Install packages that consist of metadata only, from now on found on the import path."""
    for index, package in enumerate(case["packages"]):
        folder = directory / "site" / f"package{index}-{index}.dist-info"
        folder.mkdir(parents=True)
        for name in ("METADATA", "entry_points.txt"):
            content = package.get(name)
            if content is not None:
                if case.get("through") == "load":
                    # Loading imports what packages announce, so they must not announce the canary.
                    content = content.replace(canaries.MODULE, "nothing")
                (folder / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    sys.path.append(str(directory / "site"))
    importlib.invalidate_caches()
    providers.installed.cache_clear()


def read(reader: str, case: Any, directory: Path, materials: Materials) -> str:
    """List the extensions, or also load them."""
    through = case.get("through", "list")
    if through == "help":
        return run_command([case.get("command", "train"), "--help"], warns=True)
    if through == "name":
        # Known names are refused as well, for the place of their output: nothing is trained here.
        words = ["train", "--task", case.get("name", "other"), "--out", "/dev/null/out"]
        return run_command(words, warns=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if through == "load":
            for kind, found in registry.BY_KIND.items():
                providers.load_installed(kind, found.holds)
        else:
            for kind in catalogue.SOURCES:
                catalogue.known(kind)
    _check_warnings(caught)
    return f"{len(caught)} warnings"


def _check_warnings(caught: list[warnings.WarningMessage]) -> None:
    for warning in caught:
        sentence = str(warning.message)
        if not issubclass(warning.category, providers.PluginWarning):
            raise AssertionError(f"unexpected {warning.category.__name__}: {sentence[:200]}")
        if not sentence.isprintable() or len(sentence) > 800:
            raise AssertionError(f"not one printable sentence: {sentence[:300]!r}")
