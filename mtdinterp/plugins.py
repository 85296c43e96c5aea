"""Registration of tasks, estimators, architectures, algorithms and probes under a name.

Each `register_*` function takes a class or an instance and returns it, so that it can be used as a
decorator. The built-in instances register themselves in the same way. A package announces its
extensions as entry points (`mtdinterp.probes` and so on; see docs/extending.md); a single file is
loaded with `load_plugin` or `--plugin`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from mtdinterp import registry
from mtdinterp.providers import NAME, PluginError, PluginWarning, load_plugin

__all__ = [
    "Needs",
    "PluginError",
    "PluginWarning",
    "Probe",
    "load_plugin",
    "register_algorithm",
    "register_architecture",
    "register_estimator",
    "register_implementation",
    "register_probe",
    "register_task",
]

Registered = TypeVar("Registered")
Needs = Literal["model", "predictions", "checkpoint"]
NEEDS = get_args(Needs)
RESERVED = frozenset(
    [
        "algorithm",
        "attention",
        "beta",
        "checkpoint",
        "circuit",
        "command",
        "development",
        "explanation",
        "interchanges",
        "kl",
        "latents",
        "left_out",
        "made_with",
        "model",
        "models",
        "name",
        "not_computed",
        "program",
        "recipe",
        "seed",
        "seeds",
        "steering",
        "sweep",
        "task",
        "transition",
        "transplants",
        "verdict",
        "versions",
        "weights_sha256",
    ]
)
"""Keys of report.json and of `probe --json`, which no probe may take."""


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
    """Register an algorithm; it is registered as an estimator as well."""
    instance = _instance(algorithm)
    registry.ALGORITHMS.add(_name_of(instance), instance)
    registry.ESTIMATORS.add(_name_of(instance), instance)
    return algorithm


def register_implementation(implementation: Registered) -> Registered:
    """Register how an architecture carries out an algorithm, under that pair of names."""
    instance: Any = _instance(implementation)
    _check_name(instance.algorithm)
    _check_name(instance.architecture)
    registry.IMPLEMENTATIONS.add(instance.name, instance)
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

    _check_name(name)
    if name in RESERVED:
        raise ValueError(f"name: {name!r} is a key of report.json; choose another one")
    _check_text(f"label of the probe {name!r}", label)
    if needs not in NEEDS:
        raise ValueError(f"needs: expected one of {', '.join(NEEDS)}; got {needs!r}")

    def register(function: Callable[..., Registered]) -> Callable[..., Registered]:
        registry.PROBES.add(name, Probe(name, label, needs, function, rank))
        return function

    return register


def _instance(given: Any) -> Any:
    return given() if isinstance(given, type) else given


def _name_of(given: Any) -> str:
    """The name of an extension, which must also have a label."""
    name = getattr(given, "name", None)
    if not isinstance(name, str) or not name:
        raise ValueError(f"name: expected {given!r} to have a name, got {name!r}")
    _check_name(name)
    _check_text(f"label of {name!r}", getattr(given, "label", None))
    return name


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            f"name: expected letters, digits, hyphens, dots and underscores, got {name!r:.90}"
        )


def _check_text(what: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what}: expected a non-empty string, got {value!r}")
