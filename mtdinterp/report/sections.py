"""The evidence of one model, a function a section: findings in, blocks out."""

import math

import torch

from mtdinterp.fitting import WORDS
from mtdinterp.pages.blocks import (
    Bar,
    Bars,
    Block,
    Heading,
    Intervals,
    Level,
    Line,
    Lines,
    Map,
    Maps,
    Matrices,
    Matrix,
    Point,
    Reading,
    Table,
    Text,
)
from mtdinterp.report.findings import Findings
from probes import Development
from probes.decode_latents import QUANTITIES
from probes.identify_algorithm import PRICE
from probes.recover_transition import ESTIMATES

SYMBOLS = {
    "beta": "β",
    "learning_rate": "η",
    "strength": "s",
    "beta_first": "β₁",
    "sharpness": "a",
    "beta_mean": "c₁",
    "beta_reweighted": "c₂",
}
"""The constants of estimators, as they are written in formulas."""
MOMENTS = {
    "left_plateau": "plateau left",
    "beta": "β appears",
    "transition": "π appears",
    "branch": "branch chosen",
}


def attention(entry: Findings) -> list[Block]:
    compared = entry.attention
    constants = _constants(compared.constants)
    source = (
        "read from the model"
        if compared.fitted
        else "the task's optimum, since the model shows none"
    )
    blocks: list[Block] = [
        Text(
            (
                f"Next to the {compared.construction} construction with {constants} ({source}), on "
                "one sequence, its last "
                f"{len(entry.tokens)} positions. All maps have one scale, coloured by the square "
                "root of the attention. "
                "Outlined is what counts: the lags, or where a layer averages its last query; "
                "after layer 1 the construction "
                "is meant at the last query only.",
            ),
            "soft",
        )
    ]
    first = entry.checkpoint.model.config.length - len(entry.tokens)
    for found, layer in zip(entry.maps, compared.layers, strict=True):
        outline = _what_counts(
            found.layer, len(entry.maps), len(entry.tokens), entry.checkpoint.task.order
        )
        panels = tuple(
            Map(
                f"{title}, layer {found.layer}",
                values,
                first_row=first,
                first_column=first,
                outlines=(outline,),
            )
            for title, values in (("model", found.own), ("construction", found.ideal))
        )
        blocks.append(
            Maps(
                f"Layer {found.layer}",
                panels,
                1.0,
                "query",
                "key",
                note=(
                    f"Total variation {layer.distance:.3f} (uniform attention "
                    f"{layer.uniform_distance:.3f}); "
                    f"{layer.mass_on_lags:.0%} of the attention on the lags."
                ),
            )
        )
    return blocks


def _what_counts(layer: int, n_layers: int, size: int, order: int) -> tuple[Point, ...]:
    """Layer 1: offsets 1..m of every query. Where weights are taken: offsets 0..m-1 of the last
    one, the next token's lags; elsewhere all of the last query."""
    if layer == 1 and size > order + 1:
        return (0, 1), (size - 1, size), (size - 1 - order, size), (0, order + 1)
    left = size - order if layer == n_layers or (layer == 3 and n_layers >= 5) else 0
    return (left, size - 1), (size, size - 1), (size, size), (left, size)


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "—"


def _constants(values: dict[str, float]) -> str:
    return ", ".join(f"{SYMBOLS[name]} = {value:.3g}" for name, value in values.items())


def transition(entry: Findings) -> list[Block]:
    found, truth = entry.transition, entry.checkpoint.task.transition
    panels = (
        Matrix("the truth", "π", truth),
        Matrix(
            "the paper's probe",
            f"row KL {found.row_kl['attention_softmax']:.4f}",
            found.attention_softmax,
        ),
        Matrix("layer 1, gauge fixed", f"row KL {found.row_kl['attention']:.4f}", found.attention),
        Matrix("the output", f"row KL {found.row_kl['output']:.4f}", found.output),
    )
    rows = [
        (ESTIMATES[name], f"{found.row_kl[name]:.4f}", f"{found.total_variation[name]:.3f}")
        for name in ESTIMATES
    ]
    rows.append(("control: the token marginal alone", f"{found.control_kl:.4f}", ""))
    return [
        Matrices(
            "π and its recoveries, from token (down) to token (across)", panels, truth.max().item()
        ),
        Table(("read from", "row KL", "total variation"), tuple(rows)),
        *((Text((found.mixed,)),) if found.mixed else ()),
    ]


def learning_rate(entry: Findings) -> list[Block]:
    beta = entry.beta
    readings = [
        Reading("attention", beta.attention, beta.attention_stderr, f"R² {beta.attention_r2:.3f}"),
        Reading("output", beta.output, beta.output_stderr, f"R² {beta.output_r2:.3f}"),
    ]
    if math.isfinite(beta.weights):
        readings.insert(
            0,
            Reading(
                "weights",
                beta.weights,
                math.nan,
                f"{beta.weights_raw:.1f} × gain {beta.gain:.3f}, R² {beta.weights_r2:.3f}",
            ),
        )
    levels = tuple(
        level
        for level in (
            Level("one_step", "optimum", beta.optimal),
            Level("one_step_theory", "first-order theory", beta.theory),
        )
        if math.isfinite(level.value)
    )
    blocks: list[Block] = [
        Intervals("β at each level (± standard error, bars 95%)", tuple(readings), levels, "β")
    ]
    if beta.unclear:
        blocks.append(
            Text(
                (
                    f"By {' and '.join(beta.unclear)} the evidence is weak: this model may not do "
                    "one step of "
                    "mirror descent at all.",
                ),
                "soft",
            )
        )
    if beta.two_step is not None:
        fit = beta.two_step
        blocks.append(
            Table(
                (
                    "constant of the two-step construction",
                    "nearest to the predictions",
                    "standard error",
                ),
                tuple(
                    (SYMBOLS[name], f"{value:.3g}", f"{fit.stderr[name]:.2g}")
                    for name, value in fit.constants._asdict().items()
                ),
            )
        )
        known = sum(combination.identified for combination in fit.combinations)
        blocks.append(
            Text(
                (
                    f"With them the construction explains {fit.explained:.1%} of the predictions; "
                    f"{known} of "
                    f"{len(fit.combinations)} combinations of the constants are identified.",
                ),
                "soft",
            )
        )
    return blocks


def scores(entry: Findings) -> list[Block]:
    bars = [Bar("model", "this model", entry.model_score.kl, entry.model_score.stderr)]
    bars += [
        Bar(name, WORDS[name], found.kl, found.stderr) for name, found in entry.estimators.items()
    ]
    return [
        Bars(
            "KL to the truth, constants of estimators tuned to the truth",
            tuple(sorted(bars, key=lambda bar: bar.value)),
            "KL(truth ‖ prediction), held-out sequences",
        ),
        *(
            Text((f"Not computed: {WORDS[name]} ({why}).",), "soft")
            for name, why in entry.left_out.items()
        ),
        Text(
            (
                "Clipping moved the model's outputs by a total variation of "
                f"{entry.model_score.clipped:.1e} on "
                "average.",
            ),
            "soft",
        ),
    ]


def algorithm(entry: Findings) -> list[Block]:
    found = entry.algorithm
    rows = []
    for name in sorted(found.divergences, key=found.divergences.__getitem__):
        low, high = found.intervals[name]
        rows.append(
            (
                WORDS[name],
                f"{found.divergences[name]:.2e}",
                f"{low:.1e} to {high:.1e}",
                _constants(found.parameters[name]),
            )
        )
    rows += [(WORDS[name], "not computed", "", why) for name, why in found.left_out.items()]
    shifted = tuple(
        (
            condition,
            WORDS[name],
            f"{found.shifted[condition][name]:.2e}",
            f"{found.shifted[condition][found.best]:.2e}"
            if found.best in found.shifted[condition]
            else "—",
        )
        for condition, name in found.best_shifted.items()
    )
    return [
        Table(
            ("estimator", "KL(model ‖ it)", "95% interval", "constants fitted to the model"),
            tuple(rows),
        ),
        Text(
            (
                "Of estimators that cannot be told apart the one with the fewest constants is "
                "named, and each "
                f"constant beyond the first must bring it nearer by a factor {PRICE:g}.",
            ),
            "soft",
        ),
        Text(
            ("On sequences that the model never saw the like of, with the same constants:",), "soft"
        ),
        Table(("sequences", "named there", "its KL", "KL of the one named above"), shifted),
    ]


def latents(entry: Findings) -> list[Block]:
    rows = []
    for name, meaning in QUANTITIES.items():
        if name in entry.latents.table:
            place, found = entry.latents.best(name)
            rows.append(
                (
                    meaning,
                    place,
                    f"{found.r2:.3f}",
                    f"{found.shuffled_r2:.3f}",
                    f"{found.untrained_r2:.3f}",
                    f"{found.selectivity:.3f}",
                )
            )
    blocks: list[Block] = [
        Table(
            (
                "quantity",
                "best read from",
                "R²",
                "shuffled labels",
                "untrained model",
                "selectivity",
            ),
            tuple(rows),
        )
    ]
    if math.isfinite(entry.latents.ceiling):
        blocks.append(
            Text(
                (
                    f"λ itself can be known to R² {entry.latents.ceiling:.3f} at most: that of the "
                    "exact "
                    "posterior mean.",
                ),
                "soft",
            )
        )
    return blocks


def sweep(entry: Findings) -> list[Block]:
    """Recovery: which share of the way from the corrupted to the clean prediction a patched place
    goes."""
    found = entry.sweep
    way = found.clean - found.corrupted
    if abs(way) < 1e-9:
        return [Text(("The two runs predict the same: there is nothing to restore.",))]
    recovered = (found.values - found.corrupted) / way
    panels = []
    for layer in range(len(found.values)):
        effects = found.effects(layer)
        panels.append(
            Map(f"before layer {layer + 1}", torch.stack([*effects.values()]) / way, tuple(effects))
        )
    strongest = tuple(
        (
            str(layer + 1),
            str(position),
            found.parts[part],
            f"{recovered[layer, position, part].item():+.1%}",
        )
        for layer, position, part in found.strongest(6)
    )
    most = max(recovered.nan_to_num().abs().max().item(), 1e-9)
    return [
        Text(
            (
                "Clean blocks into runs on sequences that end in the same tokens but have other "
                "weights.",
            ),
            "soft",
        ),
        Maps(
            "What restores the clean prediction",
            tuple(panels),
            most,
            "block",
            "position",
            changes=True,
            note="Blue restores it, red moves away from it.",
        ),
        Table(("layer", "position", "block", "restored"), strongest),
    ]


def causes(entry: Findings) -> list[Block]:
    swaps = tuple(
        (
            found.variable.replace("_", " "),
            found.site,
            *(
                _number(value)
                for value in (found.r2, found.control_r2, found.mismatched_r2, found.mean_r2)
            ),
        )
        for found in entry.interchanges.values()
    )
    steering = entry.steering
    steered = (
        Line("one_step", "the formula", tuple(zip(steering.doses, steering.expected, strict=True))),
        Line("model", "this model", tuple(zip(steering.doses, steering.moved, strict=True))),
    )
    blocks: list[Block] = []
    if swaps:
        blocks += [
            Heading("Interchange"),
            Table(
                ("variable", "best site", "R²", "random site", "another source", "the site's mean"),
                swaps,
            ),
        ]
        if not all(found.algorithm.identified for found in entry.interchanges.values()):
            blocks.append(
                Text(
                    (
                        "The algorithm's constants are only partly determined by the model's "
                        "predictions, and "
                        "with them what the algorithm says of a swap: these rows decide nothing.",
                    ),
                    "soft",
                )
            )
    blocks += [
        Heading("Steering"),
        Text(
            (
                f"The formula explains {steering.explained:.1%} of how the output moves."
                if math.isfinite(steering.explained)
                else "The formula says that nothing should move.",
            )
        ),
        Lines(
            "All weight on lag 1: how far the output moves",
            steered,
            "dose: share of the attention that is replaced",
            "total variation",
        ),
    ]
    if entry.transplants:
        rows = tuple(
            (
                str(found.layer + 1),
                found.source.replace("_", " "),
                f"{found.kl_before:.5f}",
                f"{found.kl_after:.5f}",
                f"{found.difference:+.5f} ± {found.difference_stderr:.5f}",
            )
            for found in entry.transplants
        )
        blocks += [
            Heading("Transplanted attention"),
            Table(
                ("layer", "attention of the construction", "KL before", "KL after", "difference"),
                rows,
            ),
        ]
    if entry.circuit is not None:
        circuit = entry.circuit
        blocks += [
            Heading("Minimal circuit"),
            Text(
                (
                    f"{len(circuit.edges)} of {circuit.n_edges} edges keep "
                    f"{circuit.faithfulness:.1%} of the "
                    f"predictions (KL {circuit.kl:.1e}).",
                )
            ),
            Table(
                ("edge", "KL if it alone is cut"),
                tuple((str(edge), f"{circuit.effects[edge]:.2e}") for edge in circuit.edges),
            ),
        ]
    return blocks


def history(entry: Findings) -> list[Block]:
    found = entry.development
    if found is None:
        return []
    by_step: dict[int, list[str]] = {}
    for name, step in found.events.items():
        if step is not None:
            by_step.setdefault(step, []).append(MOMENTS[name])
    moments = tuple((float(step), ", ".join(words)) for step, words in sorted(by_step.items()))
    never = [MOMENTS[name] for name, step in found.events.items() if step is None]
    levels = tuple(
        Level(name, WORDS[name], entry.estimators[name].kl) for name in ("uniform", "one_step")
    )
    optimum = (
        (Level("one_step", "optimum", entry.beta.optimal),)
        if math.isfinite(entry.beta.optimal)
        else ()
    )
    blocks: list[Block] = [
        Lines(
            "KL to the truth over training",
            (Line("model", "this model", _series(found, "kl")),),
            "step",
            "KL to the truth",
            True,
            levels,
            moments,
        ),
        Lines(
            "β over training, by attention",
            (Line("model", "this model", _series(found, "beta")),),
            "step",
            "β",
            levels=optimum,
            moments=moments,
        ),
    ]
    if never:
        blocks.append(Text((f"Never seen: {', '.join(never)}.",), "soft"))
    return blocks


def _series(found: Development, name: str) -> tuple[Point, ...]:
    return tuple(
        (float(step), value)
        for step, value in zip(found.steps, found.series[name], strict=True)
        if value is not None and math.isfinite(value)
    )


SECTIONS = {
    "Attention": attention,
    "The transition matrix": transition,
    "The learning rate": learning_rate,
    "KL to the truth": scores,
    "Which algorithm": algorithm,
    "Where the quantities live": latents,
    "What a patch restores": sweep,
    "Does it use them?": causes,
    "How it came about": history,
}
"""In the order of the report."""
