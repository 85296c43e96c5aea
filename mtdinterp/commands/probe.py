"""`mtdinterp probe`: what a checkpoint learned, in words and numbers."""

import argparse
import json
from typing import Any

from mtdinterp import catalogue
from mtdinterp.commands.flags import add_json_flag, at_least, not_empty, probe_names
from mtdinterp.commands.progress import stages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    listed = "\n".join(f"  {name:<20} {label}" for name, label in catalogue.known("probe").items())
    parser.epilog = (
        f"probes:\n{listed}\n\nexamples:\n  mtdinterp probe disentangled-m4-T64\n"
        "  mtdinterp probe out/m4 --probe recover_beta --json\n"
        "  mtdinterp probe standard-m4-T64 --probe recover_transition --probe identify_algorithm"
    )
    parser.add_argument(
        "checkpoint",
        type=not_empty,
        metavar="CHECKPOINT",
        help="a checkpoint directory, or the name of a zoo model",
    )
    parser.add_argument(
        "--probe",
        action="append",
        type=not_empty,
        metavar="NAME",
        dest="probes",
        help="run this probe, listed below; may be given several times (default: all)",
    )
    parser.add_argument(
        "--sequences",
        type=at_least(32),
        metavar="N",
        help="number of sequences, at least 32 (default: depends on the probe)",
    )
    parser.add_argument(
        "--seed",
        type=at_least(0),
        default=0,
        metavar="N",
        help="seed of the sequences (default: 0)",
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the probes and print what they found."""
    from mtdinterp.checkpoint_files import find_checkpoint

    find_checkpoint(options.checkpoint)  # before anything heavy is imported
    names = list(dict.fromkeys(options.probes or probe_names(options)))
    with stages(2 + len(names)) as stage:
        stage("importing")
        from mtdinterp import load_checkpoint
        from mtdinterp.report.collect import collect_probes

        checkpoint = load_checkpoint(options.checkpoint)
        findings = collect_probes(
            checkpoint,
            names if options.probes else None,
            n_sequences=options.sequences,
            seed=options.seed,
            stage=stage,
        )
    print(_as_json(checkpoint, findings) if options.json else _as_text(checkpoint, findings))
    # A probe that was asked for and failed is an error; one that does not apply is an answer.
    return 1 if options.probes and findings.failed else 0


def _as_json(checkpoint: Any, findings: Any) -> str:
    from mtdinterp.report import judge
    from mtdinterp.results import to_plain

    printed = {"checkpoint": str(checkpoint.path), "seed": findings.seed}
    printed |= to_plain(findings.probes)
    if findings.not_computed:
        printed["not_computed"] = findings.not_computed
    if "identify_algorithm" in findings.probes:
        printed["verdict"] = to_plain(judge(findings))
    return json.dumps(printed, indent=1)


def _as_text(checkpoint: Any, findings: Any) -> str:
    from mtdinterp.registry import PROBES
    from mtdinterp.report import judge
    from mtdinterp.results import origin_of

    parts = [repr(checkpoint)]
    for name, result in findings.probes.items():
        origin = origin_of(result)
        measured = f"\n({origin})" if origin else ""
        parts.append(f"{name}: {PROBES[name].label}\n{result.summary()}{measured}")
    for name, why in findings.not_computed.items():
        parts.append(f"{name}: {PROBES[name].label}\nNot computed: {why}")
    if "identify_algorithm" in findings.probes:
        verdict = judge(findings)
        sentences = "\n".join([*verdict.sentences, *verdict.short_misfits()])
        missing = PROBES.keys() - findings.probes.keys() - findings.not_computed.keys()
        left_out = [
            name for name in PROBES if name in missing and PROBES[name].needs != "checkpoint"
        ]
        without = f", without {', '.join(left_out)}" if left_out else ""
        parts.append(f"verdict by the probes alone{without}\n{sentences}")
    return "\n\n".join(parts)
