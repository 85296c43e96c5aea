"""What a check is: one tool of TransformerLens, tried on a small model of each architecture.

A check that is declared to work compares numbers and raises if they differ. A check that is
declared not to work must raise the declared error; if it stops raising, the declaration is out of
date and `outcome` says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from mtdinterp import MTDTask
from mtdinterp.construction import one_step, one_step_standard
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    LensTransformer,
    StandardConfig,
    StandardTransformer,
)

ARCHITECTURES = ("disentangled", "standard")
VOCAB, LENGTH, N_LAYERS, N_HEADS, ORDER = 4, 12, 2, 2, 2
WORKS, WITH_NOTE, NOT_APPLICABLE = "works", "works with a note", "does not apply"


class Setting:
    """A model with random weights, sequences for it, and a construction."""

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture
        self.model = random_model(architecture)
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(VOCAB, (3, LENGTH), generator=generator)
        self.other = torch.randint(VOCAB, (3, LENGTH), generator=generator)

    @property
    def is_disentangled(self) -> bool:
        return self.architecture == "disentangled"

    @cached_property
    def task(self) -> MTDTask:
        return MTDTask.random(vocab_size=VOCAB, order=ORDER, seed=0)

    @cached_property
    def construction(self) -> LensTransformer:
        """A model whose outputs after the last position are probabilities."""
        build = one_step if self.is_disentangled else one_step_standard
        return build(self.task.transition, ORDER, LENGTH, 4.0, dtype=torch.float64)

    @cached_property
    def prompts(self) -> Tensor:
        """Sequences that the construction predicts."""
        return self.task.sample(8, LENGTH, seed=1).tokens


def random_model(architecture: str, **settings: object) -> LensTransformer:
    """A model in float64, with weights large enough that every intervention is felt."""
    shape = {"vocab_size": VOCAB, "length": LENGTH, "n_layers": N_LAYERS, "n_heads": N_HEADS}
    if architecture == "disentangled":
        model = DisentangledTransformer(DisentangledConfig(**{**shape, "d_rel": 3, **settings}))
    else:
        model = StandardTransformer(StandardConfig(**{**shape, "d_model": 8, **settings}))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.double().parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.5 * noise)
    return model.eval()


@dataclass(frozen=True)
class Check:
    """One row of the page; see `Section.works` and `Section.refused` for the fields."""

    section: str
    tool: str
    run: Callable[[Setting], None]
    note: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    error: type[Exception] | tuple[type[Exception], ...] = Exception

    def remark(self, architecture: str) -> str:
        """The note or the reason for an architecture, or nothing."""
        return self.reasons.get(architecture) or self.notes.get(architecture) or self.note

    def declared(self, architecture: str) -> str:
        """WORKS, WITH_NOTE or NOT_APPLICABLE, as the check was declared."""
        if architecture in self.reasons:
            return NOT_APPLICABLE
        return WITH_NOTE if self.remark(architecture) else WORKS


CHECKS: list[Check] = []


class Section:
    """A heading of the page and the checks below it."""

    def __init__(self, title: str) -> None:
        self.title = title

    def works(self, tool: str, note: str = "", **notes: str) -> Callable:
        """Declare a check that passes.

        Args:
            tool: what is tried, as Markdown.
            note: one sentence that a user of the tool should know, on both architectures.
            **notes: sentences for one architecture, by its name.
        """

        def register(run: Callable[[Setting], None]) -> Callable[[Setting], None]:
            CHECKS.append(Check(self.title, tool, run, note, notes))
            return run

        return register

    def refused(
        self,
        tool: str,
        error: type[Exception] | tuple[type[Exception], ...],
        reason: str = "",
        **reasons: str,
    ) -> Callable:
        """Declare a check that raises.

        Args:
            tool: what is tried, as Markdown.
            error: the error that it raises; AssertionError if its numbers are wrong.
            reason: one sentence that says why, on both architectures.
            **reasons: the same for one architecture; the check passes on the other one.
        """
        everywhere = dict.fromkeys(ARCHITECTURES, reason) if reason else reasons

        def register(run: Callable[[Setting], None]) -> Callable[[Setting], None]:
            CHECKS.append(Check(self.title, tool, run, reasons=everywhere, error=error))
            return run

        return register


def outcome(check: Check, architecture: str) -> str:
    """Run a check.

    Args:
        check: the check.
        architecture: the architecture of the model that it is run on.

    Returns:
        WORKS, WITH_NOTE or NOT_APPLICABLE; what contradicts the declaration is raised.
    """
    setting = Setting(architecture)
    declared = check.declared(architecture)
    if declared != NOT_APPLICABLE:
        check.run(setting)
        return declared
    try:
        check.run(setting)
    except check.error:
        return declared
    raise AssertionError(f"{check.tool} is declared not to work on {architecture}, but it does")


def same(found: Tensor, expected: Tensor) -> None:
    """Two tensors agree; TransformerLens stores some results in float32."""
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-5, atol=1e-6)


def metric(outputs: Tensor) -> Tensor:
    """A number that is linear in the outputs of the last position."""
    reading = torch.tensor([1.0, -2.0, 0.5, 0.3], dtype=outputs.dtype)
    return (outputs[:, -1] @ reading).mean()


def each_raises(error: type[Exception] | tuple, calls: list[Callable[[], object]]) -> None:
    """Raise what the last call raises, provided that every call raises `error`."""
    for call in calls[:-1]:
        try:
            call()
        except error:
            continue
        return
    calls[-1]()
