"""`mtdinterp probe`: what a checkpoint learned, in words and numbers."""

import argparse
import difflib
import json
from typing import Any

from mtdinterp.commands.flags import add_json_flag, at_least, not_empty
from mtdinterp.commands.progress import stages

PROBES = {
    "recover_transition": "which transition matrix it learned, and where it can be seen",
    "recover_beta": "which learning rate, at three levels",
    "compare_attention": "how far every layer's attention is from the construction's",
    "decode_latents": "where the algorithm's quantities can be read linearly",
    "identify_algorithm": "which estimator explains its predictions best",
    "trace_development": "when it learned what, from its training history",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    listed = "\n".join(f"  {name:<20} {question}" for name, question in PROBES.items())
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
        type=_known,
        metavar="NAME",
        dest="probes",
        help="one of the probes below; may be given several times (default: all)",
    )
    parser.add_argument(
        "--sequences",
        type=at_least(32),
        metavar="N",
        help="sequences to probe on, 32 or more (default: each probe's own)",
    )
    parser.add_argument(
        "--seed", type=at_least(0), default=0, metavar="N", help="seed of those sequences (0)"
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def _known(name: str) -> str:
    if name in PROBES:
        return name
    close = difflib.get_close_matches(name, PROBES, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise argparse.ArgumentTypeError(
        f"unknown probe {name!r}: the known ones are {', '.join(PROBES)}{hint}"
    )


def run(options: argparse.Namespace) -> int:
    from mtdinterp.checkpoint_files import find_checkpoint

    find_checkpoint(options.checkpoint)  # before anything heavy is imported
    names = list(dict.fromkeys(options.probes or PROBES))
    with stages(1 + len(names)) as stage:
        stage("importing")
        from mtdinterp import load_checkpoint
        from mtdinterp.results import to_plain

        checkpoint = load_checkpoint(options.checkpoint)
        results: dict[str, Any] = {}
        for name in names:
            if name == "trace_development" and not checkpoint.history and not options.probes:
                continue  # a construction was never trained
            stage(name)
            results[name] = run_probe(name, checkpoint, options.sequences, options.seed)
    if options.json:
        print(
            json.dumps(
                {"checkpoint": str(checkpoint.path), "seed": options.seed, **to_plain(results)},
                indent=1,
            )
        )
    else:
        print(f"{checkpoint!r}\n")
        print(
            "\n\n".join(
                f"{name}: {PROBES[name]}\n{result.summary()}" for name, result in results.items()
            )
        )
    return 0


def run_probe(name: str, checkpoint: Any, n_sequences: int | None, seed: int) -> Any:
    """One probe by its name, on so many sequences or on its own number of them."""
    import probes

    if name == "trace_development":
        return probes.trace_development(checkpoint)
    count = {} if n_sequences is None else {"n_sequences": n_sequences}
    return getattr(probes, name)(checkpoint.model, checkpoint.task, seed=seed, **count)
