"""One step of mirror descent as weights of the disentangled transformer."""

import torch

from mtdinterp.checks import ArrayLike, check_number
from mtdinterp.construction.base import DELTA, Implementation, LayerRole, NamedSite
from mtdinterp.construction.disentangled_layers import (
    attend_to_lags,
    blank_model,
    finished,
    mask_first_positions,
    read_by_lag,
    write_responsibilities,
)
from mtdinterp.construction.parts import check_problem
from mtdinterp.estimators.base import Constants
from mtdinterp.models import DisentangledTransformer
from mtdinterp.models.lens import LensTransformer
from mtdinterp.plugins import register_implementation
from mtdinterp.readings.regression import NO_SLOPE, Slope, centred, fit_slope
from mtdinterp.tasks.base import Task, require_transition


def one_step(
    transition: ArrayLike,
    order: int,
    length: int,
    beta: float,
    delta: float = 100.0,
    dtype: torch.dtype = torch.float32,
) -> DisentangledTransformer:
    """Three layers: at the last position the output is Σ_g softmax(β·Γ)_g·π[y_{T-g}].

    The paper's Proposition transformer_implementation, with its off-by-one corrected: the output at
    the last position T-1 is the distribution of the token that comes next.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        order: the number of lags m.
        length: the only length at which the model is exact.
        beta: β.
        delta: size of the masks' scores.
        dtype: data type of the weights.

    Returns:
        The model.
    """
    matrix, order, length, delta = check_problem(transition, order, length, delta)
    beta = check_number("beta", beta)
    model = blank_model(matrix, order, length, n_layers=3)
    with torch.no_grad():
        write_responsibilities(model, matrix, order, delta)
        mask_first_positions(model, 2, order, delta)
        attend_to_lags(model, 3, order, delta)
        read_by_lag(model, 3, "L2.L1.lag", order, beta)
        model.W_U[model.stream["L3.token"]] = matrix
    return finished(model, dtype)


@register_implementation
class OneStepDisentangled(Implementation):
    """γ in L1.lag, Γ in L2.L1.lag, the weights as layer 3's attention at the last position."""

    algorithm = "one_step"
    architecture = "disentangled"
    roles = (LayerRole.LAGS, LayerRole.AVERAGE, LayerRole.WEIGHTS)
    sites = {  # noqa: RUF012
        "responsibilities": NamedSite("L1.lag", 1),
        "mean_responsibilities": NamedSite("L2.L1.lag", 2),
    }

    def construct(
        self,
        task: Task,
        length: int,
        constants: Constants,
        delta: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> LensTransformer:
        """Build the three-layer model.

        Args:
            task: a task with one transition matrix for all lags.
            length: the only length at which the model is exact.
            constants: β, as "beta".
            delta: size of the masks' scores; large enough for the constants if None.
            dtype: data type of the weights.

        Returns:
            A model whose last output is the algorithm's prediction.
        """
        known = require_transition(task, "The construction")
        mask = DELTA if delta is None else delta
        return one_step(known.transition, known.order, length, constants["beta"], mask, dtype)

    def read(self, model: LensTransformer, task: Task) -> dict[str, Slope]:
        """β from the weights; see `weight_beta`."""
        return {"weights": weight_beta(model, task.n_components)}


def weight_beta(model: LensTransformer, order: int) -> Slope:
    """β_w from the weights: layer 3's reads of the averaged lag block times layer 1's writes.

    Row g of `reads` holds the vector that layer 3 multiplies with the averaged lag block when it
    scores offset g-1. Row g of `writes` is the code that layer 1 writes for lag g. In the
    construction, their product is β_w·(I - 11ᵀ/m) once its rows and columns are centred. A trained
    layer 1 may also attend to positions other than the lags, so the effective β is β_w times the
    gain of layer 1.

    Args:
        model: a disentangled transformer.
        order: the number of lags m.

    Returns:
        The slope on I - 11ᵀ/m; NaN if the model does not have three layers with one head each.
    """
    single = isinstance(model, DisentangledTransformer) and set(model.config.heads_per_layer) == {1}
    if not single or model.config.n_layers != 3 or model.config.length <= order:
        return NO_SLOPE
    first, _, last = model.attention
    with torch.no_grad():
        reads = last.R_A[0, :order, model.stream["L2.L1.lag"]].cpu().double()
        writes = first.R_V[0, 1 : order + 1].cpu().double()
    product = centred(centred(reads @ writes.T).T).T
    ideal = torch.eye(order, dtype=torch.float64) - 1 / order
    return fit_slope(ideal, product)
