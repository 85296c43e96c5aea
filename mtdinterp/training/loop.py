"""The training loop: steps, evaluations, and a state from which a run resumes bit-identically."""

import json
import logging
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from mtdinterp.models import LensTransformer, prediction_loss
from mtdinterp.native.threads import torch_on_one_thread
from mtdinterp.readings import read, readable_sequences
from mtdinterp.tasks import Task
from mtdinterp.training.data import Batch, batches
from mtdinterp.training.evaluation import HeldOut
from mtdinterp.training.recipes import Recipe

log = logging.getLogger("mtdinterp")
EARLY_PARAMETERS = ("embed.", "blocks.0.")
"""Prefixes of the parameters that always train at the full learning rate."""


class DivergedError(ValueError):
    """Training produced values that are not finite; whatever was saved before is intact."""


@dataclass(eq=False)
class Trainer:
    """A model in training.

    Everything that decides the next step is in the model, the optimizer and `step`.
    """

    model: LensTransformer
    task: Task
    recipe: Recipe
    seed: int
    held_out: HeldOut
    step: int = 0
    """Steps taken so far."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry per evaluation."""
    seconds: float = 0.0
    """Time spent in training so far, over all sessions."""
    losses: list[float] = field(default_factory=list)
    """Loss of every step since the last evaluation."""

    def __post_init__(self) -> None:
        if self.model.config.logits != (self.recipe.loss == "cross-entropy"):
            raise ValueError(
                f"loss: {self.recipe.loss} needs a model whose configuration has logits="
                f"{not self.model.config.logits}: cross-entropy trains logits, mse probabilities"
            )
        self.model.to(self.recipe.device).train()
        self.fused = self.model.attention_path(training=True).name != "eager"
        single = all(parameter.dtype == torch.float32 for parameter in self.model.parameters())
        self.optimizer = torch.optim.Adam(
            [{"params": group} for group in self.parameter_groups()],
            lr=self.recipe.learning_rate,
            betas=self.recipe.adam_betas,
            fused=single,
        )

    @property
    def finished(self) -> bool:
        """Whether all steps of the recipe have been taken."""
        return self.step >= self.recipe.steps

    def run(
        self,
        after_step: Callable[["Trainer"], bool] = lambda trainer: True,
        after_evaluation: Callable[["Trainer"], None] = lambda trainer: None,
    ) -> None:
        """Train to the end, or until `after_step` returns False."""
        log.info("mtdinterp: attention path: %s", self.model.attention_path(training=True))
        if self.step == 0 and not self.history:
            self.evaluate()
            after_evaluation(self)
        clock = time.perf_counter()
        source = batches(self.task, self.model.config.length, self.recipe, self.seed, self.step)
        try:
            for batch in source:
                # With compiled kernels, torch only runs small operations, which are faster with one
                # thread.
                with torch_on_one_thread() if self.fused else nullcontext():
                    self.losses.append(self.take_step(batch))
                self.step += 1
                now = time.perf_counter()
                self.seconds += now - clock
                clock = now
                if self.step % self.recipe.evaluate_every == 0 or self.finished:
                    self.evaluate()
                    after_evaluation(self)
                if not after_step(self):
                    return
        finally:
            source.close()  # type: ignore[attr-defined]

    def parameter_groups(self) -> list[list[nn.Parameter]]:
        """The embedding and layer 1, and everything after; one group if they share their rate."""
        if self.recipe.later_rate == 1:
            # One group, as in optimizer states that were saved before the rates could differ.
            return [list(self.model.parameters())]
        early: list[nn.Parameter] = []
        later: list[nn.Parameter] = []
        for name, parameter in self.model.named_parameters():
            group = early if name.startswith(EARLY_PARAMETERS) else later
            group.append(parameter)
        return [early, later]

    def take_step(self, batch: Batch) -> float:
        """One update of the parameters; returns the loss before it."""
        self._set_learning_rates()
        self.optimizer.zero_grad(set_to_none=True)
        n_sequences = len(batch.tokens)
        size = self.recipe.micro_batch_size or n_sequences
        micro_batches = zip(batch.tokens.split(size), batch.targets.split(size), strict=True)
        total = 0.0
        for tokens, targets in micro_batches:
            share = len(tokens) / n_sequences
            loss = prediction_loss(
                self.model,
                tokens.to(self.recipe.device),
                targets.to(self.recipe.device),
                self.recipe.loss,
            )
            (loss if share == 1 else loss * share).backward()
            total += loss.item() * share
        if not math.isfinite(total):
            raise self.diverged(f"the loss is {total}")
        self.optimizer.step()
        return total

    def _set_learning_rates(self) -> None:
        rate = self.recipe.rate_at(self.step)
        early, *later = self.optimizer.param_groups
        early["lr"] = rate
        for group in later:
            group["lr"] = rate * self.recipe.later_share(self.step)

    def check_finite(self) -> None:
        """Raise DivergedError unless all parameters are finite."""
        if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
            raise self.diverged("weights are not finite")

    def diverged(self, what: str) -> DivergedError:
        """The error to raise when something is not finite, with advice."""
        return DivergedError(
            f"{what} at step {self.step}: try a smaller learning rate than "
            f"{self.recipe.learning_rate:g}, or a longer warm-up"
        )

    def evaluate(self) -> dict[str, Any]:
        """Score and read the model, and append the result to the history."""
        self.check_finite()
        result = self.held_out.score(self.model)
        if not math.isfinite(result.kl):
            raise self.diverged("the predictions are not finite")
        reading = read(self.model, self.task, readable_sequences(self.held_out.data.tokens))
        entry = {
            "step": self.step,
            "loss": sum(self.losses) / len(self.losses) if self.losses else None,
            "kl": result.kl,
            "kl_stderr": result.stderr,
            "clipped": result.clipped,
            "ratio": self.held_out.ratio(result.kl),
            "beta": reading.beta.value,
            "beta_r2": reading.beta.r2,
            "gain": reading.gain.value,
            "gain_r2": reading.gain.r2,
            "branch": reading.branch,
            "transition_kl": reading.transition_kl,
            "learning_rate": self.recipe.rate_at(self.step),
            "seconds": self.seconds,
        }
        self.losses = []
        self.history.append({key: _for_json(value) for key, value in entry.items()})
        return self.history[-1]

    def state(self) -> dict[str, Any]:
        """Everything that resuming needs, as tensors and plain values.

        Raises:
            DivergedError: if the weights are not finite; such a state could not be resumed.
        """
        self.check_finite()
        weights = self.model.state_dict()
        return {
            "step": self.step,
            "model": {name: tensor.detach().cpu() for name, tensor in weights.items()},
            "optimizer": self.optimizer.state_dict(),
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "history": json.dumps(self.history),
            "seconds": self.seconds,
            **self.circumstances(),
        }

    def circumstances(self) -> dict[str, Any]:
        """Properties of the machine that affect the last bits of a step."""
        return {
            "threads": torch.get_num_threads(),
            "fused": self.fused,
            "torch": str(torch.__version__),
        }


def _for_json(value: Any) -> Any:
    """The value, or None for NaN (a reading that does not apply), which JSON cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
