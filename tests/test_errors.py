"""Errors: what cannot be computed has a class of its own, which is caught by name."""

import ast
from pathlib import Path

import pytest

from mtdinterp import errors
from mtdinterp.errors import (
    CannotCompute,
    NotApplicable,
    NotConverged,
    NothingToTune,
    OptimumAtEdge,
    RuleTooLarge,
)
from mtdinterp.estimators import (
    entropic_map,
    exact_posterior_mean,
    expectation_maximization,
    tune_learning_rate,
)
from mtdinterp.estimators.mirror_descent import first_order_beta
from mtdinterp.registry import ESTIMATORS
from mtdinterp.tasks import MTDTask, require_transition
from mtdinterp.tasks.lag_specific import LagSpecificMTDTask

ROOT = Path(__file__).parent.parent
TOO_BROAD = {"ValueError", "RuntimeError", "KeyError", "TypeError", "Exception", "BaseException"}
MAY_CATCH = {
    "mtdinterp/app/sweeps.py": "a background job that ends in any exception must end visibly",
    "mtdinterp/cli.py": "the end of the program: what the library refuses becomes one line",
    "mtdinterp/commands/flags.py": "text from the command line that is no number",
    "mtdinterp/commands/report.py": "a file that is no JSON was not written by a report",
    "mtdinterp/providers.py": "an installed plugin that fails to import is named and skipped",
    "mtdinterp/storage/directories.py": "a read of files replaced meanwhile is repeated",
    "mtdinterp/sweep/running.py": "whatever ends a cell is recorded and must not end the sweep",
    "mtdinterp/sweep/engines/slurm.py": "what submitit raises if sbatch refuses has no type",
    "mtdinterp/interventions/indices.py": "an index from the caller that is no integer",
}
"""Modules that parse foreign input or end the program, with the reason."""


def test_every_kind_is_a_reason_not_to_compute_and_a_value_error():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert len(kinds) > 5
    for kind in kinds:
        assert issubclass(kind, CannotCompute)
        assert issubclass(kind, ValueError)
        assert kind.__doc__


def test_a_lack_of_convergence_is_a_runtime_error_too():
    task = MTDTask.random(5, 3, seed=0)
    tokens = task.sample(4, 64, seed=1).tokens
    with pytest.raises(NotConverged) as caught:
        expectation_maximization(task.transition, tokens, 3, max_cycles=1)
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, CannotCompute)
    with pytest.raises(NotConverged, match=r"entropic_map: \d sequences did not reach"):
        entropic_map(task.transition, tokens, 3, strength=1.0, tolerance=1e-30)


@pytest.mark.parametrize(
    "task", [MTDTask.random(4, 1, seed=0), MTDTask([[0.25] * 4] * 4, 3)], ids=["one-lag", "equal"]
)
def test_there_is_nothing_to_tune_if_predictions_do_not_depend_on_the_rate(task):
    with pytest.raises(NothingToTune, match="nothing to tune"):
        tune_learning_rate(task, 20, n_sequences=50)


@pytest.mark.parametrize("grid", [(1e-6, 1e-5, 1e-4), (5.0, 10.0, 20.0)])
def test_an_optimum_outside_the_grid_is_at_its_edge(grid):
    task = MTDTask.random(4, 3, seed=0)
    with pytest.raises(OptimumAtEdge, match="lies on the edge of the grid"):
        tune_learning_rate(task, 40, n_sequences=100, grid=grid)


def test_a_rule_beyond_the_limit_is_too_large():
    task = MTDTask.random(5, 4, seed=0)
    tokens = task.sample(2, 64, seed=1).tokens
    with pytest.raises(RuleTooLarge, match="max_nodes is 500"):
        exact_posterior_mean(task.transition, tokens, 4, max_nodes=500)
    many = MTDTask.random(5, 12, seed=0)
    with pytest.raises(RuleTooLarge):
        exact_posterior_mean(many.transition, many.sample(2, 64, seed=1).tokens, 12)


def test_an_uneven_prior_has_no_first_order_rate():
    task = MTDTask.random(4, 2, seed=0, concentration=(1.0, 2.0))
    evidence = task.evidence(task.sample(3, 10, seed=0).tokens)
    with pytest.raises(NotApplicable, match="no learning rate"):
        first_order_beta(evidence)
    with pytest.raises(NotApplicable):
        ESTIMATORS["one_step_theory"].fit(evidence, evidence.predict(evidence.uniform))


def test_a_task_without_a_single_matrix_says_so():
    task = LagSpecificMTDTask.random(3, 2, seed=0)
    with pytest.raises(NotApplicable) as caught:
        require_transition(task, "The gauge")
    assert str(caught.value) == (
        "The gauge needs one transition matrix that all lags share; "
        "the task 'lag-specific' has none."
    )
    one = MTDTask.random(3, 2, seed=0)
    assert require_transition(one, "The gauge") is one


def swallowing_handlers() -> dict[str, list[int]]:
    """Where built-in errors are caught and not raised again: lines by file."""
    found: dict[str, list[int]] = {}
    paths = [*(ROOT / "mtdinterp").rglob("*.py"), *(ROOT / "probes").rglob("*.py")]
    for path in sorted(paths):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and swallows(node):
                found.setdefault(str(path.relative_to(ROOT)), []).append(node.lineno)
    return found


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches built-in errors and does not end by raising one."""
    if isinstance(handler.body[-1], ast.Raise):
        return False
    if handler.type is None:
        return True
    caught = {part.id for part in ast.walk(handler.type) if isinstance(part, ast.Name)}
    return bool(caught & TOO_BROAD)


def test_no_built_in_error_means_not_computed():
    """A bug raises ValueError too, and would be shown as "not computed"."""
    found = swallowing_handlers()
    offenders = {path: lines for path, lines in found.items() if path not in MAY_CATCH}
    assert not offenders


def test_every_permission_to_catch_is_used():
    assert set(MAY_CATCH) <= set(swallowing_handlers())
