"""Probe every model of the zoo and swap variables in it; print Markdown tables of what is found."""

import argparse
from statistics import median

from mtdinterp import load_checkpoint
from mtdinterp.checkpoint_files import zoo_names
from mtdinterp.checkpoints import Checkpoint
from mtdinterp.interventions import interchange
from probes import identify_algorithm, recover_beta, recover_transition


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which models (all)")
    names = parser.parse_args().names or zoo_names()
    checkpoints = {name: load_checkpoint(name) for name in names}
    beta_table(checkpoints)
    transition_table(checkpoints)
    algorithm_table(checkpoints)
    interchange_table(checkpoints)


def beta_table(checkpoints: dict[str, Checkpoint]) -> None:
    print(
        "| model | optimum | by weights (R²) | by attention (R²) | by output (R²) | gain (R²) | "
        "branch |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, entry in checkpoints.items():
        found = recover_beta(entry.model, entry.task)
        weights = (
            f"{found.weights:.1f} ({found.weights_r2:.2f})"
            if found.weights == found.weights
            else "—"
        )
        print(
            f"| {name} | {found.optimal:.1f} | {weights} | {found.attention:.1f} ± "
            f"{found.attention_stderr:.1f} "
            f"({found.attention_r2:.2f}) | {found.output:.1f} ± {found.output_stderr:.1f} "
            f"({found.output_r2:.2f}) | "
            f"{found.gain:.2f} ({found.gain_r2:.2f}) | {found.branch} |",
            flush=True,
        )
    print()


def transition_table(checkpoints: dict[str, Checkpoint]) -> None:
    columns = ("attention_softmax", "attention", "output", "output_circuit", "behaviour")
    print("| model | paper's probe | gauge fixed | output | OV circuit | behaviour | control |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for name, entry in checkpoints.items():
        found = recover_transition(entry.model, entry.task)
        rows.append([found.row_kl[column] for column in columns])
        cells = " | ".join(f"{value:.4f}" for value in rows[-1])
        print(f"| {name} | {cells} | {found.control_kl:.3f} |", flush=True)
    medians = [median(row[column] for row in rows) for column in range(len(columns))]
    print("| median | " + " | ".join(f"{value:.4f}" for value in medians) + " | |\n")


def algorithm_table(checkpoints: dict[str, Checkpoint]) -> None:
    columns = (
        "uniform",
        "one_step",
        "mirror_descent_2",
        "mirror_descent_3",
        "exact_bayes",
        "two_step_construction",
    )
    print("| model | named (not told apart) | " + " | ".join(columns) + " |")
    print("|---" * (2 + len(columns)) + "|")
    for name, entry in checkpoints.items():
        found = identify_algorithm(entry.model, entry.task)
        tied = f" ({', '.join(found.tied)})" if found.tied else ""
        cells = [
            f"{found.divergences[column]:.1e}" if column in found.divergences else "—"
            for column in columns
        ]
        print(f"| {name} | {found.best}{tied} | " + " | ".join(cells) + " |", flush=True)
    print()


def interchange_table(checkpoints: dict[str, Checkpoint]) -> None:
    """R² at the best site, and in brackets of a random site, of another source and of the site's
    mean."""
    print("| model | γ | Γ | weights | w¹ | Γ² |")
    print("|---|---|---|---|---|---|")
    best: dict[str, list[float]] = {"mean_responsibilities": [], "weights": []}
    for name, entry in checkpoints.items():
        length = entry.model.config.length
        pair = [
            entry.task.sample(256 if length <= 64 else 64, length, seed=seed).tokens
            for seed in (1, 2)
        ]
        deep = entry.model.config.n_layers >= 5
        cells = []
        for variable in (
            "responsibilities",
            "mean_responsibilities",
            "weights",
            "first_weights",
            "reweighted",
        ):
            if not deep and variable in ("first_weights", "reweighted"):
                cells.append("—")
                continue
            found = interchange(entry.model, entry.task, *pair, variable)
            cells.append(
                f"**{found.r2:.3f}** ({found.control_r2:.2f}, {found.mismatched_r2:.2f}, "
                f"{found.mean_r2:.2f}) "
                f"{found.site}"
            )
            if variable in best and entry.model.config.architecture == "disentangled":
                best[variable].append(found.r2)
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    medians = [f"{name} {median(values):.3f}" for name, values in best.items() if values]
    print("\nMedian over disentangled models: " + ", ".join(medians))


if __name__ == "__main__":
    main()
