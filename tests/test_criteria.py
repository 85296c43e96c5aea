"""Criteria: every threshold stands once, with its reason."""

import ast
from pathlib import Path

from mtdinterp import criteria

ROOT = Path(__file__).parent.parent
TREE = ast.parse(Path(criteria.__file__).read_text())


def thresholds() -> dict[str, int]:
    """The constants of the module, with their place among its statements."""
    found = {}
    for place, statement in enumerate(TREE.body):
        if isinstance(statement, ast.Assign):
            (target,) = statement.targets
            assert isinstance(target, ast.Name)
            found[target.id] = place
    return found


def test_every_threshold_is_a_number_with_its_reason_right_after_it():
    assert len(thresholds()) > 20
    for name, place in thresholds().items():
        value = getattr(criteria, name)
        values = value if isinstance(value, tuple) else (value,)
        assert all(isinstance(entry, float) for entry in values), name
        after = TREE.body[place + 1]
        assert isinstance(after, ast.Expr), name
        reason = ast.literal_eval(after.value)
        assert isinstance(reason, str), name
        assert reason.endswith("."), name


def test_no_other_module_defines_a_threshold_of_that_name():
    """Except to draw pages, which decides nothing."""
    names = set(thresholds())
    drawing = ROOT / "mtdinterp" / "pages"
    for path in [*(ROOT / "mtdinterp").rglob("*.py"), *(ROOT / "probes").rglob("*.py")]:
        if path == Path(criteria.__file__) or drawing in path.parents:
            continue
        for statement in ast.parse(path.read_text()).body:
            if isinstance(statement, ast.Assign):
                defined = {getattr(target, "id", "") for target in statement.targets}
                assert not defined & names, path


def test_every_threshold_is_used():
    used = set()
    for path in [*(ROOT / "mtdinterp").rglob("*.py"), *(ROOT / "probes").rglob("*.py")]:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "mtdinterp.criteria":
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "criteria":
                used.add(node.attr)
    assert set(thresholds()) <= used
