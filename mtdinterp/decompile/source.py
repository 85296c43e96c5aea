"""A program as NumPy code: lines that belong to terms, and the constants that they use."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Lines:
    """Some lines of the program, and when they are part of it."""

    text: str
    needs: tuple[str, ...] = ()
    """Terms that must all be present."""
    needs_one: tuple[str, ...] = ()
    """Terms of which one must be present."""
    without: tuple[str, ...] = ()
    """Terms that must all be absent."""

    def belongs(self, terms: Collection[str]) -> bool:
        """Whether these lines are part of the program with these terms."""
        if not all(name in terms for name in self.needs):
            return False
        if self.needs_one and not any(name in terms for name in self.needs_one):
            return False
        return not any(name in terms for name in self.without)


SCORES = (
    Lines(
        '''
def predict(tokens):
    """The distribution of the next token: [batch, length] -> [batch, vocab]."""
    x = np.asarray(tokens)
    batch, length = x.shape
    if length != LENGTH:
        raise ValueError(f"tokens: expected sequences of {LENGTH} tokens, got {length}")
    one_hot = np.eye(VOCAB)[x]
'''
    ),
    Lines(
        """
    # Layer 1: every token attends to earlier ones by learned scores.
    total = np.zeros((batch, length))
    code = np.zeros((batch, length, CODES.shape[1]))
    gathered = np.zeros((batch, length, VOCAB))
""",
        needs=("step",),
    ),
    Lines("    for offset in range(1, LAGS + 1):\n", needs=("step",), without=("far",)),
    Lines("    for offset in range(length):\n", needs=("far",)),
    Lines(
        """        query, key = x[:, offset:], x[:, : length - offset]
        share = np.exp(PAIRS[query, key] + OFFSETS[offset, query])
        total[:, offset:] += share
        code[:, offset:] += share[..., None] * CODES[offset]
        gathered[:, offset:] += share[..., None] * one_hot[:, : length - offset]
""",
        needs=("step",),
    ),
    Lines(
        """    leak = LEAK[np.arange(length), x]
    total += leak
    gathered += leak[..., None] * MARGINAL
""",
        needs=("leak",),
        without=("far",),
    ),
    Lines(
        """    total += total == 0  # nothing to attend to, as for the first token
    code /= total[..., None]
    gathered /= total[..., None]
""",
        needs=("step",),
    ),
    Lines(
        """    first = np.concatenate([one_hot, gathered, code], -1)

    # Layer 2: the last position averages what layer 1 wrote.
""",
        needs=("step",),
    ),
    Lines(
        """    weights = np.ones((batch, length))
    weights[:, :LAGS] = 0
""",
        needs=("step",),
        without=("averaging",),
    ),
    Lines(
        "    scores = BY_TOKEN[x] + BY_OFFSET[length - 1 :: -1]\n",
        needs=("averaging",),
        without=("query", "keys"),
    ),
    Lines(
        "    scores = first @ BY_KEY + BY_OFFSET[length - 1 :: -1]\n",
        needs=("keys",),
        without=("query",),
    ),
    Lines(
        """    asks = first[:, -1]
    scores = (asks @ READS_2[:length].T)[:, ::-1]
""",
        needs=("query",),
    ),
    Lines(
        "    scores += (one_hot @ (asks @ CONTENT_2)[:, :, None])[..., 0]\n",
        needs=("query",),
        without=("keys",),
    ),
    Lines(
        "    scores += (first @ (asks @ CONTENT_2)[:, :, None])[..., 0]\n",
        needs=("query", "keys"),
    ),
    Lines("    weights = np.exp(scores - scores.max(1, keepdims=True))\n", needs=("averaging",)),
    Lines(
        """    weights /= weights.sum(1, keepdims=True)
    average = (weights[:, None] @ first)[:, 0]
    last = np.concatenate([first[:, -1], average], -1)
""",
        needs=("step",),
    ),
    Lines(
        """    by_offset = weights[:, ::-1] @ CODES_2[:length]
    last = np.concatenate([last, by_offset], -1)
""",
        needs_one=("tokens", "content", "gathered", "rest"),
    ),
    Lines(
        """    second = [last[:, FIRST:]]
    for offset in range(1, LAGS):
        seen = length - offset
        asks = first[:, seen - 1]
        scores = (asks @ READS_2[:seen].T)[:, ::-1]
        scores += (first[:, :seen] @ (asks @ CONTENT_2)[:, :, None])[..., 0]
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        average = (weights[:, None] @ first[:, :seen])[:, 0]
        second.append(np.concatenate([average, weights[:, ::-1] @ CODES_2[:seen]], -1))
    second = np.stack(second, 1)
""",
        needs=("earlier",),
    ),
    Lines("\n    # Layer 3: the last position attends to the lags of the next token.\n"),
    Lines("    scores = np.tile(BIAS, (batch, 1))\n"),
    Lines(
        "    scores[:, :LAGS] += BETA * (last[:, AVERAGED] @ DECODE)\n",
        needs=("step",),
        without=("reads",),
    ),
    Lines("    scores += last[:, AVERAGED] @ READS_AVERAGED.T\n", needs=("reads",)),
    Lines("    scores += last[:, OWN] @ READS_OWN.T\n", needs=("skip",)),
    Lines("    scores += last[:, OTHER] @ READS_OTHER.T\n", needs=("tokens",)),
    Lines("    near = first[:, ::-1][:, : len(BIAS)]\n", needs_one=("content", "gathered", "rest")),
    Lines(
        "    scores += (near[..., :VOCAB] @ (last @ CONTENT_3_TOKEN)[:, :, None])[..., 0]\n",
        needs=("content",),
    ),
    Lines(
        "    scores += (near[..., VOCAB:] @ (last @ CONTENT_3_GATHERED)[:, :, None])[..., 0]\n",
        needs=("gathered",),
    ),
    Lines(
        """    asks = last @ CONTENT_3_SECOND
    scores[:, :LAGS] += (second @ asks[:, :, None])[..., 0]
    scores[:, LAGS:] += (asks * last[:, FIRST:]).sum(1, keepdims=True)
""",
        needs=("earlier",),
    ),
)
"""The program up to the scores of layer 3."""

OUTPUT = (
    Lines(
        """    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    mixed = (weights[:, None] @ one_hot[:, ::-1][:, : weights.shape[1]])[:, 0]
    output = mixed @ OUTPUT
"""
    ),
    Lines("    output += OUTPUT_BIAS\n", without=("rest",)),
    Lines(
        """    output += last @ OUTPUT_LAST
    output += (weights[:, None] @ near[..., VOCAB:])[:, 0] @ OUTPUT_GATHERED
    output += weights @ OUTPUT_OFFSETS
""",
        needs=("rest",),
    ),
    Lines("    output += last[:, FIRST:] @ OUTPUT_SECOND\n", needs=("rest",), without=("earlier",)),
    Lines(
        """    output += (weights[:, None, :LAGS] @ second)[:, 0] @ OUTPUT_SECOND
    output += weights[:, LAGS:].sum(1)[:, None] * (last[:, FIRST:] @ OUTPUT_SECOND)
""",
        needs=("rest", "earlier"),
    ),
    Lines("    return output\n"),
)
"""The program from there to the prediction."""


def code_of(terms: Collection[str]) -> str:
    """The function `predict` of the program with these terms, without its constants."""
    return _joined((*SCORES, *OUTPUT), terms)


def code_of_scores(terms: Collection[str]) -> str:
    """The same function, but it returns layer 3's scores by offset."""
    return _joined((*SCORES, Lines("    return scores\n")), terms)


def _joined(parts: Iterable[Lines], terms: Collection[str]) -> str:
    """The lines that belong to a program with these terms."""
    return "".join(lines.text for lines in parts if lines.belongs(terms)).lstrip("\n")


def names_in(code: str, constants: Mapping[str, Any]) -> list[str]:
    """The constants that the code uses, in the order in which they are given."""
    words = set(compile(code, "<program>", "exec").co_consts[0].co_names)
    return [name for name in constants if name in words]


def source_of(code: str, constants: Mapping[str, Any]) -> str:
    """The program as a file: its constants, then the function."""
    lines = ["import numpy as np", ""]
    for name in names_in(code, constants):
        lines.append(f"{name} = {_literal(constants[name])}")
    return "\n".join(lines) + "\n\n\n" + code


def _literal(value: Any) -> str:
    """A constant as it is written in the program; floats keep every digit."""
    if isinstance(value, np.ndarray):
        return f"np.array({value.tolist()!r})"
    return repr(value)
