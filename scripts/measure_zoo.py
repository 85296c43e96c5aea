"""Measure the models of the zoo and write the tables of docs/results.

Without names, all models are measured and the pages are written. With names, the rows of these
models are printed and nothing is written.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from statistics import median

from result_pages import RESULTS, page, table
from zoo_rows import (
    ALGORITHM_HEADER,
    BETA_HEADER,
    LAST_EVALUATIONS,
    NONE,
    PROGRAM_HEADER,
    PROGRAM_LENGTH,
    PROGRAM_SEED,
    PROGRAM_SEQUENCES,
    READINGS,
    TRANSITION_HEADER,
    ZOO_HEADER,
    Row,
    algorithm_row,
    beta_row,
    can_decompile,
    divergence_row,
    interchange_row,
    known_variables,
    program_row,
    variation_row,
    zoo_row,
)

from mtdinterp import load_checkpoint
from mtdinterp.checkpoint_files import ZOO, read_config, zoo_names
from mtdinterp.checkpoints import Checkpoint
from mtdinterp.checkpoints.provenance import Provenance, provenance_of

COMMAND = "scripts/measure_zoo"
SCORE = re.compile(r"\*\*(-?[\d.]+)\*\*")
"""The R² of a cell."""


def main() -> None:
    """Measure the models that the command line names, or all."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models to measure (default: all)")
    chosen = parser.parse_args().names
    unknown = sorted(set(chosen) - set(zoo_names()))
    if unknown:
        parser.error(
            f"the zoo has no model called {unknown[0]}; `mtdinterp zoo` lists those it has"
        )
    names = chosen or zoo_names()
    for name, make in PAGES.items():
        text = make(names)
        if chosen:
            print(text)
        else:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.md").write_text(text)


def probes_page(names: Sequence[str]) -> str:
    """What the probes find: β, π and the algorithm of every model."""
    return page(
        "What the probes find on the zoo",
        _provenance(names),
        [
            "[Probes](../probes.md) defines every number. All models of the same order learned the "
            "same task, so every row is about the same π. Sequences are drawn with seed 0.",
            "## β",
            "The optimum is the β of one-step mirror descent that minimises the KL to the truth.",
            table(BETA_HEADER, _rows(names, beta_row)),
            "## π, mean total variation over rows",
            "This distance decides whether π is recovered. The control knows only the stationary "
            "marginal.",
            table(TRANSITION_HEADER, _with_medians(_rows(names, variation_row))),
            "## π, mean row KL",
            "Entries are clipped at 1e-9, so that one clipped entry can make a row KL large at a "
            "tiny total variation.",
            table(TRANSITION_HEADER, _with_medians(_rows(names, divergence_row))),
            "## Algorithm, KL(model ‖ estimator)",
            "The best estimator is followed by those that the evidence does not separate from it.",
            table(ALGORITHM_HEADER, _rows(names, algorithm_row)),
        ],
    )


def interventions_page(names: Sequence[str]) -> str:
    """How well interchanges of the algorithm's variables move every model."""
    variables = known_variables()
    symbols = [variable.symbol for variable in variables.values()]
    rows = _rows(names, interchange_row)
    return page(
        "Interchanges on the zoo",
        _provenance(names),
        [
            "[Interventions](../interventions.md) defines interchange. Each cell has R² ± its "
            "standard error at the best site, then its controls in brackets (a random site, a "
            "source that does not belong to the target, the site's mean over sources), then the "
            "site. Half of the pairs of sequences choose the site; R² is measured on the other "
            "half. Base sequences are drawn with seed 1 and source sequences with seed 2.",
            table(("model", "pairs", *symbols), rows),
            _interchange_medians(rows, symbols),
        ],
    )


def programs_page(names: Sequence[str]) -> str:
    """Every model of three layers as a program."""
    chosen = [name for name in names if can_decompile(name)]
    return page(
        "The programs of the zoo",
        _provenance(names),
        [
            "[The mechanism](../mechanism.md) explains programs. KL(model ‖ program) and "
            f"KL(model ‖ one step) are over {PROGRAM_SEQUENCES:,} sequences (seed {PROGRAM_SEED}), "
            "with outputs clipped at 1e-6. Terms are judged on fewer other sequences (seed 0). The "
            "last column is how much higher the short program's KL to the truth is than the whole "
            f"program's. Models of more than three layers, or longer than {PROGRAM_LENGTH}, are "
            "left out.",
            table(PROGRAM_HEADER, _rows(chosen, program_row)),
        ],
    )


def zoo_page(names: Sequence[str]) -> str:
    """How the training of every model ended, by its stored history."""
    return page(
        "How the training of the zoo ended",
        _provenance(names),
        [
            "Read from the histories that are stored with the models. [Training](../training.md) "
            "explains the recipes. KL is that of the last evaluation, on held-out sequences. It is "
            "divided by the KL of tuned one-step and two-step mirror descent (MD) on the same "
            f"sequences. The median is over the last {LAST_EVALUATIONS} evaluations. β, the gain "
            "and the branch are read from attention.",
            table(ZOO_HEADER, _rows(names, zoo_row)),
        ],
    )


PAGES: dict[str, Callable[[Sequence[str]], str]] = {
    "zoo": zoo_page,
    "probes": probes_page,
    "interventions": interventions_page,
    "programs": programs_page,
}
"""The pages by the names of their files."""


def _provenance(names: Sequence[str]) -> Provenance:
    """What makes a page with these models."""
    every = list(names) == zoo_names()
    return provenance_of(COMMAND if every else " ".join([COMMAND, *names]), names)


def _rows(names: Sequence[str], measure: Callable[[str, Checkpoint], Row]) -> list[Row]:
    """One row per model."""
    rows = []
    for name in names:
        print(f"{measure.__name__}: {name}", file=sys.stderr, flush=True)
        rows.append(measure(name, load_checkpoint(name)))
    return rows


def _of_fast_recipe(rows: Sequence[Row]) -> list[Row]:
    """The rows of models that were trained by the fast recipe."""
    fast = []
    for row in rows:
        recipe = read_config(ZOO / row[0])["recipe"]["name"]
        if recipe.startswith("fast"):  # "fast, changed" is the recipe with a flag
            fast.append(row)
    return fast


def _with_medians(rows: Sequence[Row]) -> list[Row]:
    """Rows of readings of π, and the median of each reading over models of the fast recipe."""
    fast = _of_fast_recipe(rows)
    if not fast:
        return list(rows)
    medians = []
    for column in range(2, 2 + len(READINGS)):
        medians.append(f"{median(float(row[column]) for row in fast):.4f}")
    return [*rows, ("median of the fast recipe", "", *medians, "")]


def _interchange_medians(rows: Sequence[Row], symbols: Sequence[str]) -> str:
    """A sentence with the median R² of each variable over models of the fast recipe."""
    fast = _of_fast_recipe(rows)
    medians = []
    for column, symbol in enumerate(symbols, start=2):
        scores = [float(found[1]) for row in fast if (found := SCORE.match(row[column]))]
        if scores:
            medians.append(f"{symbol} {median(scores):.3f}")
    return f"Median R² over models of the fast recipe: {', '.join(medians) or NONE}."


if __name__ == "__main__":
    main()
