"""Divergence from a model's raw predictions, which need not be distributions."""

import torch

from mtdinterp.metrics import clip_to_distribution, kl_divergence
from mtdinterp.tasks import MTDTask


def test_predictions_below_zero_are_clipped_like_the_estimator():
    task = MTDTask.random(vocab_size=4, order=2, seed=1)
    evidence = task.evidence(task.sample(3, 20, seed=2).tokens)
    raw = torch.tensor([[0.7, -0.01, 0.2, 0.1]], dtype=torch.float64).expand(3, -1)
    found = evidence.divergence(raw, evidence.uniform)
    clipped, _ = clip_to_distribution(raw)
    expected = kl_divergence(clipped, evidence.predict(evidence.uniform))
    assert torch.allclose(found, expected)
    assert found.isfinite().all()
