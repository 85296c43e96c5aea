"""Write every generated page of the documentation, and the generated grid files.

The generators are the files scripts/generate_*.py; each has a function main() that writes its
files. `--check` writes too, and fails if that changed a file.
"""

import argparse
import importlib
import sys
from pathlib import Path

from mtdinterp.sweep.grid import SHIPPED

SCRIPTS = Path(__file__).parent
ROOT = SCRIPTS.parent


def main() -> int:
    """Run all generators."""
    parser = argparse.ArgumentParser(prog="scripts/build_docs", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a file was not current"
    )
    options = parser.parse_args()
    before = _files()
    for name in generators():
        # A generator has its own command line, which must not read this one's flags.
        sys.argv = [name]
        importlib.import_module(name).main()
    after = _files()
    changed = [path for path in after if before.get(path) != after[path]]
    for path in changed:
        print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)
    if not changed:
        print("all generated files are current", file=sys.stderr)
    return 1 if options.check and changed else 0


def generators() -> list[str]:
    """The modules that generate files."""
    return sorted(path.stem for path in SCRIPTS.glob("generate_*.py"))


def _files() -> dict[Path, str]:
    """The text of README.md, of all pages below docs and of all shipped grids."""
    paths = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *SHIPPED.glob("*.yaml")]
    return {path: path.read_text(encoding="utf-8") for path in sorted(paths)}


if __name__ == "__main__":
    sys.exit(main())
