"""The constants of a program: entries of the weights, and means of the stream."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.architectures.disentangled import DisentangledTransformer
from mtdinterp.readings.predictions import readable_sequences

Constants = dict[str, Any]
"""Numbers, slices and arrays, by the names that the program uses."""


class Weights:
    """The weights of a three-layer disentangled transformer with one head, in double precision."""

    def __init__(self, model: DisentangledTransformer, n_lags: int) -> None:
        """
        Args:
            model: the model.
            n_lags: the number of lags m.
        """
        self.model = model
        self.stream = model.stream
        self.n_lags = n_lags
        self.vocab_size = model.config.vocab_size
        self.length = model.config.length
        self.scores = [_double(layer.W_A[0]) for layer in model.attention]
        self.reads = [_double(layer.R_A[0]) for layer in model.attention]
        self.codes = [_double(layer.R_V[0]) for layer in model.attention]
        self.output = _double(model.W_U)
        # Softmax does not change if all scores of a query fall by the same number; without their
        # largest, none can overflow.
        largest = self.scores[0].max(1).values + self.reads[0].max(0).values
        self.scores[0] = self.scores[0] - largest[:, None]
        self.lag_codes = self.codes[0][1 : n_lags + 1]
        self.decode = torch.linalg.pinv(self.lag_codes)
        """From what layer 1 writes to the share of each lag."""

    @property
    def first_width(self) -> int:
        """Columns of the stream after layer 1."""
        return self.model.attention[1].d_in

    @property
    def last_width(self) -> int:
        """Columns of the stream after layer 2."""
        return self.model.attention[2].d_in

    @property
    def beta(self) -> float:
        """The slope of layer 3's read of each lag's average on that lag."""
        averaged = self.reads[2][: self.n_lags, self.stream["L2.L1.lag"]]
        product = averaged @ self.lag_codes.T
        product = product - product.mean(0)
        product = product - product.mean(1, keepdim=True)
        return product.trace().item() / max(1, self.n_lags - 1)

    @property
    def other_reads(self) -> Int[Tensor, " columns"]:
        """Columns that layer 3 reads besides its own lags and the average of lags."""
        lags = ("L1.lag", "L2.L1.lag")
        blocks = [self.stream[name] for name in self.stream if name not in lags]
        columns = torch.arange(self.last_width)
        return torch.cat([columns[block] for block in blocks])

    def leak(self, marginal: Float64[Tensor, " vocab"]) -> Float64[Tensor, "pos vocab"]:
        """Layer 1's attention off the lags before normalisation, by position and query token.

        Args:
            marginal: how often each token occurs; it stands in for the tokens off the lags.

        Returns:
            The sum over all earlier positions that are no lags.
        """
        by_offset = self.reads[0].exp()
        by_offset[1 : self.n_lags + 1] = 0
        return by_offset.cumsum(0) * (self.scores[0].exp() @ marginal)


@dataclass(frozen=True, eq=False)
class Means:
    """Means over sequences of what a program may leave out."""

    tokens: Int[Tensor, "batch pos"]
    """The sequences."""
    first_last: Float64[Tensor, " width"]
    """The stream after layer 1 at the last position."""
    scores: Float64[Tensor, " offset"]
    """Layer 3's scores at the last position."""
    output: Float64[Tensor, " vocab"]
    """What the output reads besides the tokens at layer 3's keys."""

    @property
    def marginal(self) -> Float64[Tensor, " vocab"]:
        """How often each token occurs."""
        counts = self.tokens.flatten().bincount(minlength=len(self.output)).double()
        return counts / counts.sum()


def means_of(weights: Weights, tokens: Int[Tensor, "batch pos"]) -> Means:
    """Run the model on sequences and average.

    Args:
        weights: the weights of the model.
        tokens: the sequences.

    Returns:
        The means.
    """
    stream, scores = "hook_resid_pre", "attn.hook_attn_scores"
    wanted = (f"blocks.1.{stream}", f"blocks.2.{scores}", "blocks.2.hook_resid_post")
    sums = [torch.zeros(()).double() for _ in wanted]
    for some in tokens.split(len(readable_sequences(tokens))):
        with torch.no_grad():
            _, cache = weights.model.run_with_cache(some, names_filter=lambda name: name in wanted)
        first, score, final = (_double(cache[name]) for name in wanted)
        parts = (first[:, -1, : weights.first_width], score[:, 0, -1].flip(-1), final[:, -1])
        sums = [total + part.sum(0) for total, part in zip(sums, parts, strict=True)]
    first_last, by_offset, mean = (total / len(tokens) for total in sums)
    read = weights.stream["L3.token"]
    rest = mean @ weights.output - mean[read] @ weights.output[read]
    return Means(tokens, first_last, by_offset, rest)


def constants_of(weights: Weights, means: Means, terms: Collection[str]) -> Constants:
    """All constants of the program with these terms, except the bias of its scores.

    Args:
        weights: the weights of the model.
        means: means of its stream.
        terms: the terms of the program.

    Returns:
        The constants by name; the program need not use all of them.
    """
    vocab, stream = weights.vocab_size, weights.stream
    first, last = weights.first_width, weights.last_width
    near = slice(0, weights.length if "far" in terms else weights.n_lags + 1)
    shown = slice(0, weights.length if "outside" in terms else weights.n_lags)
    reads, content = weights.reads[2][shown], weights.scores[2]
    third = stream["L3.token"].start
    asked = means.first_last @ weights.scores[1]
    tensors = {
        "PAIRS": weights.scores[0],
        "OFFSETS": weights.reads[0][near],
        "CODES": weights.codes[0][near],
        "LEAK": weights.leak(means.marginal),
        "MARGINAL": means.marginal,
        "BY_TOKEN": asked[:vocab],
        "BY_KEY": asked,
        "BY_OFFSET": weights.reads[1] @ means.first_last,
        "CONTENT_2": weights.scores[1] if "keys" in terms else weights.scores[1][:, :vocab],
        "READS_2": weights.reads[1],
        "CODES_2": weights.codes[1],
        "DECODE": weights.decode,
        "READS_AVERAGED": reads[:, stream["L2.L1.lag"]],
        "READS_OWN": reads[:, stream["L1.lag"]],
        "OTHER": weights.other_reads,
        "READS_OTHER": reads[:, weights.other_reads],
        "CONTENT_3_TOKEN": content[:, :vocab],
        "CONTENT_3_GATHERED": content[:, vocab:first],
        "CONTENT_3_SECOND": content[:, first:],
        "OUTPUT": weights.output[stream["L3.token"]],
        "OUTPUT_BIAS": means.output,
        "OUTPUT_LAST": weights.output[:last],
        "OUTPUT_SECOND": weights.output[third + first : third + last],
        "OUTPUT_GATHERED": weights.output[third + vocab : third + first],
        "OUTPUT_OFFSETS": (weights.codes[2] @ weights.output[stream["L3.lag"]])[shown],
        "BIAS": means.scores[shown],
    }
    sizes = {"LENGTH": weights.length, "VOCAB": vocab, "LAGS": weights.n_lags, "FIRST": first}
    columns = {"AVERAGED": stream["L2.L1.lag"], "OWN": stream["L1.lag"]}
    arrays = {name: np.asarray(value) for name, value in tensors.items()}
    return {**sizes, **columns, "BETA": weights.beta, **arrays}


def _double(tensor: Tensor) -> Float64[Tensor, "*shape"]:
    return tensor.detach().cpu().double()
