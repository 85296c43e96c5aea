"""The catalogue: which tasks, architectures and probes there are, found without importing them.

Help and argument errors must be instant, so the command line does not ask the registries. Built-in
names and labels are read from the source of their packages; names of installed plugins come from
their package's metadata. A test compares both with the registries.
"""

import ast
import difflib
from collections.abc import Collection
from typing import Any

from mtdinterp import providers
from mtdinterp.registry import package_folder

SOURCES = {
    "task": ("mtdinterp.tasks", "register_task"),
    "architecture": ("mtdinterp.architectures", "register_architecture"),
    "probe": ("probes", "register_probe"),
}
"""For each kind that the command line names: the package of the built-ins, and their decorator."""


def known(kind: str) -> dict[str, str]:
    """Labels of the built-in and installed extensions of one kind, by name.

    Args:
        kind: a key of `SOURCES`.

    Returns:
        Built-ins first. The label of an installed extension is the package that provides it.
    """
    found = built_in(*SOURCES[kind])
    for plugin in providers.installed(kind):
        found.setdefault(plugin.name, f"from {plugin.provider}")
    return found


def check_known(name: str, listed: Collection[str], flag: str) -> None:
    """Refuse a name that is not among the known ones.

    Args:
        name: what was asked for.
        listed: the known names.
        flag: the flag that named it, for the error message.

    Raises:
        ValueError: with the known names and the nearest of them.
    """
    if name in listed:
        return
    near = difflib.get_close_matches(name, listed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{flag}: expected one of {', '.join(listed)}; got {name[:80]!r}{hint}")


def built_in(package: str, decorator: str) -> dict[str, str]:
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
    for path in sorted(package_folder(package).glob("*.py")):
        source = path.read_text(encoding="utf-8")
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
            return {values["name"]: values.get("label", values["name"])}
        if isinstance(entry, ast.Call) and getattr(entry.func, "id", None) == decorator:
            keywords = {keyword.arg: keyword.value for keyword in entry.keywords}
            name = ast.literal_eval(entry.args[0])
            label = keywords.get("label")
            return {name: str(label.value) if isinstance(label, ast.Constant) else name}
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
