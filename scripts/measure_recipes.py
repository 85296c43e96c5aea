"""Train with the fast recipe from several seeds and write the tables of docs/results/training.md.

The runs are the cells of a grid, which `mtdinterp sweep run` runs in out/recipes. It can be stopped
at any moment; the same command continues. Each group has its own section. The sections of the
measured groups are replaced, and the others are left as they are.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from grid_runs import BAD_INPUT, run_grid
from recipe_groups import ABLATIONS, GROUPS, PROMISES, STEPS, THREADS, Group, recipes_grid
from result_pages import RESULTS, replace_section, table

from mtdinterp.checkpoints.provenance import Provenance
from mtdinterp.checkpoints.save import versions
from mtdinterp.estimators.optimum import Interval
from mtdinterp.processor import processor_name
from mtdinterp.sweep.directory import read_sweep
from mtdinterp.sweep.table import Row, read_rows

OUT = Path("out") / "recipes"
PAGE = RESULTS / "training.md"


@dataclass(frozen=True)
class Outcome:
    """What one run reached."""

    seed: int
    kl: float
    ratios: dict[str, float]
    """KL divided by that of tuned mirror descent, by the keys of `STEPS`."""
    beta: float
    optimum: str
    """The tuned β with its interval, or that it is flat."""
    branch: str
    seconds: float
    """Of training and its evaluations, without the preparation of the held-out set."""

    def meets(self, group: Group) -> bool:
        """Whether the run is successful by the group's criterion."""
        close = all(self.ratios[name] <= most for name, most in group.at_most.items())
        return close and self.branch == "direct" and self.seconds <= group.seconds

    def row(self) -> tuple[str, ...]:
        """The run's row of the table."""
        return (
            str(self.seed),
            f"{self.kl:.5f}",
            f"{self.ratios['one_step']:.3f}",
            f"{self.ratios['two_step']:.3f}",
            f"{self.beta:.1f}; {self.optimum}",
            self.branch,
            f"{self.seconds:.0f}",
        )


def main() -> int:
    """Measure the groups that the command line names."""
    parser = argparse.ArgumentParser(prog="scripts/measure_recipes", description=__doc__)
    parser.add_argument(
        "groups",
        nargs="*",
        metavar="GROUP",
        help=f"any of {', '.join(GROUPS)}, or 'ablations' (default: {', '.join(PROMISES)})",
    )
    chosen: list[str] = []
    for name in parser.parse_args().groups or PROMISES:
        chosen += ABLATIONS if name == "ablations" else [name]
    unknown = sorted(set(chosen) - set(GROUPS))
    if unknown:
        parser.error(f"unknown group {unknown[0]}; the known ones are {', '.join(GROUPS)}")
    return measure({name: GROUPS[name] for name in chosen}, OUT, PAGE)


def measure(groups: Mapping[str, Group], out: Path, page: Path) -> int:
    """Train all runs of groups, or those that are missing, and write the groups' sections.

    Args:
        groups: the groups by name.
        out: the directory of the sweep that trains them.
        page: the page whose sections are replaced; that of an unfinished group is left as it is.

    Returns:
        The exit code.
    """
    code = run_grid(recipes_grid(groups), out)
    if code == BAD_INPUT:
        return code
    rows = read_rows(read_sweep(out))
    for name, group in groups.items():
        found = [row for row in rows if row["group"] == name]
        if len(found) == group.seeds:
            replace_section(page, section(name, group, found))
        else:
            count = f"{len(found)} of {group.seeds} runs finished"
            print(f"{name}: {count}; its section is left as it is", file=sys.stderr)
    return code


def section(name: str, group: Group, rows: Sequence[Row]) -> str:
    """The section of a group.

    Args:
        name: the name of the group.
        group: the group.
        rows: the rows of all its runs in the table of the sweep.

    Returns:
        Its heading, what made it, its table, and how many runs succeeded.
    """
    seeds = "task and model seed" if group.task_seed is None else "model seed"
    header = (
        seeds,
        "KL",
        "over one-step MD",
        "over two-step MD",
        "β; optimum (range within one standard error)",
        "branch",
        "seconds of training",
    )
    outcomes = [outcome_of(row) for row in rows]
    reached = sum(outcome.meets(group) for outcome in outcomes)
    middle = median(outcome.ratios["one_step"] for outcome in outcomes)
    provenance = Provenance(f"scripts/measure_recipes {name}", versions_of(rows), {})
    parts = [
        f"## {group.title(name)}",
        *provenance.markdown(),
        f"Machine: {processor_name()}, threads: {THREADS}. SHA-256 of the settings:",
        f"    {group.digest}  {name}",
        table(header, [outcome.row() for outcome in outcomes]),
        f"Reached ({group.criterion}): {reached} of {group.seeds}; median {middle:.3f} × one-step "
        "MD.",
    ]
    return "\n\n".join(parts) + "\n"


def outcome_of(row: Row) -> Outcome:
    """What a run reached, from its row in the table of the sweep."""
    for name in STEPS:
        if row.get(f"kl_of_{name}") is None:
            raise SystemExit(f"{row['name']}: {name} could not be tuned on its task")
    return Outcome(
        seed=row["seed"],
        kl=row["kl"],
        ratios={name: row["kl"] / row[f"kl_of_{name}"] for name in STEPS},
        beta=row["beta"],
        optimum=optimum_text(row),
        branch=row["branch"],
        seconds=row["run.seconds"],
    )


def optimum_text(row: Row) -> str:
    """The tuned β of a row with its interval, or that it is flat."""
    if row.get("optimal_flat") is None:
        return f"{row['optimal_beta']:.1f} (interval not recorded)"
    interval = Interval(row["optimal_low"], row["optimal_high"])
    return interval.text("β", row["optimal_beta"], row["optimal_flat"])


def versions_of(rows: Sequence[Row]) -> dict[str, str]:
    """The software that the runs were trained with, by name; earlier runs may have had another."""
    found: dict[str, str] = {}
    for name in versions():
        numbers = {row[f"run.{name}"] for row in rows}
        found[name] = " and ".join(sorted(numbers))
    return found


if __name__ == "__main__":
    sys.exit(main())
