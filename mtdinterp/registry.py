"""Registries: where tasks, estimators, architectures, algorithms and probes are looked up by name.

A registry knows which packages hold the built-in instances and imports them on the first look-up,
so that adding a file to such a package is all it takes to add an instance. Nothing heavy is
imported here: the command line lists names from `catalogue`, which reads the source instead of
running it.
"""

import ast
import difflib
import importlib
import importlib.util
import pkgutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


class Registry(Mapping[str, Item], Generic[Item]):
    """Named instances of one kind, in a stable order."""

    def __init__(
        self,
        kind: str,
        packages: tuple[str, ...],
        sort_key: Callable[[Item], Any] | None = None,
    ) -> None:
        """
        Args:
            kind: what the registry holds, for error messages ("estimator").
            packages: packages whose modules register the built-in instances when imported.
            sort_key: the order of iteration; registration order if None.
        """
        self.kind = kind
        self._packages = packages
        self._sort_key = sort_key
        self._items: dict[str, Item] = {}
        self._loaded = False
        # Re-entrant, since a module may look up names while it is imported.
        self._loading = threading.RLock()

    def add(self, name: str, item: Item) -> Item:
        """Register `item` under `name`; a name that is taken is refused."""
        known = self._items.get(name)
        if known is not None and not _same_definition(known, item):
            raise ValueError(f"{self.kind}: {name!r} is already registered, by {known!r}")
        self._items[name] = item
        return item

    def remove(self, name: str) -> None:
        """Forget an instance, as tests and reloaded plugins need it."""
        del self._items[name]

    def __getitem__(self, name: str) -> Item:
        """The instance called `name`; an unknown name is an error that lists the known ones."""
        self._load()
        if name not in self._items:
            known = list(self)
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownName(
                f"{self.kind}: expected one of {', '.join(known)}; got {name!r}{hint}"
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
        """Import the built-in instances, once; a failed import is tried again next time."""
        with self._loading:
            if self._loaded:
                return
            self._loaded = True
            try:
                for package in self._packages:
                    for module in module_names(package):
                        importlib.import_module(module)
            except BaseException:
                self._loaded = False
                raise


class UnknownName(ValueError, KeyError):
    """A name that is not registered; the message lists those that are."""

    def __str__(self) -> str:
        return str(self.args[0])


def module_names(package: str) -> list[str]:
    """The modules directly inside a package, found without importing them."""
    return [f"{package}.{entry.name}" for entry in pkgutil.iter_modules([str(_folder(package))])]


def catalogue(package: str, decorator: str) -> dict[str, str]:
    """Name and label of everything that a package registers, read from its source.

    Two forms are recognised: a class under `@decorator` with literal `name` and `label`
    attributes, and a function under `@decorator("name", label="…")`.

    Args:
        package: the package whose modules are read, such as "probes".
        decorator: the registering decorator, such as "register_probe".

    Returns:
        Labels by name, in the order of the file names.
    """
    found: dict[str, str] = {}
    for path in sorted(_folder(package).glob("*.py")):
        source = path.read_text()
        if decorator not in source:
            continue
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found |= _registered(node, decorator)
    return found


def _registered(node: ast.ClassDef | ast.FunctionDef, decorator: str) -> dict[str, str]:
    """What one definition registers: nothing, or its name with its label."""
    for entry in node.decorator_list:
        if isinstance(entry, ast.Name) and entry.id == decorator:
            values = _class_attributes(node)
            return {values["name"]: values["label"]}
        if isinstance(entry, ast.Call) and getattr(entry.func, "id", None) == decorator:
            keywords = {keyword.arg: keyword.value for keyword in entry.keywords}
            return {ast.literal_eval(entry.args[0]): ast.literal_eval(keywords["label"])}
    return {}


def _class_attributes(node: ast.ClassDef | ast.FunctionDef) -> dict[str, Any]:
    """The class attributes that are literals, by name."""
    values: dict[str, Any] = {}
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            target: ast.expr = statement.targets[0]
            value: ast.expr | None = statement.value
        elif isinstance(statement, ast.AnnAssign):
            target, value = statement.target, statement.value
        else:
            continue
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for part, entry in zip(target.elts, value.elts, strict=True):
                if isinstance(part, ast.Name) and isinstance(entry, ast.Constant):
                    values[part.id] = entry.value
    return values


def _folder(package: str) -> Path:
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
    source = getattr(item, "function", None)
    if source is None:
        source = item if isinstance(item, type) else type(item)
    return source.__module__, source.__qualname__


TASKS: Registry[Any] = Registry("task", ("mtdinterp.tasks",))
ESTIMATORS: Registry[Any] = Registry(
    "estimator",
    ("mtdinterp.estimators", "mtdinterp.algorithms"),
    sort_key=lambda estimator: (estimator.rank, estimator.name),
)
ARCHITECTURES: Registry[Any] = Registry(
    "architecture", ("mtdinterp.architectures",), sort_key=lambda architecture: architecture.name
)
ALGORITHMS: Registry[Any] = Registry(
    "algorithm", ("mtdinterp.algorithms",), sort_key=lambda algorithm: algorithm.rank
)
IMPLEMENTATIONS: Registry[Any] = Registry("implementation", ("mtdinterp.construction",))
PROBES: Registry[Any] = Registry("probe", ("probes",), sort_key=lambda probe: probe.rank)
