"""What is looked at, as one frozen value: the same JSON in a link, in a request and in code that is
copied.

Parsing checks everything that can be known without a model, and says in one sentence what was
expected and what came. Names of hook points and blocks are checked where the model is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from mtdinterp.checks import check_option

VERSION = 1
MOST_TOKENS = 512
MOST_EDITS = 32
MOST_VALUES = 4096
LARGEST = 1e6
"""Numbers beyond this are typing errors, and would only make infinities."""

FIRST_SEED = 7
"""Of what a first visitor sees: weights far from uniform, at different tokens, so that every
experiment shows."""
ROLES = ("checkpoint", "construction")
SOURCES = {
    "zero": "nothing",
    "mean": "the mean over sequences",
    "sequence": "the source sequence",
    "reference": "the model beside it",
    "number": "a number",
    "values": "entries of your own",
    "share": "a share of the row",
    "weights": "weights of your own",
}
TAKES = {"number": "value", "share": "value", "values": "values", "weights": "values"}
"""Which field a source needs, of those that need one."""

Range = tuple[int, int]
"""From the first to before the last, as a slice."""
Item = TypeVar("Item")


class StateError(ValueError):
    """A description that is not one, with the reason in one sentence."""


@dataclass(frozen=True)
class SourceState:
    """What an edit puts in its place; `layer` and `position` where a run is taken from somewhere
    else.

    A layer is one of the model looked at; of the model beside it means the one that answers.
    """

    kind: str
    value: float | None = None
    values: tuple[float, ...] | None = None
    layer: int | None = None
    position: int | None = None


@dataclass(frozen=True)
class EditState:
    """One edit; layers and positions count from 0."""

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
    """A checkpoint by its name, or the construction for its task; β is read from the checkpoint
    where it is None."""

    name: str
    role: str = "checkpoint"
    beta: float | None = None
    delta: float = 100.0


@dataclass(frozen=True)
class State:
    """A whole view."""

    model: ModelState
    tokens: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    """The true mixture weights, where they are known."""
    source: tuple[int, ...] | None = None
    """Another sequence, of the same length, to take activations from."""
    edits: tuple[EditState, ...] = ()
    position: int = -1
    block: str | None = None
    head: int | None = None
    """Which head's attention is shown; None is the mean over heads."""
    selected: int | None = None
    """The edit whose cone is shown."""

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **asdict(self)}


def parse_state(given: Any) -> State:
    """The inverse of `State.to_json`, for anything that may come over a wire."""
    fields = _fields(
        "state",
        given,
        (
            "version",
            "model",
            "tokens",
            "weights",
            "source",
            "edits",
            "position",
            "block",
            "head",
            "selected",
        ),
        ("model", "tokens"),
    )
    version = _integer("version", fields.get("version", VERSION), 1, 10**6)
    if version != VERSION:
        raise StateError(f"version: this workbench reads version {VERSION}, got {version}")
    tokens = _tokens("tokens", fields["tokens"])
    source = _optional(fields.get("source"), lambda value: _tokens("source", value))
    if source is not None and len(source) != len(tokens):
        raise StateError(
            f"source: expected as many tokens as the sequence has, {len(tokens)}, got {len(source)}"
        )
    edits = _sequence(
        "edits",
        _default(fields.get("edits"), []),
        MOST_EDITS,
        lambda name, value: _edit(name, value, len(tokens)),
    )
    return State(
        model=parse_model(fields["model"]),
        tokens=tokens,
        weights=_optional(fields.get("weights"), lambda value: _weights("weights", value)),
        source=source,
        edits=edits,
        position=_integer(
            "position", _default(fields.get("position"), -1), -len(tokens), len(tokens) - 1
        ),
        block=_optional(fields.get("block"), lambda value: _word("block", value)),
        head=_optional(fields.get("head"), lambda value: _integer("head", value, 0, 1000)),
        selected=_optional(
            fields.get("selected"), lambda value: _integer("selected", value, 0, len(edits) - 1)
        ),
    )


def parse_model(given: Any) -> ModelState:
    fields = _fields("model", given, ("name", "role", "beta", "delta"), ("name",))
    return ModelState(
        name=_word("model name", fields["name"]),
        role=parse_option("model role", _default(fields.get("role"), "checkpoint"), ROLES),
        beta=_optional(fields.get("beta"), lambda value: _number("beta", value)),
        delta=_number("delta", _default(fields.get("delta"), 100.0), least=0.0),
    )


def parse_request(given: Any, known: Sequence[str], needed: Sequence[str]) -> dict[str, Any]:
    """The fields of a request, refused if one is missing or unknown."""
    return _fields("request", given, known, needed)


def parse_option(name: str, value: Any, known: Sequence[str] | Mapping[str, Any]) -> str:
    """One of the known names, or an error that lists them."""
    try:
        return check_option(name, _word(name, value), known)
    except StateError:
        raise
    except ValueError as error:
        raise StateError(str(error)) from None


def parse_seed(given: Any) -> int:
    return _integer("seed", _default(given, FIRST_SEED), 0, 2**32)


def parse_sampling(given: Any) -> tuple[ModelState, int, tuple[float, ...] | None, int]:
    """Model, length, weights or None, and seed of a sequence to draw."""
    fields = _fields(
        "request", given, ("model", "length", "weights", "seed"), ("model", "length", "seed")
    )
    return (
        parse_model(fields["model"]),
        _integer("length", fields["length"], 1, MOST_TOKENS),
        _optional(fields.get("weights"), lambda value: _weights("weights", value)),
        parse_seed(fields["seed"]),
    )


def _edit(name: str, given: Any, length: int) -> EditState:
    fields = _fields(
        name,
        given,
        ("hook", "source", "layer", "position", "key", "head", "block", "on"),
        ("hook", "source"),
    )
    on = _default(fields.get("on"), True)
    if not isinstance(on, bool):
        raise StateError(f"{name}.on: expected true or false, got {_shown(on)}")
    return EditState(
        hook=_word(f"{name}.hook", fields["hook"]),
        source=_source(f"{name}.source", fields["source"]),
        layer=_optional(
            fields.get("layer"), lambda value: _integer(f"{name}.layer", value, 0, 1000)
        ),
        position=_optional(
            fields.get("position"), lambda value: _range(f"{name}.position", value, length)
        ),
        key=_optional(fields.get("key"), lambda value: _range(f"{name}.key", value, length)),
        head=_optional(fields.get("head"), lambda value: _integer(f"{name}.head", value, 0, 1000)),
        block=_optional(fields.get("block"), lambda value: _word(f"{name}.block", value)),
        on=on,
    )


def _source(name: str, given: Any) -> SourceState:
    fields = _fields(name, given, ("kind", "value", "values", "layer", "position"), ("kind",))
    kind = parse_option(f"{name}.kind", fields["kind"], SOURCES)
    needed = TAKES.get(kind)
    if needed is not None and fields.get(needed) is None:
        raise StateError(f"{name}: a source of kind {kind} needs {needed}")
    value = _optional(fields.get("value"), lambda entry: _number(f"{name}.value", entry))
    if kind == "share" and value is not None and not 0 <= value <= 1:
        raise StateError(f"{name}.value: expected a share between 0 and 1, got {value:g}")
    check = _weights if kind == "weights" else _numbers
    return SourceState(
        kind=kind,
        value=value if needed == "value" else None,
        values=(
            _optional(fields.get("values"), lambda entry: check(f"{name}.values", entry))
            if needed == "values"
            else None
        ),
        layer=_optional(
            fields.get("layer"), lambda entry: _integer(f"{name}.layer", entry, 0, 1000)
        ),
        position=_optional(
            fields.get("position"),
            lambda entry: _integer(f"{name}.position", entry, 0, MOST_TOKENS),
        ),
    )


def _optional(value: Any, parse: Callable[[Any], Item]) -> Item | None:
    return None if value is None else parse(value)


def _default(value: Any, default: Any) -> Any:
    return default if value is None else value


def _shown(value: Any) -> str:
    """A value in an error, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _fields(name: str, given: Any, known: Sequence[str], needed: Sequence[str]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise StateError(f"{name}: expected an object, got {_shown(given)}")
    for field in given:
        parse_option(f"{name}'s field", field, known)
    for field in needed:
        if given.get(field) is None:
            raise StateError(f"{name}: {field} is missing")
    return dict(given)


def _word(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise StateError(f"{name}: expected a name, got {_shown(value)}")
    return value


def _integer(name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise StateError(f"{name}: expected an integer of {least}..{most}, got {_shown(value)}")
    return value


def _number(name: str, value: Any, least: float = -LARGEST) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not least <= value <= LARGEST
    ):
        raise StateError(
            f"{name}: expected a number of {least:g}..{LARGEST:g}, got {_shown(value)}"
        )
    return float(value)


def _sequence(
    name: str, value: Any, most: int, parse: Callable[[str, Any], Item]
) -> tuple[Item, ...]:
    if not isinstance(value, list | tuple) or len(value) > most:
        found = f"{len(value)}" if isinstance(value, list | tuple) else _shown(value)
        raise StateError(f"{name}: expected a list of at most {most}, got {found}")
    return tuple(parse(f"{name}[{index}]", entry) for index, entry in enumerate(value))


def _tokens(name: str, value: Any) -> tuple[int, ...]:
    tokens = _sequence(
        name, value, MOST_TOKENS, lambda place, entry: _integer(place, entry, 0, 10**6)
    )
    if not tokens:
        raise StateError(f"{name}: expected at least one token")
    return tokens


def _numbers(name: str, value: Any) -> tuple[float, ...]:
    numbers = _sequence(name, value, MOST_VALUES, _number)
    if not numbers:
        raise StateError(f"{name}: expected at least one number")
    return numbers


def _weights(name: str, value: Any) -> tuple[float, ...]:
    weights = _numbers(name, value)
    if min(weights) < 0 or not math.isclose(sum(weights), 1, abs_tol=1e-6):
        raise StateError(
            f"{name}: expected weights ≥ 0 that add to 1, got a sum of {sum(weights):.6g} and a "
            "least "
            f"entry of {min(weights):.6g}"
        )
    return weights


def _range(name: str, value: Any, length: int) -> Range:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise StateError(f"{name}: expected [from, before], got {_shown(value)}")
    start, stop = (_integer(name, entry, 0, length) for entry in value)
    if start >= stop:
        raise StateError(
            f"{name}: expected [from, before] with from < before, got [{start}, {stop}]"
        )
    return start, stop
