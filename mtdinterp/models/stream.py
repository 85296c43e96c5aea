"""Named blocks of the residual stream.

In the disentangled transformer every head appends its output to the stream, so each column has one
origin, and the name of its block states it. `token` is the input; `L1.token` is what layer 1
gathered from `token`, `L1.lag` what it gathered from its value table; `L2.L1.lag` is layer 2's
average of `L1.lag`, and so on. With several heads the name includes the head: `L1.H2.lag`. The rest
of the project addresses columns by these names only.
"""

from collections.abc import Iterator, Mapping, Sequence

from mtdinterp.checks import check_option


class Stream(Mapping[str, slice]):
    """Block names in column order, each with the slice of columns that it occupies."""

    def __init__(self, blocks: Sequence[tuple[str, int]]) -> None:
        """
        Args:
            blocks: name and width of every block, in column order.
        """
        self._slices: dict[str, slice] = {}
        start = 0
        for name, width in blocks:
            if name in self._slices:
                raise ValueError(f"stream: block {name!r} is listed twice")
            self._slices[name] = slice(start, start + width)
            start += width
        self.width = start

    def __getitem__(self, name: str) -> slice:
        return self._slices[check_option("block", name, self._slices)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def __len__(self) -> int:
        return len(self._slices)

    def __contains__(self, name: object) -> bool:
        return name in self._slices

    def __repr__(self) -> str:
        parts = self._slices.items()
        listed = ", ".join(f"{name}[{part.start}:{part.stop}]" for name, part in parts)
        return f"Stream({listed})"

    def width_of(self, name: str) -> int:
        """Number of columns of a block."""
        part = self[name]
        return part.stop - part.start

    @property
    def blocks(self) -> tuple[tuple[str, int], ...]:
        """Name and width of every block, in column order: the argument of `Stream`."""
        return tuple((name, self.width_of(name)) for name in self)


def concatenated_streams(vocab_size: int, d_rel: int, heads: Sequence[int]) -> list[Stream]:
    """The streams of a disentangled transformer: each layer makes h ← concat(h, head 1, …, head H).

    A head's output is a copy of every block that it read, followed by its own lag block, so the
    width grows as d_l = d_{l-1} + H_l·(d_{l-1} + d_R).

    Args:
        vocab_size: width of the first stream, one-hot tokens.
        d_rel: width of every lag block, d_R.
        heads: number of heads of every layer.

    Returns:
        The stream before layer 1, after layer 1, …, after the last layer.
    """
    blocks: list[tuple[str, int]] = [("token", vocab_size)]
    streams = [Stream(blocks)]
    for layer, n_heads in enumerate(heads, start=1):
        written: list[tuple[str, int]] = []
        for head in range(1, n_heads + 1):
            prefix = f"L{layer}." if n_heads == 1 else f"L{layer}.H{head}."
            written += [(prefix + name, width) for name, width in blocks]
            written.append((prefix + "lag", d_rel))
        blocks = blocks + written
        streams.append(Stream(blocks))
    return streams
