"""Named stream blocks."""

from itertools import pairwise

import pytest

from mtdinterp.models import DisentangledConfig, DisentangledTransformer, Stream
from mtdinterp.models.stream import concatenated_streams


def test_three_layers_have_the_papers_widths_and_names():
    """h¹ ∈ R^{2q+m}, h² ∈ R^{4q+3m} as in the paper's table; h³ ∈ R^{8q+7m}, where it leaves a lag
    block out."""
    q, m = 5, 4
    streams = concatenated_streams(q, m, (1, 1, 1))
    assert [stream.width for stream in streams] == [q, 2 * q + m, 4 * q + 3 * m, 8 * q + 7 * m]
    assert list(streams[2]) == [
        "token",
        "L1.token",
        "L1.lag",
        "L2.token",
        "L2.L1.token",
        "L2.L1.lag",
        "L2.lag",
    ]
    assert streams[2]["L2.L1.lag"] == slice(24, 28)


def test_width_follows_the_recurrence_for_any_heads():
    heads, d_rel = (2, 1, 3), 3
    streams = concatenated_streams(4, d_rel, heads)
    for before, after, n_heads in zip(streams, streams[1:], heads, strict=False):
        assert after.width == before.width + n_heads * (before.width + d_rel)


def test_blocks_tile_the_stream_in_order():
    stream = concatenated_streams(3, 2, (2, 2))[-1]
    edges = [(stream[name].start, stream[name].stop) for name in stream]
    assert edges[0][0] == 0
    assert edges[-1][1] == stream.width
    assert all(left[1] == right[0] for left, right in pairwise(edges))
    assert "L1.H2.lag" in stream
    assert Stream(stream.blocks).blocks == stream.blocks


def test_an_unknown_block_lists_the_known_ones():
    model = DisentangledTransformer(DisentangledConfig(vocab_size=3, length=4, n_layers=1))
    with pytest.raises(
        ValueError, match=r"block: expected one of token, L1\.token, L1\.lag; got 'L1\.lags'; did"
    ):
        model.stream["L1.lags"]
