"""Readers with known defects, to test that the harness notices each of them."""

import importlib
import os
import pickle
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from fuzzing import canaries
from fuzzing.damage import Canary
from fuzzing.materials import Materials

REFUSALS = (ValueError,)


def prepare(materials: Materials) -> None:
    """Nothing is shared."""


def build(reader: str, case: Any, directory: Path, materials: Materials) -> None:
    """Nothing is built."""


def read(reader: str, case: Any, directory: Path, materials: Materials) -> str:
    """Fail in the way that the case names."""
    if case == "hang":
        time.sleep(60)
    elif case == "allocate":
        return str(len(bytearray(2 * 10**9)))
    elif case == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif case == "exit":
        os._exit(3)
    elif case == "unexpected":
        raise KeyError("step")
    elif case == "two lines":
        raise ValueError("first\nsecond")
    elif case == "no message":
        raise ValueError
    elif case == "unpickle":
        pickle.loads(pickle.dumps(Canary(str(canaries.mark(canaries.PICKLE_MARK)))))
    elif case == "import":
        importlib.import_module(canaries.MODULE)
    elif case == "program":
        subprocess.run(["true"], check=True)
    elif case == "refuse":
        raise ValueError("expected a number, got a text")
    return "read"
