"""The frozen configuration that all architectures share, checked when it is created.

Every architecture extends `ModelConfig` by its own settings, in its own module.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar

from mtdinterp.checks import check_count, check_option

MOST_LAYERS = 100
MOST_PARAMETERS = 25 * 10**6
"""A configuration that asks for more is refused before memory is reserved for it. The bounds on the
sizes of files in `checkpoint_files` follow from it."""
MOST_WIDTH = 10**5
"""Columns of the residual stream, many of which may have names."""

SomeConfig = TypeVar("SomeConfig", bound="ModelConfig")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The settings of every architecture; subclasses add theirs."""

    vocab_size: int
    length: int
    """The longest sequence that the position tables cover (the paper's T)."""
    n_layers: int = 3
    n_heads: int | tuple[int, ...] = 1
    """Heads per layer: one number for all layers, or one number for each layer."""
    d_mlp: int = 0
    """Width of the hidden layer between the last attention layer and the output; 0 for none."""
    logits: bool = False
    """Whether outputs are logits (trained by cross-entropy) or probabilities, as in the paper."""
    exact_length: bool = False
    """Whether the model is a construction, which is exact at this length and refuses others."""

    architecture: ClassVar[str]
    """The name that the architecture is registered under."""

    def __post_init__(self) -> None:
        self._count("vocab_size", minimum=2)
        self._count("length")
        self._count("n_layers", maximum=MOST_LAYERS)
        self._count_heads()
        self._count("d_mlp", minimum=0)
        for name in ("logits", "exact_length"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ValueError(f"{name}: expected True or False, got {value!r:.60}")

    @property
    def heads_per_layer(self) -> tuple[int, ...]:
        """The number of heads of every layer."""
        if isinstance(self.n_heads, tuple):
            return self.n_heads
        return (self.n_heads,) * self.n_layers

    def to_dict(self) -> dict[str, Any]:
        """The settings and the name of the architecture, as JSON can hold them."""
        return {"architecture": self.architecture, **asdict(self)}

    @classmethod
    def from_dict(cls: type[SomeConfig], values: Mapping[str, Any]) -> SomeConfig:
        """The inverse of `to_dict`; an unknown field is an error that lists the known ones."""
        known = [field.name for field in fields(cls)]
        settings = {name: value for name, value in values.items() if name != "architecture"}
        for name in settings:
            check_option(f"{cls.architecture} config field", name, known)
        return cls(**{name: _as_tuple(value) for name, value in settings.items()})

    def _count(self, name: str, minimum: int = 1, maximum: int = MOST_PARAMETERS) -> None:
        """Check a field and store it as a plain int, which JSON can hold."""
        value = check_count(name, getattr(self, name), minimum, maximum)
        object.__setattr__(self, name, value)

    def _count_heads(self) -> None:
        if not isinstance(self.n_heads, list | tuple):
            self._count("n_heads", maximum=MOST_WIDTH)
            return
        if len(self.n_heads) != self.n_layers:
            raise ValueError(
                f"n_heads: expected one number, or one per layer ({self.n_layers}), got "
                f"{self.n_heads!r:.60}"
            )
        heads = tuple(check_count("n_heads", number, 1, MOST_WIDTH) for number in self.n_heads)
        object.__setattr__(self, "n_heads", heads)

    def _check_size(self, n_parameters: int, width: int) -> None:
        """Refuse a model that is too large before anything is allocated for it.

        Args:
            n_parameters: the number of its parameters.
            width: columns of its residual stream.
        """
        if n_parameters > MOST_PARAMETERS:
            # The number itself may have hundreds of digits.
            raise ValueError(f"this model would have more than {MOST_PARAMETERS:,} parameters")
        if width > MOST_WIDTH:
            raise ValueError(
                f"expected a residual stream of at most {MOST_WIDTH:,} columns, got {width:,}"
            )


def _as_tuple(value: Any) -> Any:
    """Lists back to tuples, for a configuration that was read from JSON."""
    if not isinstance(value, list):
        return value
    return tuple(_as_tuple(item) for item in value)
