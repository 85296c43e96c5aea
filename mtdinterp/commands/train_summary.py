"""What `mtdinterp train` shows: one evaluation on the live line, and the table at the end."""

from typing import TYPE_CHECKING, Any

from mtdinterp.formatting import MISSING, fixed

if TYPE_CHECKING:
    from mtdinterp.training import HeldOut
    from mtdinterp.training.run import Run

ESTIMATOR_LABELS = {
    "uniform": "uniform weights",
    "one_step": "one-step MD (tuned)",
    "two_step": "two-step MD (tuned)",
    "exact_bayes": "exact posterior mean",
}
"""Labels of the held-out estimators in the table of results."""
LABEL_WIDTH = 22
"""Least width of the column of labels, so that it lines up with the lines below the table."""
READINGS = ("kl", "kl_stderr", "ratio", "beta", "beta_r2", "gain", "gain_r2", "branch")
"""Entries of the last evaluation that the summary repeats."""


def live_evaluation(entry: dict[str, Any]) -> str:
    """One evaluation in a few characters."""
    parts = [
        f"KL {entry['kl']:.5f}",
        f"{_number(entry['ratio'], 3)}×MD",
        f"β {_number(entry['beta'])}",
        entry["branch"],
    ]
    if entry["loss"] is not None:
        parts.insert(0, f"loss {entry['loss']:.5f}")
    return " ".join(parts)


def _number(value: float | None, digits: int = 1) -> str:
    """A reading rounded to some decimals, or a dash if it does not apply."""
    return MISSING if value is None else fixed(value, digits)


def run_summary(running: "Run") -> dict[str, Any]:
    """What a run reached, as plain values for `--json`."""
    from mtdinterp.training.shortfall import shortfall

    trainer = running.trainer
    held_out = trainer.held_out
    last = trainer.history[-1]
    return {
        "checkpoint": str(running.path),
        "step": trainer.step,
        "steps": trainer.recipe.steps,
        "evaluated_at": last["step"],
        "seconds": trainer.seconds,
        "attention_path": trainer.model.attention_path(training=True).name,
        **{key: last[key] for key in READINGS},
        **_optimum(held_out),
        "kl_of_estimators": held_out.kl,
        "left_out": held_out.left_out,
        "notes": held_out.notes,
        "warning": shortfall(last, trainer.recipe) if trainer.finished else None,
    }


def _optimum(held_out: "HeldOut") -> dict[str, Any]:
    """The tuned β, the ends of its interval (None if open), and whether it is flat."""
    tuned = held_out.tuned
    if tuned is None:
        return {"optimal_beta": None, "optimal_interval": None, "optimal_flat": False}
    return {
        "optimal_beta": tuned.beta,
        "optimal_interval": list(tuned.interval),
        "optimal_flat": tuned.flat,
    }


def _optimum_text(result: dict[str, Any]) -> str:
    """The optimum with its interval, or that it is flat; a dash if there is none."""
    from mtdinterp.estimators.optimum import Interval

    if result["optimal_beta"] is None:
        return MISSING
    interval = Interval(*result["optimal_interval"])
    return interval.text("β", result["optimal_beta"], result["optimal_flat"])


def _estimator_label(name: str) -> str:
    """The label of a held-out estimator; those of plugins have their own."""
    from mtdinterp.registry import ESTIMATORS

    return ESTIMATOR_LABELS.get(name) or ESTIMATORS[name].label


def summary_table(result: dict[str, Any]) -> str:
    """The values of `run_summary` as a table to read."""
    lines = [
        f"step {result['step']} of {result['steps']}, {result['seconds']:.1f} s of training",
        f"KL(truth ‖ prediction) on held-out sequences at step {result['evaluated_at']}, standard "
        f"error {result['kl_stderr']:.1g}:",
    ]
    values = {"this model": f"{result['kl']:.5f}"}
    for name, kl in result["kl_of_estimators"].items():
        note = result["notes"].get(name)
        values[_estimator_label(name)] = f"{kl:.5f}" + (f" ({note})" if note else "")
    for name, reason in result["left_out"].items():
        values[_estimator_label(name)] = f"not computed: {reason}"
    width = max(LABEL_WIDTH, *map(len, values))
    lines += [f"  {label:<{width}} {value}" for label, value in values.items()]
    gain = ""
    if result["gain"] is not None:
        gain = f" (gain {result['gain']:.2f}, R² {_number(result['gain_r2'], 2)})"
    beta = _number(result["beta"])
    beta_r2 = _number(result["beta_r2"], 2)
    lines += [
        f"ratio to one-step MD     {_number(result['ratio'], 3)}",
        f"β of the last layer      {beta} (R² {beta_r2}; optimum {_optimum_text(result)})",
        f"branch                   {result['branch']}{gain}",
        f"checkpoint               {result['checkpoint']}",
    ]
    return "\n".join(lines)
