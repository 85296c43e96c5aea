"""The figures that can be made, in the order of the paper.

A figure is a function `(context) -> Reproduction` under `@register_figure` in any module of this
package. `FIGURES` is read from the source without importing those modules, because the command line
lists the figures in its help.
"""

import ast
import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

ALL = "all"
DECORATOR = "register_figure"

Function = TypeVar("Function", bound=Callable[..., Any])


class Source(NamedTuple):
    """Where a figure is made, and what it shows."""

    module: str
    function: str
    summary: str
    rank: float


def register_figure(name: str, *, summary: str, rank: float) -> Callable[[Function], Function]:
    """Declare that a function makes a figure; all arguments must be literals.

    Args:
        name: what the figure is called on the command line and in file names.
        summary: what it shows, in a few words.
        rank: its place in listings, the smallest first.

    Returns:
        A decorator that returns the function unchanged: `FIGURES` reads the declaration itself.
    """
    return lambda function: function


def read_figures(folder: Path) -> dict[str, Source]:
    """The figures that the modules of a folder declare, ordered by rank."""
    found: dict[str, Source] = {}
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if f"@{DECORATOR}(" in text:
            found |= _declared(path.stem, ast.parse(text))
    ordered = sorted(found.items(), key=lambda entry: entry[1].rank)
    return dict(ordered)


def _declared(module: str, tree: ast.Module) -> dict[str, Source]:
    """The figures that one module declares, by name."""
    found: dict[str, Source] = {}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == DECORATOR:
                name = ast.literal_eval(decorator.args[0])
                values = {
                    keyword.arg: ast.literal_eval(keyword.value) for keyword in decorator.keywords
                }
                found[name] = Source(module, node.name, values["summary"], values["rank"])
    return found


FIGURES: Mapping[str, Source] = read_figures(Path(__file__).parent)


def chosen(names: list[str]) -> list[str]:
    """The figures that `names` select, each once and in the order of the paper.

    Raises:
        ValueError: if a name is unknown; the message suggests the nearest one.
    """
    for name in names:
        if name not in FIGURES and name != ALL:
            raise ValueError(f"no figure is called {name!r:.80}; {_hint(name)}")
    if ALL in names:
        return list(FIGURES)
    return [name for name in FIGURES if name in names]


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name, [*FIGURES, ALL], n=1, cutoff=0.4)
    if near:
        return f"did you mean {near[0]}?"
    return f"expected one of {', '.join(FIGURES)} or {ALL}"
