"""The packages that have a name on the command line: their files and the tests of them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Group:
    """Files to mutate and the tests that should notice."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    only_used_by: tuple[str, ...] = ()
    """Tests that import a source but are about something else, such as a page."""


GROUPS = {
    "estimators": Group(
        sources=("mtdinterp/estimators", "mtdinterp/evidence.py"),
        tests=(
            "tests/estimators",
            "tests/tasks",
            "tests/test_checks.py",
            "tests/test_errors.py",
            "tests/test_evidence.py",
            "tests/test_theory.py",
            "tests/construction",
            "tests/plugins/test_plugin_files.py",
            "tests/readings",
            "tests/test_explanation.py",
            "tests/test_registry.py",
        ),
        only_used_by=(
            "tests/app",
            "tests/interventions",
            "tests/models",
            "tests/report",
            "tests/reproduce",
            "tests/sweep",
            "tests/training",
        ),
    ),
    "attention": Group(
        sources=(
            "mtdinterp/models/attention.py",
            "mtdinterp/native/attention.py",
            "mtdinterp/architectures",
        ),
        tests=(
            "tests/architectures",
            "tests/construction",
            "tests/models",
            "tests/native/test_fused_attention.py",
            "tests/native/test_fused_step.py",
            "tests/training/test_growth.py",
            "tests/training/test_training.py",
        ),
        only_used_by=("tests/interventions", "tests/probes", "tests/test_cli.py"),
    ),
    "interventions": Group(
        sources=("mtdinterp/interventions",),
        tests=("tests/interventions", "tests/probes/test_heads.py"),
        only_used_by=("tests/app", "tests/architectures"),
    ),
    "checkpoints": Group(
        sources=(
            "mtdinterp/checkpoints",
            "mtdinterp/checkpoint_files.py",
            "mtdinterp/bounded_files.py",
            "mtdinterp/history_lines.py",
            "mtdinterp/storage",
            "mtdinterp/training/run.py",
            "mtdinterp/training/state.py",
        ),
        tests=(
            "tests/checkpoints",
            "tests/faults",
            "tests/plugins",
            "tests/sweep/test_attempts.py",
            "tests/test_checkpoints.py",
            "tests/test_history_lines.py",
            "tests/test_storage.py",
            "tests/training",
        ),
        only_used_by=(
            "tests/interventions",
            "tests/probes",
            "tests/reproduce",
            "tests/sweep",
            "tests/test_cli.py",
            "tests/test_result_pages.py",
            "tests/test_zoo.py",
        ),
    ),
    "security": Group(
        sources=(
            "mtdinterp/app/json_fields.py",
            "mtdinterp/app/listen.py",
            "mtdinterp/app/security.py",
            "mtdinterp/app/server.py",
            "mtdinterp/app/state.py",
            "mtdinterp/app/static_files.py",
        ),
        tests=("tests/app",),
        only_used_by=("tests/plugins",),
    ),
}


def group_of(root: Path, name: str) -> Group:
    """The named group, or a path with all tests.

    Args:
        root: of the project.
        name: a key of `GROUPS` or a path below the root.

    Returns:
        The group.

    Raises:
        ValueError: if it is neither.
    """
    if name in GROUPS:
        return GROUPS[name]
    if (root / name).exists():
        for group in GROUPS.values():
            if any(Path(name).is_relative_to(source) for source in group.sources):
                return Group((name,), group.tests)
        return Group((name,), ("tests",))
    raise ValueError(f"package: expected {', '.join(GROUPS)} or a path, got {name!r}")


def files_of(root: Path, group: Group) -> list[str]:
    """The Python files of a group, as paths below the root."""
    found: set[Path] = set()
    for source in group.sources:
        path = root / source
        found |= set(path.rglob("*.py")) if path.is_dir() else {path}
    return sorted(path.relative_to(root).as_posix() for path in found)
