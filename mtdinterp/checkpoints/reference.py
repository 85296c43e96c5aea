"""Does an imported model compute what the original program computes?

If it does not, the usual mistake is a square matrix that was imported in the wrong orientation,
which no shape can reveal. So each mistake of a short list is undone in turn, and the one that makes
the outputs agree is named. A reference on which a transpose makes no difference cannot reveal the
mistake either, so it is refused.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import chain, combinations
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from mtdinterp.checkpoint_files import CheckpointError
from mtdinterp.checks import ArrayLike, as_float
from mtdinterp.formatting import counted
from mtdinterp.models import LensTransformer
from mtdinterp.models.hooked import HookedAttention

ROUNDING = {torch.float64: 1e-10, torch.float32: 5e-5}
"""The difference that rounding explains, relative to the largest output (or 1)."""
COARSE_ROUNDING = 1e-2
"""The same for outputs in half precision."""
SEARCHED = 8
"""Sequences on which mistakes are tried: those with the largest differences."""
MOST_PAIRS = 300
"""Pairs of parameters that are tried; each takes a run of the model."""
OWN_SEQUENCES = 16
"""Random sequences on which it is tried whether a transpose matters to the model at all."""
TRIED = (
    "a softmax, a wrong transpose of one parameter, of one kind in all layers or of two "
    "parameters, two swapped parameters"
)
"""The mistakes that are tried for every model, for the error message."""


class Mistake(NamedTuple):
    """A possible mistake in the import, with the parameters as they would be without it."""

    sentence: str
    parameters: dict[str, Tensor]


def check_reference(model: LensTransformer, tokens: ArrayLike, outputs: ArrayLike) -> None:
    """Refuse a model whose outputs differ from the original program's by more than rounding.

    A reference that would agree with a wrong transpose as well is refused too.

    Args:
        model: the imported model.
        tokens: sequences [batch, pos].
        outputs: what the original program computes, [batch, pos, vocab] or [batch, vocab] for the
            last position.

    Raises:
        CheckpointError: with the mistake that explains the difference, or where it appears; or
            with a parameter whose orientation the reference does not determine.
    """
    sequence = model.check_tokens(tokens)
    wanted = _checked_outputs(model, sequence, outputs)
    # In float64 the comparison adds no rounding of its own, and no compiled kernel is involved.
    exact = deepcopy(model).double()
    found = _outputs(exact, sequence, wanted.ndim)
    allowed = _allowed(model, outputs, wanted)
    difference = (found - wanted).abs()
    if difference.max() <= allowed:
        _check_determined(exact, sequence, found, allowed)
        return
    by_sequence = difference.flatten(1).amax(-1)
    some = by_sequence.topk(min(SEARCHED, len(sequence))).indices
    mistake = _find_mistake(exact, sequence[some], wanted[some], allowed)
    largest = f"differ from the reference by up to {difference.max():.2g} (rounding: {allowed:.0e})"
    if mistake is not None:
        raise CheckpointError(f"{mistake}; as imported, the outputs {largest}")
    raise CheckpointError(
        f"reference: the outputs {largest}{_where(difference > allowed)}; none of these "
        f"explains it: {TRIED}{_tried_scales(exact)}; compare your forward formula with "
        "docs/models.md"
    )


def square_parameters(model: LensTransformer) -> list[str]:
    """Names of the parameters that fit in both orientations and differ from their transpose."""
    return [name for name, tensor in model.state_dict().items() if _can_be_turned(tensor)]


def _check_determined(
    model: LensTransformer,
    tokens: Int[Tensor, "batch pos"],
    found: Float64[Tensor, "batch *pos vocab"],
    allowed: float,
) -> None:
    """Refuse a reference on which the model computes the same with a transposed parameter.

    A parameter whose transpose makes no difference on random sequences of full length either is
    accepted: no reference could determine it, and its orientation does not matter.
    """
    shape = (OWN_SEQUENCES, model.config.length)
    generator = torch.Generator().manual_seed(0)
    random = torch.randint(model.config.vocab_size, shape, generator=generator)
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    usual = _outputs(model, random, n_axes=3)
    for name in square_parameters(model):
        model.load_state_dict(own | {name: own[name].mT})
        if (_outputs(model, tokens, found.ndim) - found).abs().max() > allowed:
            continue
        if (_outputs(model, random, n_axes=3) - usual).abs().max() > allowed:
            raise CheckpointError(
                f"reference: it does not determine the orientation of {name}, because the outputs "
                "agree with its transpose too; use longer or more sequences"
            )
    model.load_state_dict(own)


def _checked_outputs(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"], outputs: ArrayLike
) -> Float64[Tensor, "batch *pos vocab"]:
    wanted = as_float("reference outputs", outputs).cpu()
    batch, length = tokens.shape
    vocab_size = model.config.vocab_size
    if batch == 0 or wanted.shape not in ((batch, length, vocab_size), (batch, vocab_size)):
        raise CheckpointError(
            f"reference: expected outputs of shape {[batch, length, vocab_size]} (all positions) "
            f"or {[batch, vocab_size]} (the last one) for tokens of shape {[batch, length]}, got "
            f"{list(wanted.shape)}"
        )
    return wanted


def _allowed(model: LensTransformer, outputs: ArrayLike, wanted: Tensor) -> float:
    """The largest difference that counts as rounding, in the coarser of the two precisions."""
    relative = ROUNDING[model.W_U.dtype]
    given = getattr(outputs, "dtype", torch.float64)
    name = str(given).removeprefix("torch.")
    if name == "float32":
        relative = max(relative, ROUNDING[torch.float32])
    elif name != "float64":
        relative = COARSE_ROUNDING
    return relative * max(1.0, wanted.abs().max().item())


def _outputs(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"], n_axes: int
) -> Float64[Tensor, "batch *pos vocab"]:
    """Outputs at all positions (three axes) or at the last one (two)."""
    with torch.no_grad():
        return model(tokens, last_only=n_axes == 2).cpu()


def _find_mistake(
    model: LensTransformer,
    tokens: Int[Tensor, "some pos"],
    wanted: Float64[Tensor, "some *pos vocab"],
    allowed: float,
) -> str | None:
    """The first mistake whose correction makes the outputs agree, as the start of a sentence."""
    found = _outputs(model, tokens, wanted.ndim)
    if (found.softmax(-1) - wanted).abs().max() <= allowed:
        return (
            "reference: the outputs agree after a softmax; give the outputs before the softmax, "
            "and set logits=True in the configuration"
        )
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for mistake in chain(_mistakes(own), _wrong_scales(model, own)):
        model.load_state_dict(own | mistake.parameters)
        corrected = _outputs(model, tokens, wanted.ndim)
        if (corrected - wanted).abs().max() <= allowed:
            return mistake.sentence
    return None


def _mistakes(own: Mapping[str, Tensor]) -> Iterator[Mistake]:
    """Wrong transposes of one parameter, of one kind in all layers or of two; swapped names."""
    square = [name for name, tensor in own.items() if _is_square(tensor)]
    for name in square:
        sentence = (
            f"{name}: it was imported in the wrong orientation; with its transpose the outputs "
            'agree with the reference, so add or remove "transpose" for it in mapping'
        )
        yield Mistake(sentence, {name: own[name].mT})
    for kind in dict.fromkeys(_kind(name) for name in square):
        alike = [name for name in square if _kind(name) == kind]
        sentence = (
            f"{', '.join(alike)}: all were imported in the wrong orientation; with their "
            'transposes the outputs agree with the reference, so add or remove "transpose" for '
            "them in mapping"
        )
        yield Mistake(sentence, {name: own[name].mT for name in alike})
    pairs = list(combinations(own, 2))
    exchangeable = [pair for pair in pairs if own[pair[0]].shape == own[pair[1]].shape]
    for first, second in exchangeable[:MOST_PAIRS]:
        sentence = (
            f"{first} and {second}: they are swapped; if they are swapped back, the outputs agree "
            "with the reference, so swap their names in mapping"
        )
        yield Mistake(sentence, {first: own[second], second: own[first]})
    for first, second in list(combinations(square, 2))[:MOST_PAIRS]:
        sentence = (
            f"{first} and {second}: both were imported in the wrong orientation; with their "
            'transposes the outputs agree with the reference, so add or remove "transpose" for '
            "both in mapping"
        )
        yield Mistake(sentence, {first: own[first].mT, second: own[second].mT})


def _wrong_scales(model: LensTransformer, own: Mapping[str, Tensor]) -> Iterator[Mistake]:
    """Scores that the original program does not divide by √d_head, or divides once more."""
    if not _scales_scores(model):
        return
    scale = _attentions(model)[0].score_scale
    queries = [name for name in own if _kind(name) == "W_Q"]
    listed = ", ".join(queries)
    sentence = (
        f"{listed}: the original program does not divide its scores by √d_head, as these models "
        "do; if they are multiplied by √d_head, the outputs agree with the reference, so multiply "
        "them before the import"
    )
    yield Mistake(sentence, {name: own[name] / scale for name in queries})
    sentence = (
        f"{listed}: the original program divides its scores by √d_head once more than these "
        "models do; if they are divided by √d_head, the outputs agree with the reference, so "
        "divide them before the import"
    )
    yield Mistake(sentence, {name: own[name] * scale for name in queries})


def _scales_scores(model: LensTransformer) -> bool:
    """Whether the scores are divided by a number other than 1 that W_Q can absorb."""
    attentions = _attentions(model)
    return all(attn.score_scale != 1 and hasattr(attn, "W_Q") for attn in attentions)


def _attentions(model: LensTransformer) -> list[HookedAttention]:
    return [cast(HookedAttention, block.attn) for block in model.blocks]


def _tried_scales(model: LensTransformer) -> str:
    return ", scores divided by √d_head once more or less" if _scales_scores(model) else ""


def _kind(name: str) -> str:
    """What a parameter is called in every layer: "W_A" of "blocks.0.attn.W_A"."""
    return name.rpartition(".")[2]


def _is_square(tensor: Tensor) -> bool:
    return tensor.ndim >= 2 and tensor.shape[-1] == tensor.shape[-2] > 1


def _can_be_turned(tensor: Tensor) -> bool:
    return _is_square(tensor) and not torch.equal(tensor, tensor.mT)


def _where(differs: Bool[Tensor, "batch *pos vocab"]) -> str:
    """Where the difference appears first, as the end of a clause."""
    by_place = differs.any(-1)
    if by_place.ndim == 1:
        return f", in {int(by_place.sum())} of {counted(len(by_place), 'sequence')}"
    positions = by_place.any(0).nonzero()
    return f", first at position {int(positions[0])} of 0..{by_place.shape[1] - 1}"
