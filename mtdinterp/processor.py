"""The processor of this machine: results are bit-identical on one type of processor."""

import platform
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@cache
def processor_name() -> str:
    """The processor's name, or the machine's type if the system does not tell."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return platform.machine()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()
