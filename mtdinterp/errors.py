"""Exceptions for quantities that cannot be computed, as opposed to mistakes of the caller.

A mistake of the caller is a plain `ValueError`. The classes below say that a question was well
posed and has no answer on this task, model or machine. Code that can do without the answer
catches `CannotCompute` (or one of its kinds) by name and shows the sentence; it never catches
`ValueError`, which would turn a bug into "not computed".
"""

__all__ = [
    "CannotCompute",
    "NotApplicable",
    "NotConverged",
    "NothingToTune",
    "OptimumAtEdge",
    "PluginFailed",
    "RuleTooLarge",
]


class CannotCompute(ValueError):
    """A well-posed quantity that cannot be computed here; the message says why in one sentence."""


class NotApplicable(CannotCompute):
    """The question makes no sense for this task, model or prior."""


class NothingToTune(CannotCompute):
    """The objective does not depend on the constant."""


class OptimumAtEdge(CannotCompute):
    """The best value lies on the edge of the range that was searched."""


class RuleTooLarge(CannotCompute):
    """An exact quadrature rule would need more nodes than allowed."""


class NotConverged(CannotCompute, RuntimeError):
    """An iteration did not reach its tolerance."""


class PluginFailed(CannotCompute):
    """An extension that a plugin provides failed; the message names the plugin."""
