"""Measure how many small faults in the code its tests notice; see the package `mutation`."""

import argparse
import importlib
import json
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mutation.controls import Controls, control_files, run_controlled, task_unchanged
from mutation.explained import Change, read_explained
from mutation.groups import GROUPS, files_of, group_of
from mutation.mutants import Mutant, mutants_of
from mutation.running import Outcome, Task
from mutation.scores import Score
from mutation.touching import Touching, measure

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = (
    "torch transformer_lens scipy.optimize scipy.special numpy matplotlib.pyplot safetensors.torch "
    "fastapi uvicorn httpx starlette.testclient tqdm einops"
)
"""Imported once, before any fork."""

Result = tuple[Mutant, Outcome]
Note = Callable[[list[Result]], None]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument(
        "package", help=f"{', '.join(GROUPS)}, a path, or path:line for the mutants of one line"
    )
    parser.add_argument(
        "--sample", type=int, default=200, help="number of mutants (default: 200; 0 for all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: 2)")
    parser.add_argument("--tests", nargs="+", help="tests to run instead of the package's own")
    parser.add_argument(
        "--json", type=Path, help="write every mutant and its outcome to this file, as they come"
    )
    parser.add_argument(
        "--again",
        type=Path,
        help="run only the mutants that an earlier --json file does not list as killed",
    )
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--libraries", default=LIBRARIES, help=argparse.SUPPRESS)
    return parser.parse_args()


def draw_sample(
    by_file: dict[str, list[Mutant]], lines: dict[str, int], size: int, seed: int
) -> list[Mutant]:
    """Mutants of every file, in proportion to its lines.

    Args:
        by_file: all mutants of each file.
        lines: the number of lines of each file that has mutants.
        size: how many to draw; 0 for all.
        seed: of the draw. The draw from a file does not depend on the other files.

    Returns:
        The sample, in the order of files and lines.
    """
    if not size or size >= sum(map(len, by_file.values())):
        return [mutant for mutants in by_file.values() for mutant in mutants]
    shares = {file: size * lines[file] / sum(lines.values()) for file in by_file}
    counts = {file: int(share) for file, share in shares.items()}
    # What rounding down left over goes to the largest remainders, and what a file cannot give to
    # the next ones.
    by_remainder = sorted(shares, key=lambda file: counts[file] - shares[file])
    counts = {file: min(count, len(by_file[file])) for file, count in counts.items()}
    while sum(counts.values()) < size:
        for file in by_remainder:
            if sum(counts.values()) < size and counts[file] < len(by_file[file]):
                counts[file] += 1
    sample = []
    for file, mutants in by_file.items():
        order = list(range(len(mutants)))
        random.Random(f"{seed}:{file}").shuffle(order)
        sample += [mutants[index] for index in sorted(order[: counts[file]])]
    return sample


def choose(options: argparse.Namespace, files: list[str], line: int | None) -> list[Mutant]:
    """The mutants that the command line asks for."""
    by_file: dict[str, list[Mutant]] = {}
    lines: dict[str, int] = {}
    for file in files:
        source = (options.root / file).read_text()
        mutants = mutants_of(file, source)
        if line is not None:
            mutants = [mutant for mutant in mutants if mutant.line == line]
        if mutants:
            by_file[file] = mutants
            lines[file] = len(source.splitlines())
    return draw_sample(by_file, lines, options.sample, options.seed)


def killed_before(mutants: list[Mutant], path: Path | None) -> list[Result]:
    """The mutants that an earlier --json file lists as killed, with their outcomes."""
    if path is None:
        return []
    known: dict[Change, Outcome] = {}
    for entry in json.loads(path.read_text())["mutants"]:
        # A file from before occurrences were counted does not say which of them was killed.
        if entry["killed"] and "occurrence" in entry:
            change = (entry["file"], entry["before"], entry["after"], entry["occurrence"])
            known[change] = Outcome(True, entry["how"], entry["seconds"])
    return [(mutant, known[key_of(mutant)]) for mutant in mutants if key_of(mutant) in known]


def key_of(mutant: Mutant) -> Change:
    """What names a mutant even after its file has changed elsewhere."""
    return (mutant.file, mutant.before, mutant.after, mutant.occurrence)


def task_for(mutant: Mutant, touching: Touching) -> Task:
    """The tests to run: those that touch the line, then the others that touch the file.

    A test of the second kind can see the change where a value is computed once and kept.
    """
    of_file = touching.tests_of_file(mutant.file)
    of_line = of_file if mutant.on_import else touching.tests_of_line(mutant.file, mutant.lines)
    tests = touching.fastest_first(of_line)
    if tests:
        tests += touching.fastest_first(of_file - of_line)
    return Task(mutant, tests, touching.seconds)


def tasks_unchanged(root: Path, tasks: list[Task], touching: Touching) -> list[Task]:
    """The control of every file that has mutants: all tests that touch it."""
    files = dict.fromkeys(task.mutant.file for task in tasks)
    return [
        task_unchanged(
            root, file, touching.fastest_first(touching.tests_of_file(file)), touching.seconds
        )
        for file in files
    ]


def run_mutants(
    options: argparse.Namespace,
    tasks: list[Task],
    touching: Touching,
    results: list[Result],
    note: Note,
    controls: Controls,
) -> list[Result]:
    """Run mutants, with a line of progress.

    Args:
        options: the command line.
        tasks: the mutants to run, with their tests.
        touching: which tests touch which file.
        results: those that are known.
        note: called with all results so far after every mutant.
        controls: what runs of the unchanged source show is noted here.

    Returns:
        All results, in the order of files and lines.
    """
    total = len(results) + len(tasks)
    untouched = Outcome(False, "no test touches the line", 0.0)
    results = results + [(task.mutant, untouched) for task in tasks if not task.tests]
    touched = [task for task in tasks if task.tests]
    for library in options.libraries.split():
        with suppress(ImportError):
            importlib.import_module(library)
    unchanged = tasks_unchanged(options.root, touched, touching)
    print(f"running {len(unchanged)} files unchanged", file=sys.stderr)
    control_files(options.root, unchanged, options.jobs, controls)
    for mutant, outcome in run_controlled(options.root, touched, options.jobs, controls):
        results.append((mutant, outcome))
        note(results)
        survived = sum(not outcome.killed for _, outcome in results)
        line = f"\r{len(results)}/{total} mutants, {survived} survived"
        print(line, end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return sorted(results, key=lambda result: (result[0].file, result[0].line, result[0].after))


def print_report(results: list[Result], reasons: dict[Change, str], controls: Controls) -> None:
    """Survivors, then the controls, then the score without and with the explained ones."""
    survivors = [(mutant, outcome) for mutant, outcome in results if not outcome.killed]
    explained = [mutant for mutant, _ in survivors if key_of(mutant) in reasons]
    for mutant, outcome in survivors:
        note = f" ({outcome.how})" if outcome.how else ""
        print(f"{mutant}{note}\n  - {mutant.before}\n  + {mutant.after}")
        if key_of(mutant) in reasons:
            print(f"  = {reasons[key_of(mutant)]}")
    killed = len(results) - len(survivors)
    timeouts = sum(outcome.how == "timeout" for _, outcome in results)
    crashes = sum(outcome.how.startswith("crash") for _, outcome in results)
    unexplained = len(survivors) - len(explained)
    print(
        f"{len(results)} mutants: {killed} killed ({timeouts} by a timeout, {crashes} by a crash), "
        f"{unexplained} survived, {len(explained)} explained"
    )
    print(controls)
    for test, how in controls.left_out.items():
        print(f"left out, since it fails on unchanged source: {test} ({how})")
    print(f"score without explained mutants: {Score(killed, unexplained)}")
    print(f"score with them as survivors:    {Score(killed, len(survivors))}")


def as_json(results: list[Result], reasons: dict[Change, str], controls: Controls) -> dict:
    """Everything that is known about every mutant."""
    return {
        "controls": {
            "runs": controls.runs,
            "files": sorted(controls.files),
            "tests": sorted(controls.tests),
            "left_out": controls.left_out,
        },
        "mutants": [
            {
                "file": mutant.file,
                "line": mutant.line,
                "kind": mutant.kind,
                "before": mutant.before,
                "after": mutant.after,
                "occurrence": mutant.occurrence,
                "killed": outcome.killed,
                "how": outcome.how,
                "seconds": round(outcome.seconds, 2),
                "reason": None if outcome.killed else reasons.get(key_of(mutant)),
            }
            for mutant, outcome in results
        ],
    }


def main() -> None:
    options = parse_arguments()
    options.root = options.root.resolve()
    name, _, line = options.package.partition(":")
    try:
        group = group_of(options.root, name)
    except ValueError as error:
        sys.exit(f"scripts/mutate: {error}")
    files = files_of(options.root, group)
    mutants = choose(options, files, int(line) if line else None)
    print(f"{len(mutants)} mutants of {len(files)} files", file=sys.stderr)
    tests = options.tests or [test for test in group.tests if (options.root / test).exists()]
    touching = measure(options.root, files, tests)
    for test in touching.failing:
        print(f"left out, since it fails without a mutant: {test}", file=sys.stderr)
    reasons = read_explained(options.root / "scripts" / "mutation" / "explained.txt")

    controls = Controls()

    def note(results: list[Result]) -> None:
        if options.json:
            content = json.dumps(as_json(results, reasons, controls), indent=1)
            options.json.write_text(content + "\n")

    known = killed_before(mutants, options.again)
    done = {id(mutant) for mutant, _ in known}
    tasks = [task_for(mutant, touching) for mutant in mutants if id(mutant) not in done]
    results = run_mutants(options, tasks, touching, known, note, controls)
    note(results)
    print_report(results, reasons, controls)


if __name__ == "__main__":
    main()
