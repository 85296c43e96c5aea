"""Inputs that the kernels must compute correctly or refuse; whatever failed once stays here.

`python -m native.corpus` runs all of them on one and on two threads, in a process of its own, so
that a crash is a result. The default tests do so with the usual library, and the sanitizer test
with one that reports every access outside of an array.
"""

from native.corpus.arrays import ARRAY_CASES
from native.corpus.attention import ATTENTION_CASES
from native.corpus.base import Case
from native.corpus.step import STEP_CASES

__all__ = ["CASES", "Case"]

CASES: tuple[Case, ...] = (*ATTENTION_CASES, *STEP_CASES, *ARRAY_CASES)
