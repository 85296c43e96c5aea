"""Python imports this file at its start: processes that a test starts run the same mutant.

The variable names a file whose first line is the path of the mutated file; the rest is its source.
"""

import os
from pathlib import Path

from substitute import substitute

_mutant = os.environ.get("MTDINTERP_MUTANT")
if _mutant:
    _path, _, _source = Path(_mutant).read_bytes().partition(b"\n")
    substitute(_path.decode(), _source)
