"""Write docs/transformerlens.md: which of TransformerLens' tools work on which architecture.

Every row of its tables is a check in tests/lens_checks, which is run here and by the tests.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "transformerlens.md"
TEMPLATE = ROOT / "scripts" / "transformerlens.template.md"
sys.path.insert(0, str(ROOT / "tests"))

from lens_checks import ARCHITECTURES, CHECKS, SECTIONS, Check, outcome  # noqa: E402

MARK = "<!-- tables -->"
"""The line of the template that the tables replace."""


def remarks_of(check: Check) -> str:
    """The notes and reasons of a row: once if the architectures share them."""
    remarks = {name: check.remark(name) for name in ARCHITECTURES}
    if len(set(remarks.values())) == 1:
        return remarks[ARCHITECTURES[0]]
    return " ".join(f"*{name}:* {remark}" for name, remark in remarks.items() if remark)


def render(status: Callable[[Check, str], str]) -> str:
    """The page.

    Args:
        status: what a check says about an architecture.

    Returns:
        Markdown.
    """
    lines = []
    for section in SECTIONS:
        lines += [f"### {section.title}", "", "| tool | " + " | ".join(ARCHITECTURES) + " | |"]
        lines.append("|---" * (len(ARCHITECTURES) + 2) + "|")
        for check in CHECKS:
            if check.section == section.title:
                cells = [check.tool, *(status(check, name) for name in ARCHITECTURES)]
                lines.append("| " + " | ".join([*cells, remarks_of(check)]) + " |")
        lines.append("")
    template = TEMPLATE.read_text()
    return template.replace(MARK, "\n".join(lines).strip())


def main() -> None:
    """Run all checks and write the page."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(render(outcome))
    print(f"{PAGE.relative_to(ROOT)}: {len(CHECKS)} tools on {len(ARCHITECTURES)} architectures")


if __name__ == "__main__":
    main()
