"""A campaign: many cases of every reader, with a table of outcomes and all defects.

Unlike the tests, it does not stop at the first defect:

    PYTHONPATH=tests python -m fuzzing.campaign --cases 20000 --seed 1 --out out/defects.jsonl
"""

import argparse
import json
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from fuzzing.outcomes import DEFECT, LOADED, REFUSED, Outcome
from fuzzing.strategies import READERS, SHARES
from fuzzing.worker import Worker


@dataclass
class Tally:
    """Outcomes of one reader."""

    kinds: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    """The longest time that one case took."""
    bytes: int = 0
    """The most memory that one case used."""
    defects: list[dict[str, Any]] = field(default_factory=list)

    def add(self, reader: str, case: Any, outcome: Outcome) -> None:
        """Count one outcome."""
        self.kinds[outcome.kind] += 1
        self.seconds = max(self.seconds, outcome.seconds)
        self.bytes = max(self.bytes, outcome.bytes)
        if outcome.kind == DEFECT:
            self.defects.append({"reader": reader, "was": outcome.detail, "case": case})


def fuzz(worker: Worker, reader: str, n_cases: int, seed: int) -> Tally:
    """Read many cases of one reader.

    Args:
        worker: where they are read.
        reader: the name of the reader.
        n_cases: how many cases to draw.
        seed: of the draws.

    Returns:
        The outcomes.
    """
    tally = Tally()

    @hypothesis.seed(seed)
    @settings(
        max_examples=n_cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(READERS[reader](worker.outline))
    def read(case: Any) -> None:
        tally.add(reader, case, worker.run(reader, case))

    read()
    return tally


def main() -> None:
    """Run the campaign and print its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="number of cases in total")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--reader", action="append", choices=tuple(READERS), help="only this reader"
    )
    parser.add_argument("--out", type=Path, help="write every defect as a line of JSON")
    options = parser.parse_args()
    defects: list[dict[str, Any]] = []
    print(
        f"{'reader':<12} {'cases':>7} {LOADED:>7} {REFUSED:>8} {'defects':>8}  {'s':>5} {'MB':>5}"
    )
    with tempfile.TemporaryDirectory() as home, Worker(Path(home)) as worker:
        for reader in options.reader or READERS:
            tally = fuzz(worker, reader, round(options.cases * SHARES[reader]), options.seed)
            counts = [tally.kinds[kind] for kind in (LOADED, REFUSED, DEFECT)]
            print(
                f"{reader:<12} {sum(counts):>7} {counts[0]:>7} {counts[1]:>8} {counts[2]:>8}  "
                f"{tally.seconds:>5.2f} {tally.bytes / 1e6:>5.0f}",
                flush=True,
            )
            defects += tally.defects
    if options.out:
        options.out.write_text("".join(json.dumps(defect) + "\n" for defect in defects))
    for detail, number in Counter(defect["was"][:160] for defect in defects).most_common():
        print(f"{number:>5}  {detail}")


if __name__ == "__main__":
    main()
