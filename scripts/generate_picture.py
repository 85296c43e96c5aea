"""Draw the README's picture, docs/images/overview.png: one zoo model compared with estimators."""

from pathlib import Path
from typing import Any

from jaxtyping import Float64
from torch import Tensor

from mtdinterp import Checkpoint, explain, load_checkpoint
from mtdinterp.metrics import score
from mtdinterp.plotting import saved_figure
from mtdinterp.readings import attention_of, mean_over_heads, predictions_of
from mtdinterp.registry import ESTIMATORS
from mtdinterp.style import FAINT, INK, style_of
from mtdinterp.tasks import Sample

NAME = "disentangled-m4-T64"
SEED = 7
N_SEQUENCES = 512
COMPARED = {"uniform": "uniform weights", "one_step": "one step", "exact_bayes": "exact Bayes"}
"""Estimators in the picture, with labels short enough for it."""
TARGET = Path(__file__).parent.parent / "docs" / "images" / "overview.png"

Weights = dict[str, Float64[Tensor, "batch lag"]]


def main() -> None:
    """Draw the picture."""
    checkpoint = load_checkpoint(NAME)
    length = checkpoint.model.config.length
    data = checkpoint.task.sample(N_SEQUENCES, length, seed=SEED)
    weights = weights_of(checkpoint, data)
    with saved_figure(10.4, 3.0, TARGET) as figure:
        first, second, third = figure.subplots(1, 3, width_ratios=(1.15, 1, 1))
        draw_sequence(first, weights)
        draw_agreement(second, weights)
        draw_scores(third, checkpoint, data, weights)


def weights_of(checkpoint: Checkpoint, data: Sample) -> Weights:
    """The true weights, the model's attention over the lags, and the estimators' weights."""
    model = checkpoint.model
    order = checkpoint.task.n_components
    evidence = checkpoint.task.evidence(data.tokens)
    last = model.config.n_layers - 1
    found = attention_of(model, data.tokens, log_at_last=[last])
    attention = mean_over_heads(found.log_at_last[last]).exp()[:, :order].double()
    fitted = explain(model, checkpoint.task)
    return {
        "truth": data.weights,
        "model": attention / attention.sum(-1, keepdim=True),
        "uniform": ESTIMATORS["uniform"].weights(evidence),
        "one_step": fitted.algorithm.weights(evidence, **fitted.constants),
        "exact_bayes": ESTIMATORS["exact_bayes"].weights(evidence),
    }


def draw_sequence(axis: Any, weights: Weights) -> None:
    """The weights of the first sequence, as bars by lag."""
    shown = {"truth": "truth", "model": "model's attention", **COMPARED}
    del shown["uniform"]
    width = 0.8 / len(shown)
    for place, (name, label) in enumerate(shown.items()):
        lags = range(1, weights[name].shape[1] + 1)
        centres = [lag + (place - (len(shown) - 1) / 2) * width for lag in lags]
        colour = style_of(name).colour
        # The truth is hollow: its colour is close to that of the exact posterior mean.
        face = "white" if name == "truth" else colour
        axis.bar(centres, weights[name][0], width, color=face, edgecolor=colour, label=label)
    axis.set_title("One sequence: weights inferred in context")
    axis.set_xlabel("lag")
    axis.set_ylabel("weight")
    axis.set_xticks(list(lags))
    axis.legend(fontsize=8)


def draw_agreement(axis: Any, weights: Weights) -> None:
    """The model's weights against those of one mirror-descent step, a point per lag."""
    axis.plot([0, 1], [0, 1], color=FAINT, linewidth=1)
    predicted = weights["one_step"].flatten()
    seen = weights["model"].flatten()
    axis.scatter(predicted, seen, s=4, alpha=0.4, color=style_of("model").colour, linewidths=0)
    axis.set_title(f"{N_SEQUENCES} sequences: the algorithm")
    axis.set_xlabel("one mirror-descent step, softmax(β·Γ)")
    axis.set_ylabel("model's attention")
    axis.set_aspect("equal")


def draw_scores(axis: Any, checkpoint: Checkpoint, data: Sample, weights: Weights) -> None:
    """KL to the truth of the model and the estimators, with standard errors."""
    evidence = checkpoint.task.evidence(data.tokens)
    scores = {
        label: score(data.next_probs, evidence.predict(weights[name]))
        for name, label in COMPARED.items()
    }
    scores["model"] = score(data.next_probs, predictions_of(checkpoint.model, data.tokens))
    names = {label: name for name, label in COMPARED.items()} | {"model": "model"}
    ordered = sorted(scores, key=lambda label: scores[label].kl, reverse=True)
    values = [scores[label].kl for label in ordered]
    errors = [scores[label].stderr for label in ordered]
    colours = [style_of(names[label]).colour for label in ordered]
    axis.barh(ordered, values, xerr=errors, color=colours, ecolor=INK, height=0.6)
    axis.set_title("How well it predicts")
    axis.set_xlabel("KL to the true next-token distribution")


if __name__ == "__main__":
    main()
