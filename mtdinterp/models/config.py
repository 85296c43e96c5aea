"""Frozen configurations of the two architectures, checked when they are made."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar

from mtdinterp.checks import check_count, check_option

MOST_LAYERS = 100
MOST_PARAMETERS = 10**9

SomeConfig = TypeVar("SomeConfig", bound="ModelConfig")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What both architectures share."""

    vocab_size: int
    length: int
    """The longest sequence the position tables cover (the paper's T)."""
    n_layers: int = 3
    d_mlp: int = 0
    """Width of a hidden layer between the last attention layer and the output; 0 for none, as in
    the paper."""
    logits: bool = False
    """Whether outputs are logits of a softmax (a model trained by cross-entropy) or probabilities,
    as in the paper."""
    exact_length: bool = False
    """A constructed model computes its formula only at this very length and refuses others."""

    architecture: ClassVar[str]

    def __post_init__(self) -> None:
        self._count("vocab_size", minimum=2)
        self._count("length")
        self._count("n_layers")
        if self.n_layers > MOST_LAYERS:
            raise ValueError(f"n_layers: expected at most {MOST_LAYERS}, got {self.n_layers}")
        self._count("d_mlp", minimum=0)
        for name in ("logits", "exact_length"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: expected True or False, got {getattr(self, name)!r}")

    def _check_size(self, n_parameters: int) -> None:
        """Refuse what no machine here can hold, before anything is allocated for it."""
        if n_parameters > MOST_PARAMETERS:
            raise ValueError(
                f"this model would have {float(n_parameters):.2g} parameters, "
                f"more than {MOST_PARAMETERS:.0e}"
            )

    def _count(self, name: str, minimum: int = 1) -> None:
        """Check a field and keep it as a plain int, which JSON can hold."""
        object.__setattr__(self, name, check_count(name, getattr(self, name), minimum))

    def to_dict(self) -> dict[str, Any]:
        return {"architecture": self.architecture, **asdict(self)}

    @classmethod
    def from_dict(cls: type[SomeConfig], values: Mapping[str, Any]) -> SomeConfig:
        """The inverse of `to_dict`; an unknown field is an error that lists the known ones."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name != "architecture":
                check_option(f"{cls.architecture} config field", name, known)
        return cls(
            **{name: _as_tuple(value) for name, value in values.items() if name != "architecture"}
        )


@dataclass(frozen=True, kw_only=True)
class DisentangledConfig(ModelConfig):
    """One-hot tokens, a concatenated stream, one attention matrix a head, learned relative
    tables."""

    n_heads: int | tuple[int, ...] = 1
    """Heads a layer: one number for all layers, or one a layer."""
    d_rel: int = 4
    """Width of the value table, d_R in the paper, at least the order for the constructions."""

    architecture: ClassVar[str] = "disentangled"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._count("d_rel")
        if isinstance(self.n_heads, list | tuple):
            object.__setattr__(
                self, "n_heads", tuple(check_count("n_heads", heads) for heads in self.n_heads)
            )
        else:
            self._count("n_heads")
        if len(self.heads_per_layer) != self.n_layers:
            raise ValueError(
                f"n_heads: expected one number or {self.n_layers} of them, got {self.n_heads}"
            )
        width, n_parameters = self.vocab_size, 0
        for n_heads in self.heads_per_layer:
            n_parameters += n_heads * (width**2 + self.length * (width + self.d_rel))
            width += n_heads * (width + self.d_rel)
        self._check_size(n_parameters + width * (self.vocab_size + self.d_mlp))

    @property
    def heads_per_layer(self) -> tuple[int, ...]:
        return self.n_heads if isinstance(self.n_heads, tuple) else (self.n_heads,) * self.n_layers


@dataclass(frozen=True, kw_only=True)
class StandardConfig(ModelConfig):
    """Learned embedding, Q/K/V/O projections, relative tables on keys and values, additive
    stream."""

    n_heads: int = 1
    d_model: int = 32
    d_head: int | None = None
    """Width of a head; d_model / n_heads unless given."""
    blocks: tuple[tuple[str, int], ...] = ()
    """Names and widths of the residual dimensions, where a construction gave them a meaning."""

    architecture: ClassVar[str] = "standard"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._count("n_heads")
        self._count("d_model")
        if self.d_head is not None:
            self._count("d_head")
        elif self.d_model % self.n_heads:
            raise ValueError(
                f"d_model: expected a multiple of n_heads = {self.n_heads}, got {self.d_model}; "
                "or give d_head"
            )
        for _, width in self.blocks:
            check_count("blocks", width)
        if self.blocks and sum(width for _, width in self.blocks) != self.d_model:
            raise ValueError(
                f"blocks: expected widths that add to d_model = {self.d_model}, got {self.blocks}"
            )
        a_head = self.head_width * (4 * self.d_model + 2 * self.length)
        self._check_size(
            self.n_layers * self.n_heads * a_head
            + self.d_model * (2 * self.vocab_size + self.d_mlp)
        )

    @property
    def head_width(self) -> int:
        return self.d_head if self.d_head is not None else self.d_model // self.n_heads


def _as_tuple(value: Any) -> Any:
    """Lists back to tuples, as a configuration that came through JSON needs."""
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list) else value
