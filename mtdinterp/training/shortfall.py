"""Whether a finished run fell short of the algorithm that it should have learned."""

from collections.abc import Mapping
from typing import Any

from mtdinterp.criteria import CLEARLY_WORSE
from mtdinterp.training.recipes import Recipe

ADVICE = "try other seeds (--restarts 3), or more --steps"


def shortfall(evaluation: Mapping[str, Any], recipe: Recipe) -> str | None:
    """What went wrong in a run, and what to try; None if nothing did.

    Args:
        evaluation: the last entry of the run's history.
        recipe: the settings of the run; its start may ask for the mirrored branch.

    Returns:
        One sentence, or None.
    """
    problems = []
    ratio = evaluation["ratio"]
    if ratio is None:  # one-step mirror descent has nothing to infer on this task, or no optimum
        return None
    if ratio > CLEARLY_WORSE:
        problems.append(
            f"its KL is {ratio:.2f} times that of one-step mirror descent (more than "
            f"{CLEARLY_WORSE:g} counts as clearly worse)"
        )
    if evaluation["branch"] == "mirrored" and recipe.initialisation != "mirrored":
        problems.append("layer 1 attends to unlikely lags (the mirrored branch)")
    # Without a gain, as in a model of one layer, there is no branch to decide.
    if evaluation["branch"] == "undecided" and evaluation["gain"] is not None:
        problems.append("layer 1 does not weigh lags by their likelihood (branch undecided)")
    if not problems:
        return None
    return f"this model did not learn the task well: {', and '.join(problems)}; {ADVICE}"
