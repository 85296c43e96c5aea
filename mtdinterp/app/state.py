"""The state of a view as one frozen value, with one JSON form for links, requests and saved code.

Parsing checks everything that can be checked without a model. An error says in one sentence what
was expected and what was given. Names of hook points and blocks are checked against the model when
the state is opened.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

from mtdinterp.app.errors import StateError
from mtdinterp.app.json_fields import (
    Fields,
    Parser,
    Range,
    anything,
    boolean,
    index_range,
    integer,
    number,
    numbers,
    option_of,
    sequence_of,
    text,
    weights,
)

VERSION = 1
MOST_TOKENS = 512
LARGEST_TOKEN = 10**6
MOST_EDITS = 32
MOST_VALUES = 4096
MOST_LAYERS = 1000
"""An upper bound for layers and heads; the model has the exact numbers."""
LARGEST_SEED = 2**32
FIRST_SEED = 7
"""The seed of a visitor's first sequence: its weights are far from uniform and its lags hold
different tokens, so that every experiment has a visible effect."""

ROLES = ("checkpoint", "construction")
SOURCES = {
    "zero": "zero",
    "mean": "the mean over sequences",
    "sequence": "the source sequence",
    "reference": "the reference model",
    "number": "a number",
    "values": "your own values",
    "share": "a share of the row",
    "weights": "your own weights",
}
"""The kinds of sources of an edit, with their labels."""
NEEDED_FIELD = {"number": "value", "share": "value", "values": "values", "weights": "values"}
"""The field that a kind of source needs, for those that need one."""


@dataclass(frozen=True)
class SourceState:
    """The source of the value that an edit writes.

    Attributes:
        kind: one of `SOURCES`.
        value: the number, or the share of the row.
        values: the entries, or the weights.
        layer: the layer to take from, if it is not the edited one. Layers are those of the model
            in view; with the reference model, the corresponding layer is taken.
        position: the first position to take from, if it is not the edited one.
    """

    kind: str
    value: float | None = None
    values: tuple[float, ...] | None = None
    layer: int | None = None
    position: int | None = None


@dataclass(frozen=True)
class EditState:
    """One edit; layers, heads and positions count from 0."""

    hook: str
    source: SourceState
    layer: int | None = None
    position: Range | None = None
    key: Range | None = None
    head: int | None = None
    block: str | None = None
    on: bool = True


@dataclass(frozen=True)
class ModelState:
    """The model in view: a checkpoint by its name, or the reference construction for it.

    Attributes:
        name: the name of the checkpoint.
        role: "checkpoint" or "construction"; the other one is the reference model.
        beta: β of the construction; None takes the value fitted to the checkpoint.
        delta: δ of the construction.
    """

    name: str
    role: str = "checkpoint"
    beta: float | None = None
    delta: float = 100.0


@dataclass(frozen=True)
class State:
    """A complete view."""

    model: ModelState
    tokens: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    """The true mixture weights, if they are known."""
    source: tuple[int, ...] | None = None
    """Another sequence of the same length to take activations from."""
    edits: tuple[EditState, ...] = ()
    position: int = -1
    block: str | None = None
    head: int | None = None
    """The head whose attention is shown; None is the mean over heads."""
    selected: int | None = None
    """The index of the edit whose cone is shown."""

    def to_json(self) -> dict[str, Any]:
        """The state as a JSON object; `parse_state` is the inverse."""
        return {"version": VERSION, **asdict(self)}


@dataclass(frozen=True)
class Sampling:
    """A request for a new sequence."""

    model: ModelState
    length: int
    weights: tuple[float, ...] | None
    """The mixture weights to sample with; None draws them too."""
    seed: int


def parse_state(given: Any) -> State:
    """A state from its JSON form; fields other than model and tokens may be missing."""
    state = Fields("state", given, ("version", *_names(State)), ("model", "tokens"))
    version = state.get("version", integer(1, 10**6), VERSION)
    if version != VERSION:
        raise StateError(f"version: this workbench can read version {VERSION} only, got {version}")
    tokens = state.get("tokens", _tokens)
    length = len(tokens)
    source = state.optional("source", _tokens)
    if source is not None and len(source) != length:
        raise StateError(
            f"source: expected {length} tokens, as many as in the sequence; got {len(source)}"
        )
    edits = state.get("edits", sequence_of(_edit_in(length), MOST_EDITS), [])
    return State(
        model=parse_model(state.get("model", anything)),
        tokens=tokens,
        weights=state.optional("weights", weights(MOST_VALUES)),
        source=source,
        edits=edits,
        position=state.get("position", integer(-length, length - 1), -1),
        block=state.optional("block", text),
        head=state.optional("head", integer(0, MOST_LAYERS)),
        selected=state.optional("selected", integer(0, len(edits) - 1)),
    )


def parse_model(given: Any) -> ModelState:
    """A model from its JSON form."""
    model = Fields("model", given, _names(ModelState), ("name",), prefix="model ")
    return ModelState(
        name=model.get("name", text),
        role=model.get("role", option_of(ROLES), "checkpoint"),
        beta=model.optional("beta", number()),
        delta=model.get("delta", number(least=0.0), 100.0),
    )


def parse_seed(given: Any) -> int:
    """A seed, or the first one if none is given."""
    return integer(0, LARGEST_SEED)("seed", FIRST_SEED if given is None else given)


def parse_sampling(given: Any) -> Sampling:
    """A request for a new sequence from its JSON form."""
    request = Fields("request", given, _names(Sampling), ("model", "length", "seed"))
    return Sampling(
        model=parse_model(request.get("model", anything)),
        length=request.get("length", integer(1, MOST_TOKENS)),
        weights=request.optional("weights", weights(MOST_VALUES)),
        seed=parse_seed(request.get("seed", anything)),
    )


def _edit_in(length: int) -> Parser[EditState]:
    """A parser for an edit of a sequence with this many positions."""

    def parse(name: str, given: Any) -> EditState:
        edit = Fields(name, given, _names(EditState), ("hook", "source"), prefix=f"{name}.")
        return EditState(
            hook=edit.get("hook", text),
            source=edit.get("source", _source),
            layer=edit.optional("layer", integer(0, MOST_LAYERS)),
            position=edit.optional("position", index_range(length)),
            key=edit.optional("key", index_range(length)),
            head=edit.optional("head", integer(0, MOST_LAYERS)),
            block=edit.optional("block", text),
            on=edit.get("on", boolean, True),
        )

    return parse


def _source(name: str, given: Any) -> SourceState:
    source = Fields(name, given, _names(SourceState), ("kind",), prefix=f"{name}.")
    kind = source.get("kind", option_of(SOURCES))
    needed = NEEDED_FIELD.get(kind)
    if needed is not None and not source.has(needed):
        raise StateError(f"{name}: a source of kind {kind} needs {needed}")
    value = source.optional("value", number())
    if kind == "share" and value is not None and not 0 <= value <= 1:
        raise StateError(f"{name}.value: expected a share between 0 and 1, got {value:g}")
    values = None
    if needed == "values":
        parse_values = weights if kind == "weights" else numbers
        values = source.get("values", parse_values(MOST_VALUES))
    return SourceState(
        kind=kind,
        value=value if needed == "value" else None,
        values=values,
        layer=source.optional("layer", integer(0, MOST_LAYERS)),
        position=source.optional("position", integer(0, MOST_TOKENS)),
    )


def _tokens(name: str, value: Any) -> tuple[int, ...]:
    found = sequence_of(integer(0, LARGEST_TOKEN), MOST_TOKENS)(name, value)
    if not found:
        raise StateError(f"{name}: expected at least one token")
    return found


def _names(kind: type) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    return tuple(field.name for field in fields(kind))
