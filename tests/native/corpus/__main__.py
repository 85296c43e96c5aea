"""Run the corpus; the name of a case is printed before it runs."""

import sys
from collections import Counter

import torch
from native.corpus import CASES

from mtdinterp.native import use_kernels


def main() -> int:
    """Run every case on one and on two threads.

    Returns:
        The exit code: 0 if all cases did what they should.
    """
    if not use_kernels():
        print("the kernels are not available")
        return 1
    repeated = [name for name, count in Counter(case.name for case in CASES).items() if count > 1]
    wrong = [f"{name}: the name is not unique" for name in repeated]
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for case in CASES:
            print(f"{case.name}, {threads} threads", flush=True)
            problem = case.problem()
            if problem:
                wrong.append(f"{case.name}: {problem}")
    print("\n".join(["", *wrong, f"{len(CASES)} cases, {len(wrong)} wrong"]))
    return 1 if wrong else 0


sys.exit(main())
