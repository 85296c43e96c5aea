"""Whether an estimator may be named as a model's algorithm: one rule for probe, report and page."""

from enum import Enum

from mtdinterp.criteria import AS_UNIFORM, EXPLAINED, NAMED, RESEMBLES
from mtdinterp.formatting import explained_text

UNIFORM = "uniform"
"""The name of the estimator that infers nothing."""


class Naming(Enum):
    """How an estimator may be named as a model's algorithm."""

    LIKE = "predicts like"
    NEAR = "is near"
    NONE = "is not explained by"


def naming_of(estimator: str, explained: float, beyond_uniform: float) -> Naming:
    """How the nearest estimator may be named.

    Args:
        estimator: its name.
        explained: share of how the predictions differ from their mean that it explains.
        beyond_uniform: share of how the predictions differ from those of uniform weights that it
            explains.

    Returns:
        LIKE if it explains nearly everything, NEAR if it explains most, otherwise NONE.
    """
    if explained < EXPLAINED:
        return Naming.NONE
    if estimator == UNIFORM:
        return Naming.LIKE if explained >= AS_UNIFORM else Naming.NONE
    if beyond_uniform >= NAMED:
        return Naming.LIKE
    return Naming.NEAR if beyond_uniform >= RESEMBLES else Naming.NONE


def naming_sentence(
    naming: Naming, estimator: str, label: str, explained: float, beyond_uniform: float
) -> str:
    """The naming in one sentence with its numbers.

    Args:
        naming: from `naming_of`.
        estimator: the nearest estimator's name.
        label: its label.
        explained: see `naming_of`.
        beyond_uniform: see `naming_of`.

    Returns:
        The sentence.
    """
    is_uniform = estimator == UNIFORM
    beyond = (
        f"{explained_text(beyond_uniform)} of how its predictions differ from those of uniform "
        "weights"
    )
    if is_uniform:
        beyond = f"{explained_text(explained)} of how its predictions differ from their mean"
    needed = f"{AS_UNIFORM if is_uniform else NAMED:.0%}"
    if naming is Naming.LIKE:
        return f"The model predicts like {label}, which explains {beyond} (needed: {needed})."
    if naming is Naming.NEAR:
        return (
            f"The model is near {label}, but not close: it explains {beyond}, and naming it "
            f"requires {needed}."
        )
    least = f"{AS_UNIFORM if is_uniform else RESEMBLES:.0%}"
    if explained < EXPLAINED and not is_uniform:
        beyond += f", and {explained_text(explained)} of how they differ from their mean"
        least += f" and {EXPLAINED:.0%}"
    return (
        f"No estimator explains the model: the nearest, {label}, explains {beyond} (needed: "
        f"{least})."
    )
