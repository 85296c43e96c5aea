"""Scores: KL divergence, clipping of raw outputs, and their summary."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtdinterp.metrics import CLIP, clip_to_distribution, kl_divergence, score

ROWS = st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=3)


def distribution(values):
    row = torch.tensor(values, dtype=torch.float64)
    return row / row.sum()


def test_kl_of_a_case_worked_by_hand():
    truth = torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=torch.float64)
    prediction = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
    expected = [0.5 * math.log(2) + 0.5 * math.log(2 / 3), math.log(2)]
    assert kl_divergence(truth, prediction).tolist() == pytest.approx(expected, abs=1e-15)


@given(ROWS, ROWS)
def test_kl_is_at_least_half_the_squared_distance_and_zero_only_when_equal(p, q):
    """Pinsker's inequality: KL ≥ ½·‖p - q‖₁², so it is never negative and vanishes only at p =
    q."""
    p, q = distribution(p), distribution(q)
    assert kl_divergence(p, q) >= 0.5 * (p - q).abs().sum() ** 2 - 1e-14
    assert kl_divergence(p, p).abs() < 1e-15


def test_missing_what_can_happen_is_infinitely_bad_and_the_rest_is_free():
    truth = torch.tensor([0.5, 0.5, 0.0])
    assert kl_divergence(truth, torch.tensor([1.0, 0.0, 0.0])).item() == math.inf
    assert kl_divergence(truth, torch.tensor([0.5, 0.5, 0.0])).item() == 0


def test_clipping_leaves_a_distribution_and_reports_what_it_moved():
    clipped, moved = clip_to_distribution(
        torch.tensor([[0.7, 0.5, -0.2], [0.2, 0.3, 0.5]], dtype=torch.float64)
    )
    expected = torch.tensor([0.7, 0.5, CLIP], dtype=torch.float64) / (1.2 + CLIP)
    torch.testing.assert_close(clipped[0], expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(
        clipped[1], torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64), rtol=0, atol=1e-15
    )
    assert moved.tolist() == pytest.approx(
        [0.5 * (0.7 - 0.7 / 1.2 + 0.5 - 0.5 / 1.2 + 0.2), 0], abs=2e-6
    )


def test_score_is_the_mean_over_sequences_with_its_standard_error():
    truth = torch.tensor([[0.5, 0.5]] * 3, dtype=torch.float64)
    raw = torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.75, 0.25]])
    one = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    result = score(truth, raw)
    assert result.kl == pytest.approx(2 * one / 3, abs=1e-12)
    assert result.stderr == pytest.approx(one / 3, abs=1e-12)
    assert result.clipped == pytest.approx(0, abs=1e-12)


def test_one_sequence_has_no_standard_error():
    assert math.isnan(score(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.4, 0.6]])).stderr)
