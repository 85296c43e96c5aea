"""Two steps of mirror descent as weights of the disentangled transformer."""

import torch

from mtdinterp.algorithms.k_steps import KStepConstants
from mtdinterp.algorithms.two_step import TwoStepConstants
from mtdinterp.checks import ArrayLike, check_number
from mtdinterp.construction.base import DELTA, Implementation, LayerRole, NamedSite
from mtdinterp.construction.k_steps_disentangled import k_step
from mtdinterp.estimators.base import Constants
from mtdinterp.models import DisentangledTransformer
from mtdinterp.models.lens import LensTransformer
from mtdinterp.plugins import register_implementation
from mtdinterp.tasks.base import Task, require_transition


def two_step(
    transition: ArrayLike,
    order: int,
    length: int,
    beta_first: float,
    sharpness: float,
    beta_mean: float,
    beta_reweighted: float,
    delta: float = 100.0,
    dtype: torch.dtype = torch.float32,
) -> DisentangledTransformer:
    """Five layers: at the last position the output is Σ_g softmax(c₁·Γ + c₂·Γ²)_g·π[y_{T-g}].

    Γ² = Σ_i softmax_i(-a·w¹·γ_i)·γ_i with w¹ = softmax(β₁·Γ): two steps of mirror descent; see
    `mtdinterp.algorithms.two_step`.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        order: the number of lags m.
        length: the only length at which the model is exact.
        beta_first: β₁.
        sharpness: a.
        beta_mean: c₁.
        beta_reweighted: c₂.
        delta: size of the masks' scores.
        dtype: data type of the weights.

    Returns:
        The model.
    """
    names = ("beta_first", "sharpness", "beta_mean", "beta_reweighted")
    values = (beta_first, sharpness, beta_mean, beta_reweighted)
    first, sharp, mean, reweighted = map(check_number, names, values)
    constants = KStepConstants((sharp,), ((first,), (mean, reweighted)))
    return k_step(transition, order, length, constants, delta, dtype)


@register_implementation
class TwoStepDisentangled(Implementation):
    """γ in L1.lag, Γ in L2.L1.lag, w¹ in L3.lag, Γ² in L4.L1.lag."""

    algorithm = "two_step_construction"
    architecture = "disentangled"
    roles = (
        LayerRole.LAGS,
        LayerRole.AVERAGE,
        LayerRole.WEIGHTS,
        LayerRole.REWEIGHT,
        LayerRole.WEIGHTS,
    )
    sites = {  # noqa: RUF012
        "responsibilities": NamedSite("L1.lag", 1),
        "mean_responsibilities": NamedSite("L2.L1.lag", 2),
        "first_weights": NamedSite("L3.lag", 3),
        "reweighted": NamedSite("L4.L1.lag", 4),
    }

    def construct(
        self,
        task: Task,
        length: int,
        constants: Constants,
        delta: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> LensTransformer:
        """Build the five-layer model.

        Args:
            task: a task with one transition matrix for all lags.
            length: the only length at which the model is exact.
            constants: the four constants of `TwoStepConstants`, by name.
            delta: size of the masks' scores; large enough for the constants if None.
            dtype: data type of the weights.

        Returns:
            A model whose last output is the algorithm's prediction.
        """
        known = require_transition(task, "The construction")
        values = TwoStepConstants(**constants)
        if delta is None:
            # Scores can be as large as the constants, so the masks must exceed them.
            delta = DELTA + 2 * sum(map(abs, values))
        return two_step(known.transition, known.order, length, *values, delta=delta, dtype=dtype)
