"""Imports point one way: reading them from the source, none may point back."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = (
    (
        "mtdinterp.bounded_files",
        "mtdinterp.catalogue",
        "mtdinterp.checkpoint_files",
        "mtdinterp.checks",
        "mtdinterp.criteria",
        "mtdinterp.errors",
        "mtdinterp.formatting",
        "mtdinterp.history_lines",
        "mtdinterp.matrix_files",
        "mtdinterp.plugins",
        "mtdinterp.processor",
        "mtdinterp.providers",
        "mtdinterp.registry",
        "mtdinterp.storage",
        "mtdinterp.style",
    ),
    ("mtdinterp.claims", "mtdinterp.naming", "mtdinterp.plotting"),
    ("mtdinterp.pages",),
    ("mtdinterp.results",),
    ("mtdinterp.native",),
    ("mtdinterp.metrics",),
    ("mtdinterp.evidence",),
    ("mtdinterp.tasks",),
    ("mtdinterp.estimators",),
    ("mtdinterp.theory",),
    ("mtdinterp.algorithms",),
    ("mtdinterp.models",),
    ("mtdinterp.architectures",),
    ("mtdinterp.readings",),
    ("mtdinterp.construction",),
    ("mtdinterp.explanation",),
    ("mtdinterp.decompile",),
    ("mtdinterp.checkpoints",),
    ("mtdinterp.training",),
    ("mtdinterp.interventions",),
    ("mtdinterp.figures",),
    ("probes",),
    ("mtdinterp.report", "mtdinterp.reproduce", "mtdinterp.app"),
    ("mtdinterp.notebook",),
    ("mtdinterp.bench", "mtdinterp.commands", "mtdinterp.sweep"),
    ("mtdinterp.cli", "mtdinterp.__main__"),
)
"""From the ground up: a module may import from its own layer's packages and from the layers before
it."""

BY_NAME = {
    ("mtdinterp.estimators", "mtdinterp.algorithms"),
    ("mtdinterp.models", "mtdinterp.architectures"),
}
"""Packages that name a package above them only in imports for type checkers and on first use."""


def layer_of(module: str) -> int | None:
    for level, names in enumerate(LAYERS):
        if any(module == name or module.startswith(name + ".") for name in names):
            return level
    return None


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted([*(ROOT / "mtdinterp").rglob("*.py"), *(ROOT / "probes").rglob("*.py")]):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found.append((name.removesuffix(".__init__"), path))
    return found


def imports_of(path: Path) -> set[str]:
    """Every module named in an import statement, and the modules that `from package import module`
    names."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] in ("mtdinterp", "probes")}


@pytest.mark.parametrize(("module", "path"), [pair for pair in modules() if pair[0] != "mtdinterp"])
def test_no_import_points_back(module, path):
    level = layer_of(module)
    assert level is not None, f"{module} has no place in the architecture"
    for imported in imports_of(path):
        if any(module == low and imported.startswith(high) for low, high in BY_NAME):
            continue
        target = layer_of(imported)
        assert target is None or target <= level, (
            f"{module} imports {imported}, which stands above it"
        )


def test_no_probe_imports_another():
    for module, path in modules():
        if module.startswith("probes."):
            assert not {
                name for name in imports_of(path) if name.startswith("probes.") and name != module
            }
