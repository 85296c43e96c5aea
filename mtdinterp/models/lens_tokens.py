"""Tokens as text, under TransformerLens' names: tokens are numbers, and their names are digits."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_option
from mtdinterp.errors import NotApplicable
from mtdinterp.models.hooked import LensConfig


def is_text(tokens: object) -> bool:
    """Whether tokens are written as digits: a string, or a list of strings."""
    if isinstance(tokens, list):
        return bool(tokens) and isinstance(tokens[0], str)
    return isinstance(tokens, str)


def check_no_bos(prepend_bos: bool | None) -> None:
    """Accept TransformerLens' `prepend_bos` unless it asks for a token."""
    if prepend_bos:
        raise NotApplicable(
            "prepend_bos: these models have no beginning-of-sequence token; leave it out or pass "
            "False."
        )


NOT_HERE = {
    "attention_mask": "the sequences of a batch have the same length, so no token is masked",
    "padding_side": "the sequences of a batch have the same length, so none is padded",
    "past_kv_cache": "every pass computes all positions; pass the whole sequence",
    "shortformer_pos_embed": "positions are relative, so there is no embedding of positions",
}
"""Arguments of TransformerLens' `forward` that have no meaning here, and why."""


def check_no_others(given: Mapping[str, object]) -> None:
    """Accept further arguments of TransformerLens' `forward` only if they are None.

    Args:
        given: the further arguments by name.

    Raises:
        NotApplicable: if one of them has no meaning here.
        TypeError: if TransformerLens has no such argument either.
    """
    for name, value in given.items():
        if name not in NOT_HERE:
            raise TypeError(f"forward() got an unexpected keyword argument {name!r}")
        if value is not None:
            raise NotApplicable(f"{name}: {NOT_HERE[name]}; leave it out or pass None.")


class NamedTokens:
    """The methods of a TransformerLens model that convert between text and tokens."""

    cfg: LensConfig

    def to_tokens(
        self, input: str | ArrayLike, prepend_bos: bool | None = None
    ) -> Int[Tensor, "batch pos"]:
        """Tokens from digits separated by blanks, a list of such strings, or numbers.

        Args:
            input: the sequence or sequences; a single sequence gets a batch axis.
            prepend_bos: None or False, because there is no such token.

        Returns:
            Tokens [batch, pos].
        """
        check_no_bos(prepend_bos)
        if not is_text(input):
            return torch.atleast_2d(torch.as_tensor(input))
        rows = [input] if isinstance(input, str) else input
        return torch.tensor([self._parse(row) for row in rows], dtype=torch.int64)

    def _parse(self, row: str) -> list[int]:
        return [self.to_single_token(word) for word in row.split()]

    def to_single_token(self, string: str | int) -> int:
        """The token that a string of digits stands for."""
        name = str(string).strip()
        return int(check_option("token", name, map(str, range(self.cfg.d_vocab))))

    def to_single_str_token(self, int_token: int) -> str:
        """The digits of one token."""
        return str(self.to_single_token(int_token))

    def to_str_tokens(self, input: Any, prepend_bos: bool | None = None) -> list[str]:
        """Tokens as strings of digits, one string per token.

        Args:
            input: digits separated by blanks, or numbers of any shape, read row by row.
            prepend_bos: None or False, because there is no such token.

        Returns:
            The digits of every token.
        """
        check_no_bos(prepend_bos)
        if isinstance(input, str):
            return input.split()
        return [str(int(token)) for token in torch.as_tensor(input).flatten()]

    def to_string(self, tokens: ArrayLike | int) -> str | list[str]:
        """Tokens as text: the inverse of `to_tokens`.

        Args:
            tokens: one token, tokens [pos], or tokens [batch, pos].

        Returns:
            Digits separated by blanks; a list with one string per row for [batch, pos].
        """
        numbers = torch.as_tensor(tokens)
        if numbers.ndim > 2:
            raise ValueError(
                f"tokens: expected shape [pos] or [batch, pos], got {tuple(numbers.shape)}"
            )
        if numbers.ndim == 2:
            return [" ".join(self.to_str_tokens(row)) for row in numbers]
        return " ".join(self.to_str_tokens(numbers))

    def get_token_position(
        self,
        single_token: str | int,
        input: str | ArrayLike,
        mode: str = "first",
        prepend_bos: bool | None = None,
    ) -> int:
        """The position of a token in one sequence.

        Args:
            single_token: the token, as a number or as digits.
            input: one sequence.
            mode: "first" or "last", if the token occurs more than once.
            prepend_bos: None or False, because there is no such token.

        Returns:
            The position, from 0.
        """
        check_option("mode", mode, ("first", "last"))
        tokens = self.to_tokens(input, prepend_bos)
        if len(tokens) != 1:
            raise ValueError(f"input: expected one sequence, got {len(tokens)}")
        token = self.to_single_token(single_token)
        found = (tokens[0] == token).nonzero()[:, 0]
        if not len(found):
            raise ValueError(f"single_token: {token} does not occur in the sequence")
        return int(found[0] if mode == "first" else found[-1])
