"""Cases of the four files of a checkpoint."""

from typing import Any

from hypothesis import strategies as st

from fuzzing.strategies.values import (
    COPY,
    DELETE,
    FEW_DAMAGES,
    FLIP,
    JSON_VALUES,
    ODD,
    RANDOM,
    TRUNCATE,
    Strategy,
    edits_of,
)


def config_cases(outline: dict[str, Any]) -> Strategy:
    """Cases of config.json."""
    return st.fixed_dictionaries(
        {
            "edits": edits_of(outline["config"], JSON_VALUES),
            "bytes": FEW_DAMAGES,
            "through": st.sampled_from(("load", "load", "zoo", "workbench", "resume", "import")),
            "foreign": st.booleans(),
        }
    )


def weights_cases(outline: dict[str, Any]) -> Strategy:
    """Cases of model.safetensors."""
    sizes = st.sampled_from((0, 1, 2, 3, 6, 100, 2**31, 2**62, 2**63, -1, 2**64))
    shapes = st.lists(sizes, max_size=5)
    offsets = st.tuples(sizes, sizes)
    kinds = st.sampled_from(
        ("F32", "F64", "F16", "BF16", "I64", "BOOL", "F8_E4M3", "C64", "U4", "x")
    )
    values = st.one_of(JSON_VALUES, shapes, offsets, kinds)
    length = st.one_of(
        st.none(),
        st.none(),
        st.sampled_from((0, 1, 7, 8, 10**8, 10**9, 2**31, 2**63, 2**64 - 1)),
        st.integers(0, 4000),
    )
    return st.fixed_dictionaries(
        {
            "edits": edits_of(outline["weights"], values),
            "header_length": length,
            "data": FEW_DAMAGES,
            "bytes": FEW_DAMAGES,
            "foreign": st.just(False),
            "through": st.sampled_from(("load", "load", "import")),
        }
    )


def history_cases(outline: dict[str, Any]) -> Strategy:
    """Cases of history.jsonl."""
    return st.fixed_dictionaries(
        {
            "edits": edits_of(outline["history"], JSON_VALUES),
            "unchecked": st.sampled_from((True, True, False)),
            "bytes": FEW_DAMAGES,
            "through": st.sampled_from(("load", "zoo", "history", "workbench")),
        }
    )


DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"),
    *("complex64", "float8_e4m3fn"),
)
TENSORS = st.fixed_dictionaries(
    {
        "$tensor": st.lists(st.sampled_from((0, 1, 2, 3, 6, 8, 100)), max_size=4),
        "dtype": st.sampled_from(DTYPES),
        "fill": st.sampled_from((0.0, 1.0, -1.0, 1e38)),
    }
)
OBJECTS = st.sampled_from(
    (
        {"$canary": "reduce"},
        {"$complex": [0.0, 1.0]},
        {"$tuple": []},
        {"$set": [1]},
        {"$text": [["x", 100_000]]},
        {"$text": [["[", 100_000]]},
    )
)
ARCHIVE_CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("compress"), st.just(0)),
        st.tuples(
            st.just("rename"),
            st.integers(0, 30),
            st.sampled_from(("x", "archive/data.pkl", "../../x", "archive/data/0", "é" * 100, "")),
        ),
        st.tuples(st.just("drop"), st.integers(0, 30)),
        st.tuples(st.just("duplicate"), st.integers(0, 30)),
        st.tuples(st.just("extra"), st.just(0), st.sampled_from(("x/data.pkl", "y")), st.just(100)),
        st.tuples(
            st.just("data"),
            st.sampled_from((0, 0, 0, 1, 2, 5, 30)),
            st.one_of(FLIP, FLIP, TRUNCATE, DELETE, COPY),
        ),
        st.tuples(st.just("canary"), st.just(0), st.integers(0, 4)),
    ),
    max_size=2,
)


def training_cases(outline: dict[str, Any]) -> Strategy:
    """Cases of training.pt."""
    plain = st.one_of(ODD, RANDOM)
    return st.fixed_dictionaries(
        {
            "edits": edits_of(outline["training"], st.one_of(plain, TENSORS, TENSORS, OBJECTS), 2),
            "archive": st.one_of(st.just([]), st.just([]), ARCHIVE_CHANGES),
            "bytes": FEW_DAMAGES,
            "through": st.sampled_from(("resume", "resume", "resume", "import")),
        }
    )
