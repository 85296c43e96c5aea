"""The construction to put beside a model, from the constants that were read from it."""

from mtdinterp.construction.disentangled import one_step, two_step
from mtdinterp.construction.standard import one_step_standard
from mtdinterp.estimators import TwoStepConstants
from mtdinterp.models import LensTransformer
from mtdinterp.task import MTDTask


def construction_with(
    task: MTDTask,
    length: int,
    constants: TwoStepConstants | float,
    architecture: str = "disentangled",
    delta: float = 100.0,
) -> LensTransformer:
    """One step for a β, in the architecture that is asked for; two steps, which only the
    disentangled one has, for four constants."""
    if isinstance(constants, TwoStepConstants):
        return two_step(
            task.transition, task.order, length, *constants, delta=two_step_delta(constants, delta)
        )
    build = one_step_standard if architecture == "standard" else one_step
    return build(task.transition, task.order, length, constants, delta=delta)


def two_step_delta(constants: TwoStepConstants, delta: float = 100.0) -> float:
    """Its scores can be as large as its constants, so the mask stands that much higher."""
    return delta + 2 * sum(map(abs, constants))
