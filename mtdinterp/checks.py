"""Input checks: turn an argument into a tensor, or raise a ValueError.

The message says what was expected and what was given. Every public function of the tasks, the
estimators and the constructions uses these checks, so that a mistake is reported where it was made.
"""

import difflib
import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from mtdinterp.matrix_files import ROW_SUM_TOLERANCE

ArrayLike = Tensor | np.ndarray | Sequence
"""What callers may pass: a torch tensor, a NumPy array, or nested lists."""
CONCENTRATIONS = (1e-9, 1e9)
"""Outside this range, weights are at a corner or uniform to nine digits, and formulas overflow."""
MOST_LAGS = 4096
MOST_PROBABILITIES = 2**24
"""Transition probabilities of a task: one matrix of 4096 tokens, or several smaller ones. A
configuration that asks for more is refused before memory is reserved for it."""


def as_float(name: str, value: ArrayLike | float) -> Tensor:
    """`value` as a finite float64 tensor."""
    given = value if isinstance(value, Tensor) else _as_array(name, value)
    if given.dtype in (torch.complex64, torch.complex128, np.complex64, np.complex128):
        raise ValueError(f"{name}: expected real numbers, got {given.dtype}")
    try:
        # A copy in native order, because torch does not accept reversed or big-endian arrays.
        tensor = (
            given.detach().double()
            if isinstance(given, Tensor)
            else torch.from_numpy(given.astype(np.float64))
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name}: expected numbers, got {value!r}"[:200]) from error
    if not torch.isfinite(tensor).all():
        bad = tensor[~torch.isfinite(tensor)][0].item()
        raise ValueError(
            f"{name}: expected {'finite entries' if tensor.ndim else 'a finite number'}, got {bad}"
        )
    return tensor


def _as_array(name: str, value: object) -> np.ndarray:
    """Anything array-like as an array; a list of tensors too."""
    try:
        return np.array(value)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(value).__name__
        raise ValueError(
            f"{name}: expected a rectangular array of numbers, got {kind} ({error})"
        ) from error


def as_distribution(name: str, value: ArrayLike, size: int | None = None) -> Tensor:
    """`value` as float64 rows that are non-negative and sum to one.

    Args:
        name: the argument's name, for error messages.
        value: array whose last axis holds distributions.
        size: required length of the last axis; any if None.

    Returns:
        The rows, renormalised if they are off by more than rounding in float64.
    """
    rows = as_float(name, value)
    if rows.ndim == 0 or (size is not None and rows.shape[-1] != size):
        wanted = "rows" if size is None else f"{size} entries in the last axis"
        raise ValueError(f"{name}: expected {wanted}, got shape {tuple(rows.shape)}")
    if (rows < 0).any():
        raise ValueError(f"{name}: expected non-negative entries, got {rows.min().item()}")
    total = rows.sum(-1, keepdim=True)
    worst = (total - 1).abs().max() if total.numel() else torch.tensor(0.0)
    if worst > ROW_SUM_TOLERANCE:
        raise ValueError(
            f"{name}: expected rows that sum to 1, got a row that sums to "
            f"{total.flatten()[(total - 1).abs().argmax()].item():.6g}"
        )
    # Rows that already sum to one are kept bit for bit, so that a stored task loads unchanged.
    return rows if worst <= 4 * rows.shape[-1] * torch.finfo(torch.float64).eps else rows / total


def as_transition(value: ArrayLike) -> Tensor:
    """`value` as a row-stochastic float64 matrix [vocab, vocab]."""
    matrix = as_float("transition", value)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] < 2:
        raise ValueError(
            "transition: expected a square matrix [vocab, vocab] with vocab ≥ 2, "
            f"got shape {tuple(matrix.shape)}"
        )
    return as_distribution("transition", matrix)


def as_tokens(value: ArrayLike, vocab_size: int) -> Tensor:
    """`value` as int64 tokens [batch, pos], each in 0..vocab_size-1."""
    given = value if isinstance(value, Tensor) else _as_array("tokens", value)
    if given.ndim != 2:
        raise ValueError(f"tokens: expected shape [batch, pos], got {tuple(given.shape)}")
    if isinstance(given, np.ndarray):
        if given.dtype.kind not in "iu":
            raise ValueError(f"tokens: expected an integer type, got {given.dtype}")
        given = torch.from_numpy(given.astype(np.int64))
    if given.dtype == torch.bool or given.is_floating_point() or given.is_complex():
        raise ValueError(f"tokens: expected an integer type, got {given.dtype}")
    tokens = given.to(torch.int64)
    # NumPy on the CPU: for so small a reduction, starting torch's threads costs more.
    values = tokens.numpy() if tokens.device.type == "cpu" else tokens
    if tokens.numel() and (values.min() < 0 or values.max() >= vocab_size):
        raise ValueError(
            f"tokens: expected values in 0..{vocab_size - 1}, "
            f"got values in {int(values.min())}..{int(values.max())}"
        )
    return tokens


def check_order(order: int, length: int | None = None) -> int:
    """The number of lags: at least 1, and smaller than `length` if one is given."""
    if isinstance(order, bool) or not isinstance(order, int | np.integer) or order < 1:
        raise ValueError(f"order: expected an integer ≥ 1, got {order!r:.60}")
    if order > MOST_LAGS:
        raise ValueError(f"order: expected at most {MOST_LAGS} lags, got {order!r:.60}")
    if length is not None and order >= length:
        raise ValueError(f"order: expected less than the length {length}, got {order}")
    return int(order)


def check_count(name: str, value: int, minimum: int = 1, maximum: int | None = None) -> int:
    """An integer of at least `minimum`.

    Args:
        name: the argument's name, for error messages.
        value: the value to check.
        minimum: the smallest value allowed.
        maximum: the largest value allowed; any if None.

    Returns:
        The integer.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise ValueError(f"{name}: expected an integer ≥ {minimum}, got {value!r:.60}")
    if maximum is not None and value > maximum:
        raise ValueError(f"{name}: expected at most {maximum:,}, got {value!r:.60}")
    return int(value)


def check_vocabulary(vocab_size: int, n_matrices: int = 1) -> int:
    """A number of tokens: at least 2, and few enough for the matrices of a task.

    Args:
        vocab_size: the value to check.
        n_matrices: transition matrices of the task.

    Returns:
        The number of tokens.
    """
    size = check_count("vocab_size", vocab_size, minimum=2)
    if n_matrices * size**2 > MOST_PROBABILITIES:
        most = math.isqrt(MOST_PROBABILITIES // n_matrices)
        raise ValueError(f"vocab_size: expected at most {most} tokens, got {vocab_size!r:.60}")
    return size


def check_number(
    name: str, value: float, minimum: float | None = None, exclusive: bool = False
) -> float:
    """A finite number, at least (or more than) `minimum`.

    Args:
        name: the argument's name, for error messages.
        value: the value to check.
        minimum: the lower bound; none if None.
        exclusive: whether the bound itself is refused.

    Returns:
        The number.
    """
    number = as_float(name, value)
    if number.ndim != 0:
        raise ValueError(f"{name}: expected one number, got shape {tuple(number.shape)}")
    result = number.item()
    if minimum is not None and (result < minimum or (exclusive and result == minimum)):
        raise ValueError(
            f"{name}: expected a number {'>' if exclusive else '≥'} {minimum:g}, got {result:g}"
        )
    return result


def as_concentration(value: ArrayLike | float, order: int) -> Tensor:
    """A Dirichlet concentration, one number or one per lag, as a positive float64 tensor [lag]."""
    alpha = as_float("concentration", value)
    if alpha.ndim == 0:
        alpha = alpha.expand(order)
    if alpha.shape != (order,):
        raise ValueError(
            f"concentration: expected one number or {order} numbers, got shape {tuple(alpha.shape)}"
        )
    if (alpha <= 0).any():
        raise ValueError(f"concentration: expected positive entries, got {alpha.min().item()}")
    lowest, highest = CONCENTRATIONS
    extreme = alpha[(alpha < lowest) | (alpha > highest)]
    if len(extreme):
        raise ValueError(
            f"concentration: expected entries between {lowest:g} and {highest:g}, got "
            f"{extreme[0].item():g}"
        )
    return alpha.contiguous()


def check_option(name: str, value: str, known: Iterable[str]) -> str:
    """`value` if it is one of the `known` names.

    Args:
        name: the argument's name, for error messages.
        value: the value to check.
        known: the names allowed.

    Returns:
        The value.

    Raises:
        ValueError: with the known names and the nearest of them.
    """
    options = list(known)
    if value not in options:
        near = difflib.get_close_matches(str(value), options, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name}: expected one of {', '.join(options)}; got {value!r:.80}{hint}")
    return value
