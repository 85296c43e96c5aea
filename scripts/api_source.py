"""Reads the public names of the package from its source, without importing it."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Name:
    """A public name and where its definition is."""

    name: str
    module: str
    """The module that defines it."""
    node: Definition
    doc: str
    """Its docstring, or the string after an assignment; empty if it has none."""


def public_names(module: str) -> list[Name]:
    """The public names of a module: `__all__`, or else the functions and classes it defines.

    Args:
        module: the dotted name of the module.

    Returns:
        The names in alphabetical order, each with its definition.
    """
    tree = parse(module)
    names = _listed(tree)
    if names is None:
        defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        names = [node.name for node in defined if not node.name.startswith("_")]
    found = [resolve(module, name) for name in names if not name.startswith("__")]
    return sorted(found, key=lambda entry: entry.name.lower())


def resolve(module: str, name: str) -> Name:
    """Follow imports from a module to the definition of a name.

    Args:
        module: the dotted name of a module that defines or imports the name.
        name: the name.

    Returns:
        The definition.
    """
    tree = parse(module)
    definitions = _definitions(tree)
    if name in definitions:
        node, doc = definitions[name]
        return Name(name, module, node, doc)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return resolve(node.module, alias.name)
    raise LookupError(f"{module} neither defines nor imports {name}")


@cache
def parse(module: str) -> ast.Module:
    """The syntax tree of a module of this repository."""
    base = ROOT.joinpath(*module.split("."))
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _listed(tree: ast.Module) -> list[str] | None:
    """The contents of `__all__`, or None if the module has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def _definitions(tree: ast.Module | ast.ClassDef) -> dict[str, tuple[Definition, str]]:
    """What the body of a module or class defines, with documentation, in order."""
    found: dict[str, tuple[Definition, str]] = {}
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = (node, ast.get_docstring(node) or "")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                found[target.id] = (node, _string(following))
    return found


def members(node: ast.ClassDef) -> dict[str, tuple[Definition, str]]:
    """The public fields and methods that a class itself defines, with documentation."""
    found = _definitions(node)
    return {name: entry for name, entry in found.items() if not name.startswith("_")}


def _string(node: ast.stmt | None) -> str:
    """The text of a statement that is only a string; empty for any other."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""
