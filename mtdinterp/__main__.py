"""`python -m mtdinterp` is the command line."""

import sys

from mtdinterp.cli import main

sys.exit(main())
