"""Registries: where tasks, estimators, architectures, algorithms and probes are looked up by name.

A registry knows which packages hold the built-in instances and imports them on the first look-up,
so adding a file to such a package is enough to add an instance. Then it loads what
installed packages announce for it (see `providers`). Nothing heavy is imported here: the command
line lists names from `catalogue`, which imports neither.
"""

import difflib
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from mtdinterp import providers
from mtdinterp.providers import Provider

Item = TypeVar("Item")


class Registry(Mapping[str, Item], Generic[Item]):
    """Named instances of one kind, in a stable order."""

    def __init__(
        self,
        kind: str,
        packages: tuple[str, ...],
        sort_key: Callable[[Item], Any] | None = None,
        plugin_kinds: tuple[str, ...] = (),
    ) -> None:
        """
        Args:
            kind: what the registry holds, for error messages ("estimator").
            packages: packages whose modules register the built-in instances when imported.
            sort_key: the order of iteration; registration order if None.
            plugin_kinds: kinds of installed plugins that may register instances here.
        """
        self.kind = kind
        self._packages = packages
        self._sort_key = sort_key
        self._plugin_kinds = plugin_kinds
        self._items: dict[str, Item] = {}
        self._providers: dict[str, Provider] = {}
        self._built_ins_loaded = False
        self._plugins_loaded = False

    def add(self, name: str, item: Item) -> Item:
        """Register `item` under `name`; a name that is taken is refused."""
        is_built_in = providers.is_own(_definition(item)[0])
        if not is_built_in:
            # Built-ins come first, so that a plugin which takes a built-in name is the one refused.
            self._load_built_ins()
        known = self._items.get(name)
        if known is not None and not _same_definition(known, item):
            raise ValueError(
                f"{self.kind}: the name {name!r} is taken by {self._owner(name)}; choose another"
            )
        self._items[name] = item
        provider = providers.current()
        # A plugin may be the first to import a module of ours, which then registers built-ins.
        if provider is not None and not is_built_in:
            self._providers[name] = provider
        return item

    def remove(self, name: str) -> None:
        """Remove an instance; used by tests and when plugins are reloaded."""
        del self._items[name]
        self._providers.pop(name, None)

    def _owner(self, name: str) -> str:
        """Who registered a name, in a few words."""
        module, definition = _definition(self._items[name])
        if providers.is_own(module):
            return f"a built-in {self.kind}"
        return str(self._providers.get(name) or f"{module}.{definition}")

    def registered_by(self, provider: Provider) -> list[str]:
        """The names that a plugin registered here."""
        return [name for name, known in self._providers.items() if known == provider]

    def provider(self, name: str) -> Provider | None:
        """The plugin that registered an instance; None if it is built in or registered by hand."""
        return self._providers.get(name)

    def __getitem__(self, name: str) -> Item:
        """The instance called `name`; an unknown name is an error that lists the known ones."""
        self._load()
        if name not in self._items:
            known = list(self)
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownName(
                f"{self.kind}: expected one of {', '.join(known)}; got {name!r:.80}{hint}"
            )
        return self._items[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        self._load()
        if self._sort_key is None:
            return iter(list(self._items))
        key = self._sort_key
        return iter(sorted(self._items, key=lambda name: key(self._items[name])))

    def __len__(self) -> int:
        self._load()
        return len(self._items)

    def _load(self) -> None:
        """Import the built-in instances and then the installed plugins, once."""
        with providers.LOADING:
            self._load_built_ins()
            if self._plugins_loaded:
                return
            self._plugins_loaded = True
            for kind in self._plugin_kinds:
                providers.load_installed(kind, BY_KIND[kind].holds)

    def _load_built_ins(self) -> None:
        """Import the built-in instances, once; a failed import is tried again next time."""
        with providers.LOADING:
            if self._built_ins_loaded:
                return
            self._built_ins_loaded = True
            try:
                for package in self._packages:
                    for module in module_names(package):
                        importlib.import_module(module)
            except BaseException:
                self._built_ins_loaded = False
                raise

    def holds(self, name: str) -> bool:
        """Whether a name is registered already, without loading anything."""
        return name in self._items


class UnknownName(ValueError, KeyError):
    """A name that is not registered; the message lists those that are."""

    def __str__(self) -> str:
        return str(self.args[0])


def module_names(package: str) -> list[str]:
    """The modules directly inside a package, found without importing them."""
    folder = str(package_folder(package))
    return [f"{package}.{entry.name}" for entry in pkgutil.iter_modules([folder])]


def package_folder(package: str) -> Path:
    """The folder of a package, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"package: {package!r} is not a package")
    return Path(spec.submodule_search_locations[0])


def _same_definition(known: Any, item: Any) -> bool:
    """Whether an instance is registered again by the same code, as when a module is reloaded."""
    return _definition(known) == _definition(item)


def _definition(item: Any) -> tuple[str, str]:
    """Where an instance is defined: the module and name of its function or class."""
    # A probe is its function; all probes have the same class.
    source = getattr(item, "function", item)
    # A function or a class has a name of its own; any other object is known by its class.
    if not hasattr(source, "__qualname__"):
        source = type(source)
    # Code that runs without a module, as in some notebooks, has no module name.
    return source.__module__ or "", source.__qualname__


TASKS: Registry[Any] = Registry("task", ("mtdinterp.tasks",), plugin_kinds=("task",))
ESTIMATORS: Registry[Any] = Registry(
    "estimator",
    ("mtdinterp.estimators", "mtdinterp.algorithms"),
    sort_key=lambda estimator: (estimator.rank, estimator.name),
    plugin_kinds=("estimator", "algorithm"),
)
ARCHITECTURES: Registry[Any] = Registry(
    "architecture",
    ("mtdinterp.architectures",),
    sort_key=lambda architecture: architecture.name,
    plugin_kinds=("architecture",),
)
ALGORITHMS: Registry[Any] = Registry(
    "algorithm",
    ("mtdinterp.algorithms",),
    sort_key=lambda algorithm: algorithm.rank,
    plugin_kinds=("algorithm",),
)
IMPLEMENTATIONS: Registry[Any] = Registry(
    "implementation",
    ("mtdinterp.construction",),
    # An implementation comes with the algorithm or the architecture that it is for.
    plugin_kinds=("algorithm", "architecture"),
)
PROBES: Registry[Any] = Registry(
    "probe", ("probes",), sort_key=lambda probe: probe.rank, plugin_kinds=("probe",)
)

BY_KIND: dict[str, Registry[Any]] = {
    "task": TASKS,
    "estimator": ESTIMATORS,
    "architecture": ARCHITECTURES,
    "algorithm": ALGORITHMS,
    "probe": PROBES,
}
"""The registry that an installed plugin of each kind must have registered its name in."""

REGISTRIES = (*BY_KIND.values(), IMPLEMENTATIONS)
