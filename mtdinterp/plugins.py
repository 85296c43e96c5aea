"""Registration: how a task, estimator, architecture, algorithm or probe becomes known by its name.

Each function takes a class or an instance and returns it, so that it can be used as a decorator.
The built-in instances register themselves in the same way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from mtdinterp import registry

Registered = TypeVar("Registered")
Needs = Literal["model", "predictions", "checkpoint"]


@dataclass(frozen=True)
class Probe:
    """A question about a model: a function with the name and label it is shown under."""

    name: str
    label: str
    needs: Needs
    """The arguments of the probe: (model, task), (predictions, task) or a checkpoint."""
    function: Callable[..., Any]
    rank: float = 100.0
    """Its place in listings and in the report, smallest first."""


def register_task(task: type[Registered]) -> type[Registered]:
    """Register a task class under its `name`."""
    return registry.TASKS.add(_name_of(task), task)


def register_estimator(estimator: Registered) -> Registered:
    """Register an estimator, a class without constructor arguments or an instance."""
    instance = _instance(estimator)
    registry.ESTIMATORS.add(_name_of(instance), instance)
    return estimator


def register_architecture(architecture: Registered) -> Registered:
    """Register an architecture, a class without constructor arguments or an instance."""
    instance = _instance(architecture)
    registry.ARCHITECTURES.add(_name_of(instance), instance)
    return architecture


def register_algorithm(algorithm: Registered) -> Registered:
    """Register an algorithm, which is an estimator too."""
    instance = _instance(algorithm)
    registry.ALGORITHMS.add(_name_of(instance), instance)
    registry.ESTIMATORS.add(_name_of(instance), instance)
    return algorithm


def register_implementation(implementation: Registered) -> Registered:
    """Register how an architecture carries out an algorithm, under that pair of names."""
    instance: Any = _instance(implementation)
    pair = f"{instance.algorithm}/{instance.architecture}"
    registry.IMPLEMENTATIONS.add(pair, instance)
    return implementation


def register_probe(
    name: str, *, label: str, needs: Needs = "model", rank: float = 100.0
) -> Callable[[Callable[..., Registered]], Callable[..., Registered]]:
    """Register a probe: a function that returns a frozen result with a `summary()`.

    Args:
        name: what the probe is called everywhere.
        label: the question it answers, in a few words.
        needs: what it is called with; see `Probe`.
        rank: its place in listings and in the report, smallest first.

    Returns:
        A decorator that leaves the function as it is.
    """

    def register(function: Callable[..., Registered]) -> Callable[..., Registered]:
        registry.PROBES.add(name, Probe(name, label, needs, function, rank))
        return function

    return register


def _instance(given: Any) -> Any:
    return given() if isinstance(given, type) else given


def _name_of(given: Any) -> str:
    name = getattr(given, "name", None)
    if not isinstance(name, str) or not name:
        raise ValueError(f"name: expected {given!r} to have a name, got {name!r}")
    label = getattr(given, "label", None)
    if not isinstance(label, str) or not label:
        raise ValueError(f"label: expected {name!r} to have a label, got {label!r}")
    return name
