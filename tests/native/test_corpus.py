"""The corpus of inputs, in a process of its own: right, or refused in a sentence, and no crash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtdinterp.native import compiling

TESTS = Path(__file__).parent.parent


def run(*command, **environment):
    """Run Python with the tests' own modules at hand."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", *command],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_case_is_computed_correctly_or_refused():
    result = run("-m", "native.corpus")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert ", 0 wrong" in result.stdout


OUT_OF_MEMORY = """
import resource, torch
from mtdinterp.native.attention import fused_relative_attention
torch.set_num_threads(1)
small = torch.ones(1, 1, 1, 1)
table = torch.ones(1, 60_000, 1)
fused_relative_attention(small, small, small, small, table[:, :1], table[:, :1])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, used + 2**28))
row = torch.ones(4_000)
q, k = row.expand(1, 1, 1, -1), row.expand(1, 60_000, 1, -1)
try:
    fused_relative_attention(q, small, k, small.expand(1, 60_000, 1, 1), table, table)
except MemoryError as error:
    print(error)
"""


def test_a_kernel_without_enough_memory_is_an_error_and_no_abort():
    """The inputs are views of one row, and the kernel's copy of the keys has a gigabyte."""
    result = run("-c", OUT_OF_MEMORY)
    assert result.returncode == 0, result.stderr[-3000:]
    expected = "relative_attention_forward: not enough memory for the kernel; use a smaller batch\n"
    assert result.stdout == expected


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """The environment of a process whose kernels have both sanitizers compiled in."""
    compiler = compiling.find_compiler().command
    # The C++ runtime comes along, or the sanitizer does not find the exceptions that torch throws.
    runtimes = [
        subprocess.run(
            [*compiler, f"-print-file-name={name}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    return {
        "MTDINTERP_CACHE": str(tmp_path_factory.mktemp("cache")),
        "MTDINTERP_CXXFLAGS": "-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all",
        "LD_PRELOAD": " ".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
    }


@pytest.mark.slow
@pytest.mark.promise
def test_the_kernels_are_clean_under_the_sanitizers(sanitized):
    """The corpus and the usual tests with Address- and UndefinedBehaviorSanitizer."""
    tests = [
        "tests/native/test_fused_attention.py",
        "tests/native/test_fused_step.py",
        "tests/tasks/test_mtd_task.py",
        "tests/estimators/test_bayes.py::test_both_implementations_of_the_likelihood_agree",
    ]
    for command in (
        ["-m", "native.corpus"],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
    ):
        result = run(*command, **sanitized)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


BEYOND = """
import torch
from mtdinterp.native import attention, use_kernels
assert use_kernels()
attention._check = lambda *operands: None
operand = torch.ones(1, 8, 1, 8)
short = torch.ones(1, 4, 8)
attention.fused_relative_attention(operand, operand, operand, operand, short, short)
"""


@pytest.mark.slow
@pytest.mark.promise
def test_the_sanitizers_would_report_a_read_outside_of_a_table(sanitized):
    """Without the checks, a table that is too short: this test tests the one above."""
    result = run("-c", BEYOND, **sanitized)
    assert result.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in result.stderr
