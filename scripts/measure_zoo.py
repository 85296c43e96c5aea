"""Probe every model of the zoo, interchange variables in it, and print Markdown tables."""

import argparse
import math
from statistics import median

from mtdinterp import explain, load_checkpoint
from mtdinterp.algorithms.base import Variable
from mtdinterp.checkpoint_files import zoo_names
from mtdinterp.checkpoints import Checkpoint
from mtdinterp.interventions import interchange
from mtdinterp.registry import ALGORITHMS, ESTIMATORS
from probes import identify_algorithm, recover_beta, recover_transition

Checkpoints = dict[str, Checkpoint]
TRANSITION_COLUMNS = {
    "attention_softmax": "paper's probe",
    "attention": "gauge fixed",
    "output": "output",
    "output_circuit": "OV circuit",
    "behaviour": "behaviour",
}
"""Readings of π, with the headings of their columns."""


def main() -> None:
    """Print all tables for the models that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models to measure (default: all)")
    names = parser.parse_args().names or zoo_names()
    checkpoints = {name: load_checkpoint(name) for name in names}
    beta_table(checkpoints)
    transition_table(checkpoints)
    algorithm_table(checkpoints)
    interchange_table(checkpoints)


def print_header(*cells: str) -> None:
    """Print the head of a Markdown table."""
    print_row(*cells)
    print("|---" * len(cells) + "|")


def print_row(*cells: str) -> None:
    """Print one row of a Markdown table."""
    print(f"| {' | '.join(cells)} |", flush=True)


def beta_table(checkpoints: Checkpoints) -> None:
    """β at the three levels at which it can be read."""
    levels = ("by weights (R²)", "by attention (R²)", "by output (R²)")
    print_header("model", "optimum", *levels, "gain (R²)", "branch")
    for name, entry in checkpoints.items():
        found = recover_beta(entry.model, entry.task)
        weights = "—"
        if not math.isnan(found.weights):
            weights = f"{found.weights:.1f} ({found.weights_r2:.2f})"
        print_row(
            name,
            f"{found.optimal:.1f}",
            weights,
            f"{found.attention:.1f} ± {found.attention_stderr:.1f} ({found.attention_r2:.2f})",
            f"{found.output:.1f} ± {found.output_stderr:.1f} ({found.output_r2:.2f})",
            f"{found.gain:.2f} ({found.gain_r2:.2f})",
            found.branch,
        )
    print()


def transition_table(checkpoints: Checkpoints) -> None:
    """Row KL of every reading of π, and of the control that knows only the marginal."""
    print_header("model", *TRANSITION_COLUMNS.values(), "control")
    values: dict[str, list[float]] = {column: [] for column in TRANSITION_COLUMNS}
    for name, entry in checkpoints.items():
        found = recover_transition(entry.model, entry.task)
        for column, collected in values.items():
            collected.append(found.row_kl[column])
        cells = [f"{collected[-1]:.4f}" for collected in values.values()]
        print_row(name, *cells, f"{found.control_kl:.3f}")
    medians = [f"{median(collected):.4f}" for collected in values.values()]
    print_row("median", *medians, "")
    print()


def algorithm_table(checkpoints: Checkpoints) -> None:
    """How far the predictions are from every estimator, and which one is named."""
    print_header("model", "named (not told apart)", *ESTIMATORS)
    for name, entry in checkpoints.items():
        found = identify_algorithm(entry.model, entry.task)
        tied = f" ({', '.join(found.tied)})" if found.tied else ""
        cells = []
        for estimator in ESTIMATORS:
            divergence = found.divergences.get(estimator)
            cells.append("—" if divergence is None else f"{divergence:.1e}")
        print_row(name, found.best + tied, *cells)
    print()


def interchange_table(checkpoints: Checkpoints) -> None:
    """R² at the best site; in brackets its controls: random site, other source, site mean."""
    columns = known_variables()
    symbols = [variable.symbol for variable in columns.values()]
    print_header("model", *symbols)
    best: dict[str, list[float]] = {variable: [] for variable in columns}
    for name, entry in checkpoints.items():
        cells = []
        for variable, r2, cell in interchanges(entry, list(columns)):
            cells.append(cell)
            if r2 is not None:
                best[variable].append(r2)
        print_row(name, *cells)
    medians = [f"{name} {median(values):.3f}" for name, values in best.items() if values]
    print(f"\nMedians over all models: {', '.join(medians)}")


def known_variables() -> dict[str, Variable]:
    """The variables of all algorithms by name."""
    found: dict[str, Variable] = {}
    for algorithm in ALGORITHMS.values():
        for variable in algorithm.variables:
            found.setdefault(variable.name, variable)
    return found


def interchanges(
    checkpoint: Checkpoint, variables: list[str]
) -> list[tuple[str, float | None, str]]:
    """Interchange every variable that the model's algorithm has.

    Args:
        checkpoint: the model and its task.
        variables: names of the columns.

    Returns:
        For every variable its name, R² (None if the algorithm does not have it) and cell.
    """
    length = checkpoint.model.config.length
    n_sequences = 256 if length <= 64 else 64
    base = checkpoint.task.sample(n_sequences, length, seed=1).tokens
    source = checkpoint.task.sample(n_sequences, length, seed=2).tokens
    explanation = explain(checkpoint.model, checkpoint.task)
    own = {variable.name for variable in explanation.algorithm.variables}
    rows: list[tuple[str, float | None, str]] = []
    for variable in variables:
        if variable not in own:
            rows.append((variable, None, "—"))
            continue
        found = interchange(
            checkpoint.model, checkpoint.task, base, source, variable, explanation=explanation
        )
        controls = f"{found.control_r2:.2f}, {found.mismatched_r2:.2f}, {found.mean_r2:.2f}"
        rows.append((variable, found.r2, f"**{found.r2:.3f}** ({controls}) {found.site}"))
    return rows


if __name__ == "__main__":
    main()
