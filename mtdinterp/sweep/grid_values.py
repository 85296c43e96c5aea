"""Read the contents of a grid file as plain values, safely: YAML with few surprises, or JSON.

A key that is given twice is refused, a number such as 1e-3 is a number, and nothing in a file can
make an object of Python.
"""

import json
import re
import reprlib
from collections.abc import Iterable
from typing import Any

from mtdinterp.formatting import printable

FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+\Z")
"""Numbers with an exponent; YAML 1.1 takes those without a point or a sign for texts."""
MERGE = "<<"


class GridError(ValueError):
    """A grid file that cannot be used, with the reason in one sentence."""

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))


def shown(value: Any) -> str:
    """A value in an error message; short even if it is nested without end."""
    return f"{reprlib.repr(value):.80}"


def parse(content: bytes) -> Any:
    """The contents of a YAML file.

    Raises:
        GridError: if it is not valid, or a key is not a text or given twice.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Plain values only."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        for key, _ in node.value:
            if key.value == MERGE:
                raise GridError(f"{MERGE} is not supported; write the settings out, or use grids")
        _check_keys(loader.construct_object(key, deep=True) for key, _ in node.value)
        return loader.construct_mapping(node, deep=True)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))
    try:
        return yaml.load(content, Loader)
    except GridError:
        raise
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise GridError(f"not valid YAML ({reason:.200})") from None
    # A value that does not fit its tag, such as "!!bool perhaps", raises almost anything.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise GridError(f"not valid YAML ({error!s:.200})") from None
    except RecursionError:
        raise GridError("not valid YAML (nested too deeply)") from None


def parse_json(content: bytes) -> Any:
    """The contents of a JSON file.

    Raises:
        GridError: if it is not valid, or a key is given twice.
    """

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _check_keys(key for key, _ in pairs)
        return dict(pairs)

    try:
        return json.loads(content, object_pairs_hook=mapping)
    except GridError:
        raise
    except (ValueError, RecursionError) as error:
        raise GridError(f"not valid JSON ({error!s:.200})") from None


def _check_keys(keys: Iterable[Any]) -> None:
    """Refuse keys that are not texts, and those that are given twice."""
    seen: set[str] = set()
    for key in keys:
        if not isinstance(key, str):
            raise GridError(f"expected names of settings as keys, got {shown(key)}")
        if key in seen:
            raise GridError(f"the key {shown(key)} is given twice")
        seen.add(key)
