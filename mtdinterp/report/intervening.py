"""The interventions of a report, from interchanges to the circuit and the program."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mtdinterp.decompile import check_decompilable, decompile
from mtdinterp.errors import CannotCompute, NotApplicable
from mtdinterp.explanation import Explanation
from mtdinterp.interventions import (
    dose_response,
    interchange,
    minimal_circuit,
    patch_sweep,
    transplant_attention,
)
from mtdinterp.models.lens import LensTransformer
from mtdinterp.tasks import Task
from mtdinterp.tasks.base import Sample

PAIR_SEEDS = (12, 13)
"""Seeds of the base sequences, which are patched, and of the source sequences."""
SWEPT = 8
"""Pairs of sequences in the patch sweep, which takes a run per layer, position and block."""
CIRCUIT_FAITHFULNESS = 0.95
CIRCUIT_LAYERS = 3
"""Deeper models have too many edges to search for a circuit in the time of a report."""
PROGRAM_CELLS = 2**21
"""Sequences times squared length on which a program is measured, as far as `PROGRAM_SEQUENCES`
allow."""
PROGRAM_SEQUENCES = (64, 512)
"""The least and the most."""
PROGRAM_LENGTH = 256
"""Decompiling longer models takes longer than a report."""
QUICK_LEAVES_OUT = ("the interchanges", "the patch sweep", "the minimal circuit", "the program")
"""What a quick report leaves out, in words: the interventions that take longest."""

Run = Callable[[], Any]
"""A function that returns the result of one intervention."""


def run_interventions(
    model: LensTransformer, task: Task, explanation: Explanation, seed: int, quick: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """Interchanges, steering, transplants, the patch sweep, the circuit and the program.

    Args:
        model: the model to intervene on.
        task: the model's task.
        explanation: the explanation of the model.
        seed: seed for drawing the sequences.
        quick: whether to leave out `QUICK_LEAVES_OUT`.

    Returns:
        Results by name, and why the others could not be computed.
    """
    planned = _Plan.draw(model, task, explanation, seed)
    runs = planned.steering_and_transplants()
    if not quick:
        runs = planned.interchanges() | runs | planned.searches()
    results: dict[str, Any] = {}
    not_computed: dict[str, str] = {}
    for name, run in runs.items():
        try:
            # The sequences were given to the intervention, so only this function knows their seed.
            results[name] = replace(run(), seed=seed)
        except CannotCompute as error:
            not_computed[name] = str(error)
    return results, not_computed


@dataclass(frozen=True, eq=False)
class _Plan:
    """The sequences of all interventions on one model, and the runs on them by name."""

    model: LensTransformer
    task: Task
    explanation: Explanation
    seed: int
    base: Int[Tensor, "batch pos"]
    source: Int[Tensor, "batch pos"]
    fresh: Sample
    """Sequences with their true next-token distributions."""

    @classmethod
    def draw(
        cls, model: LensTransformer, task: Task, explanation: Explanation, seed: int
    ) -> "_Plan":
        """Draw the sequences: fewer if they are long.

        Args:
            model: the model to intervene on.
            task: the model's task.
            explanation: the model's.
            seed: seed for drawing the sequences.

        Returns:
            The plan.
        """
        length = model.config.length
        count = 128 if length <= 64 else 32
        base = task.sample(count, length, seed=[PAIR_SEEDS[0], seed]).tokens
        source = task.sample(count, length, seed=[PAIR_SEEDS[1], seed]).tokens
        fresh = task.sample(count, length, seed=[PAIR_SEEDS[1], seed, 1])
        return cls(model, task, explanation, seed, base, source, fresh)

    def interchanges(self) -> dict[str, Run]:
        """One interchange per variable of the algorithm."""
        variables = self.explanation.algorithm.variables
        return {f"interchange {entry.name}": self._interchange(entry.name) for entry in variables}

    def steering_and_transplants(self) -> dict[str, Run]:
        """The fast interventions: steering to the first lag, and one transplant per layer."""
        vertex = torch.eye(self.task.n_components, dtype=torch.float64)[0]
        runs: dict[str, Run] = {}
        runs["steering"] = lambda: dose_response(self.model, self.task, self.base, vertex)
        for layer in range(len(self.explanation.roles or ())):
            runs[f"transplant {layer + 1}"] = self._transplant(layer)
        return runs

    def searches(self) -> dict[str, Run]:
        """The patch sweep, the search for a circuit, and the program."""
        return {"sweep": self._sweep, "circuit": self._circuit, "program": self._program}

    def _interchange(self, variable: str) -> Run:
        return lambda: interchange(
            self.model,
            self.task,
            self.base,
            self.source,
            variable,
            seed=self.seed,
            explanation=self.explanation,
        )

    def _transplant(self, layer: int) -> Run:
        return lambda: transplant_attention(
            self.model, self.task, self.fresh, layer, explanation=self.explanation
        )

    def _sweep(self) -> Any:
        base = self.base[:SWEPT]
        corrupted = self.source[:SWEPT].clone()
        # Both runs end in the same tokens, so that only what was inferred differs.
        n_last = self.task.n_components
        corrupted[:, -n_last:] = base[:, -n_last:]
        return patch_sweep(self.model, base, corrupted)

    def _circuit(self) -> Any:
        if len(self.model.blocks) > CIRCUIT_LAYERS:
            raise NotApplicable(
                f"with more than {CIRCUIT_LAYERS} layers there are too many edges to try one by one"
            )
        some = self.base[: 32 if self.model.config.length <= 64 else 8]
        return minimal_circuit(self.model, some, CIRCUIT_FAITHFULNESS, explanation=self.explanation)

    def _program(self) -> Any:
        check_decompilable(self.model, self.task)
        length = self.model.config.length
        if length > PROGRAM_LENGTH:
            raise NotApplicable(
                f"reports decompile models up to T = {PROGRAM_LENGTH}; for longer ones, use "
                "`mtdinterp decompile`"
            )
        least, most = PROGRAM_SEQUENCES
        count = max(least, min(most, PROGRAM_CELLS // length**2))
        return decompile(self.model, self.task, n_sequences=count, seed=self.seed)
