"""Continue sequences by tokens that are drawn from a model's own predictions."""

from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor
from transformer_lens.utilities import sample_logits

from mtdinterp.checks import ArrayLike, as_tokens, check_count, check_number, check_option
from mtdinterp.errors import NotApplicable
from mtdinterp.formatting import counted
from mtdinterp.metrics import to_distribution
from mtdinterp.models.lens import LensTransformer
from mtdinterp.models.lens_tokens import check_no_bos, is_text

SMALLEST = 1e-300
"""Smallest probability: too small to be ever drawn, but with a finite logarithm."""


def next_log_probabilities(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"]
) -> Float64[Tensor, "batch vocab"]:
    """The log-probabilities of the token after each sequence.

    TransformerLens' samplers take logits and normalise them by a softmax. Log-probabilities are
    logits whose softmax is the distribution itself. The outputs of these models are not logits
    unless `config.logits` is set: they are already probabilities. A trained model's outputs may be
    slightly negative; they are clipped and renormalised as everywhere in this project.

    Args:
        model: a model of any architecture.
        tokens: sequences that the model accepts, [batch, pos].

    Returns:
        Log-probabilities [batch, vocab].
    """
    probabilities = model.to_probabilities(model(tokens, last_only=True))
    hopeless = int((probabilities <= 0).all(-1).sum())
    if hopeless:
        number = counted(len(tokens), "sequence")
        raise NotApplicable(
            f"generate: after {hopeless} of {number} no output is positive, so "
            "there is no distribution to draw from; train the model first, or use do_sample=False."
        )
    distribution = to_distribution(probabilities, floor=SMALLEST)
    return distribution.log()


@torch.no_grad()
def generate(
    model: LensTransformer,
    input: ArrayLike | str,
    max_new_tokens: int = 10,
    do_sample: bool = True,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    freq_penalty: float = 0.0,
    return_type: str = "input",
    prepend_bos: bool | None = None,
    seed: int | None = None,
    stop_at_eos: bool = False,
    use_past_kv_cache: bool = False,
    verbose: bool = False,
) -> Int[Tensor, "batch longer"] | str | list[str]:
    """Continue sequences with tokens from the model, one at a time.

    Each token is predicted from the last `config.length` tokens, the most that the position tables
    cover. A construction is exact at that length only, so its input must be at least as long.

    Args:
        model: a model of any architecture.
        input: integer tokens [batch, pos], or digits separated by blanks.
        max_new_tokens: the number of tokens to draw for each sequence.
        do_sample: whether to draw tokens; if not, the most likely one is taken.
        temperature: the logarithms of probabilities are divided by it; 0 means no drawing.
        top_k: draw among the k most likely tokens only.
        top_p: draw among the most likely tokens that have this probability together.
        freq_penalty: subtracted from a token's log-probability for each of its occurrences.
        return_type: "tokens", "str", or "input" for the type of the input.
        prepend_bos: None or False, because there is no such token.
        seed: makes the draws reproducible; torch's global generator is used if None.
        stop_at_eos: has no effect, because there is no end token.
        use_past_kv_cache: has no effect, because every step runs all of its window.
        verbose: has no effect, because there is no progress bar.

    Returns:
        Tokens [batch, pos + max_new_tokens], or text: one string, or one per sequence.
    """
    check_no_bos(prepend_bos)
    check_option("return_type", return_type, ("input", "tokens", "str"))
    check_number("temperature", temperature, minimum=0)
    check_count("max_new_tokens", max_new_tokens, minimum=0)
    tokens = as_tokens(model.to_tokens(input), model.config.vocab_size)
    greedy = not do_sample or temperature == 0
    options: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "freq_penalty": freq_penalty,
    }
    # Draws are made on the CPU, so that a seed gives the same tokens on every device.
    tokens = tokens.cpu()
    with nullcontext() if seed is None else torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        for _ in range(max_new_tokens):
            visible = tokens[:, -model.config.length :]
            if greedy:
                drawn = model(visible, last_only=True).argmax(-1).cpu()
            else:
                logits = next_log_probabilities(model, visible).cpu()
                drawn = sample_logits(logits, tokens=tokens, **options)
            tokens = torch.cat([tokens, drawn[:, None]], dim=1)
    as_text = return_type == "str" or (return_type == "input" and is_text(input))
    if not as_text:
        return tokens.to(model.W_U.device)
    text = model.to_string(tokens)
    return text[0] if isinstance(input, str) else text
