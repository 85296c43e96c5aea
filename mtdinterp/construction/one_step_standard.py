"""One step of mirror descent as weights of the standard transformer.

It is the positive control for every probe of standard models.

The additive stream is given names: token | responsibilities γ | mean_responsibilities Γ | output.
Every score is divided by √d_head, so queries carry that factor. A constant is the sum of the token
block, which is one-hot. Offsets are i - j.
"""

import torch

from mtdinterp.checks import ArrayLike, check_count, check_number
from mtdinterp.construction.base import DELTA, Implementation, LayerRole, NamedSite
from mtdinterp.construction.parts import check_problem, log_transition
from mtdinterp.estimators.base import Constants
from mtdinterp.models import StandardConfig, StandardTransformer
from mtdinterp.models.lens import LensTransformer
from mtdinterp.plugins import register_implementation
from mtdinterp.tasks.base import Task, require_transition


def one_step_standard(
    transition: ArrayLike,
    order: int,
    length: int,
    beta: float,
    d_model: int | None = None,
    delta: float = 100.0,
    dtype: torch.dtype = torch.float32,
) -> StandardTransformer:
    """Three layers, one head: at the last position the output is Σ_g softmax(β·Γ)_g·π[y_{T-g}].

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        order: the number of lags m.
        length: the only length at which the model is exact.
        beta: β.
        d_model: width of the stream; 32, or 2·vocab + 2·order if that is more.
        delta: size of the masks' scores.
        dtype: data type of the weights.

    Returns:
        The model. Its heads are 8 wide, or wider if the vocabulary or the order needs it.
    """
    matrix, order, length, delta = check_problem(transition, order, length, delta)
    beta = check_number("beta", beta)
    vocab_size = matrix.shape[0]
    needed = 2 * vocab_size + 2 * order
    d_model = max(32, needed) if d_model is None else check_count("d_model", d_model)
    if d_model < needed:
        raise ValueError(f"d_model: expected at least 2·vocab + 2·order = {needed}, got {d_model}")
    d_head = max(8, vocab_size + 1, order + 1)
    blocks = [
        ("token", vocab_size),
        ("responsibilities", order),
        ("mean_responsibilities", order),
        ("output", vocab_size),
    ]
    if d_model > needed:
        blocks.append(("unused", d_model - needed))
    config = StandardConfig(
        vocab_size=vocab_size,
        length=length,
        n_layers=3,
        d_model=d_model,
        d_head=d_head,
        blocks=tuple(blocks),
        exact_length=True,
    )
    model = StandardTransformer(config).double()
    token, gamma, mean, output = (model.stream[name] for name, _ in blocks[:4])
    scale = d_head**0.5
    tokens, lags = torch.eye(vocab_size, dtype=torch.float64), torch.eye(order, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.W_E[:, token] = tokens
        first, second, third = model.attention

        # Layer 1: the query holds log π[·, y_i] and, after it, a constant; the key is the token;
        # the key table is ±δ on the constant: attention is γ. The value table writes it by lag, O
        # to its block.
        first.W_Q[0, token, :vocab_size] = scale * log_transition(matrix).T
        first.W_Q[0, token, vocab_size] = scale
        first.W_K[0, token, :vocab_size] = tokens
        first.R_K[0, :, vocab_size] = -delta
        first.R_K[0, 1 : order + 1, vocab_size] = delta
        first.R_V[0, 1 : order + 1, :order] = lags
        first.W_O[0, :order, gamma] = lags

        # Layer 2: a constant query, -δ on offsets above T-1-m: uniform over positions m..T-1, γ
        # averages to Γ.
        second.W_Q[0, token, 0] = scale
        second.R_K[0, length - order :, 0] = -delta
        second.W_V[0, gamma, :order] = lags
        second.W_O[0, :order, mean] = lags

        # Layer 3: the query holds β·Γ and a constant; the key table is e_g at offset g-1 and ±δ:
        # attention is softmax(β·Γ) over the lags of the next token, whose tokens it copies to the
        # output.
        third.W_Q[0, mean, :order] = scale * beta * lags
        third.W_Q[0, token, order] = scale
        third.R_K[0, :order, :order] = lags
        third.R_K[0, :, order] = -delta
        third.R_K[0, :order, order] = delta
        third.W_V[0, token, :vocab_size] = tokens
        third.W_O[0, :vocab_size, output] = tokens

        model.W_U[output] = matrix
    return model.to(dtype).eval()


@register_implementation
class OneStepStandard(Implementation):
    """γ and Γ each have their own dimensions; layer 3's attention holds the weights."""

    algorithm = "one_step"
    architecture = "standard"
    roles = (LayerRole.LAGS, LayerRole.AVERAGE, LayerRole.WEIGHTS)
    sites = {  # noqa: RUF012
        "responsibilities": NamedSite("responsibilities", 1),
        "mean_responsibilities": NamedSite("mean_responsibilities", 2),
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
        return one_step_standard(
            known.transition, known.order, length, constants["beta"], delta=mask, dtype=dtype
        )
