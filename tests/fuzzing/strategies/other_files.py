"""Cases of file kinds, plugin metadata and transition files."""

from typing import Any

from hypothesis import strategies as st

from fuzzing import canaries
from fuzzing.drivers import file_kinds
from fuzzing.strategies.values import (
    DAMAGES,
    FEW_DAMAGES,
    JSON_VALUES,
    SPECIAL,
    TEXTS,
    Strategy,
    edits_of,
)


def file_cases(outline: dict[str, Any]) -> Strategy:
    """Cases of other things in place of files; there are finitely many."""
    kinds = ("pipe", "directory", "socket", "empty", "sparse", "loop", "missing", "forbidden")
    targets = ("/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem", "/nowhere", "/", "x" * 300)
    return st.fixed_dictionaries(
        {
            "file": st.sampled_from((*file_kinds.RUN, *file_kinds.OTHERS, ".")),
            "kind": st.sampled_from((*kinds, *targets[:-1])),
            "through": st.sampled_from(tuple(file_kinds.READERS)),
        }
    )


def plugin_cases(outline: dict[str, Any]) -> Strategy:
    """Cases of the metadata of installed packages."""
    groups = ("tasks", "estimators", "architectures", "algorithms", "probes", "x", "")
    words = st.one_of(
        st.sampled_from((*TEXTS, "mtd", "own-task", "a b", "-x", ".", "=", "[", "]", ";", "x:y.z")),
        st.text(max_size=12),
    )
    canary = st.sampled_from((canaries.MODULE, f"{canaries.MODULE}:Task", f"{canaries.MODULE} [x]"))
    harmless = st.sampled_from(
        ("nowhere:x", "json", "json:loads", "math:pi.x", "os..path", ":", "")
    )

    def table(values: Strategy) -> Strategy:
        line = st.builds(lambda name, value: f"{name} = {value}", words, values | words)
        head = st.sampled_from(groups).map(lambda group: f"[mtdinterp.{group}]")
        lines = st.lists(st.one_of(line, line, line, head, words), max_size=6)
        return st.builds(lambda start, rest: "\n".join([start, *rest]), head, lines)

    fields = st.lists(
        st.builds(
            lambda name, value: f"{name}: {value}", st.sampled_from(("Name", "Version")), words
        ),
        max_size=4,
    ).map("\n".join)

    def packages(values: Strategy) -> Strategy:
        package = st.fixed_dictionaries(
            {"METADATA": st.none() | fields, "entry_points.txt": table(values)}
        )
        return st.lists(package, min_size=1, max_size=3)

    listing = st.fixed_dictionaries(
        {
            "packages": packages(canary),
            "through": st.sampled_from(("list", "list", "help", "name")),
            "command": st.sampled_from(("train", "probe", "construct")),
            "name": words.filter(lambda word: "\0" not in word),
        }
    )
    loading = st.fixed_dictionaries({"packages": packages(harmless), "through": st.just("load")})
    return st.one_of(listing, listing, listing, loading)


def transition_cases(outline: dict[str, Any]) -> Strategy:
    """Cases of transition files."""
    cells = st.sampled_from(
        (
            "0.5",
            "1",
            "0",
            "-1",
            "nan",
            "inf",
            "1e309",
            "0,5",
            "",
            "x",
            '"0.5"',
            "1/3",
            "٣",
            "0x1",
            "1_0",
        )
    )
    rows = st.builds(
        lambda table, mark, end: end.join(mark.join(row) for row in table),
        st.lists(st.lists(cells, min_size=1, max_size=4), max_size=4),
        st.sampled_from((",", ";", " ", "\t", ", ")),
        st.sampled_from(("\n", "\r\n", "\r", "\n\n", "\u2028")),
    )
    headers = st.sampled_from(
        (
            "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 3), }",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000000), }",
            "{'descr': '|O', 'fortran_order': False, 'shape': (3, 3), }",
            "{'descr': '<f8', 'fortran_order': True, 'shape': (-3, -3), }",
            "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (9,), }",
            "{'descr': '<V8', 'fortran_order': False, 'shape': (3, 3), }",
            "{'descr': '<f0', 'fortran_order': False, 'shape': (3, 3), }",
            "{'descr': '<f8', 'fortran_order': 5, 'shape': (True, 9), }",
            "__import__('os').system('true')",
            "(" * 5000,
            "{" + "'a':" * 3000,
            "1e9**9",
        )
    )
    suffix = st.sampled_from((".csv", ".tsv", ".txt"))
    csv = st.fixed_dictionaries({"suffix": suffix, "bytes": DAMAGES})
    made_up = st.fixed_dictionaries({"suffix": suffix, "rows": rows | st.text(max_size=60)})
    header = st.fixed_dictionaries(
        {"suffix": st.just(".npy"), "header": headers, "data": st.sampled_from((0, 72, 8, 71))}
    )
    npy = st.fixed_dictionaries(
        {
            "suffix": st.just(".npy"),
            "bytes": FEW_DAMAGES,
            "shape": st.sampled_from(
                ([3, 3], [2, 3, 3], [0, 3], [9], [1, 1], [2, 2, 2, 2], [1, 2, 2])
            ),
            "dtype": st.sampled_from(
                ("float64", "float16", "int8", "bool", "U5", "complex64", ">f8")
            ),
            "normalise": st.booleans(),
        }
    )
    filled = st.fixed_dictionaries(
        {
            "suffix": st.just(".npy"),
            "fill": st.sampled_from((*SPECIAL, 1e308, -1.0, 0.0, 1 / 3, 5e-324)),
        }
    )
    json_files = st.fixed_dictionaries(
        {
            "suffix": st.just(".json"),
            "edits": edits_of([[0.0] * 3] * 3, JSON_VALUES),
            "bytes": FEW_DAMAGES,
            "normalise": st.booleans(),
        }
    )
    return st.one_of(csv, made_up, header, npy, filled, json_files, json_files)
