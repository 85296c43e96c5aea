"""Named blocks of the residual stream.

The disentangled transformer never adds: every head appends its output, so each column of the stream
has an origin, and its name says which. `token` is the input; `L1.token` is what layer 1 attended to
in `token`, `L1.lag` what it attended to in its value table; `L2.L1.lag` is layer 2's average of
`L1.lag`, and so on. With several heads the head is named too: `L1.H2.lag`. Nothing else in the
project counts columns.
"""

from collections.abc import Iterator, Mapping, Sequence

from mtdinterp.checks import check_option


class Stream(Mapping[str, slice]):
    """Block names in order, each with the slice of columns it occupies."""

    def __init__(self, blocks: Sequence[tuple[str, int]]) -> None:
        """`blocks` lists name and width, in the order of the columns."""
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
        inside = ", ".join(
            f"{name}[{part.start}:{part.stop}]" for name, part in self._slices.items()
        )
        return f"Stream({inside})"

    def width_of(self, name: str) -> int:
        part = self[name]
        return part.stop - part.start

    @property
    def blocks(self) -> tuple[tuple[str, int], ...]:
        """Name and width of every block, in order: what `Stream` is made from."""
        return tuple((name, self.width_of(name)) for name in self)


def concatenated_streams(vocab_size: int, d_rel: int, heads: Sequence[int]) -> list[Stream]:
    """The stream before layer 1, after layer 1, …, after the last: h ← concat(h, head 1, …, head
    H).

    A head's output is a copy of every block it read, followed by its own lag block, so the width
    grows as d_l = d_{l-1} + H_l·(d_{l-1} + d_R).
    """
    blocks: list[tuple[str, int]] = [("token", vocab_size)]
    streams = [Stream(blocks)]
    for layer, n_heads in enumerate(heads, start=1):
        written: list[tuple[str, int]] = []
        for head in range(1, n_heads + 1):
            prefix = f"L{layer}." if n_heads == 1 else f"L{layer}.H{head}."
            written += [(prefix + name, width) for name, width in blocks] + [
                (prefix + "lag", d_rel)
            ]
        blocks = blocks + written
        streams.append(Stream(blocks))
    return streams
