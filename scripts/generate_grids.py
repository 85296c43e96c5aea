"""Write the grid files that ship with the package and repeat what is defined in Python."""

from collections.abc import Mapping
from typing import Any

import yaml
from build_zoo import zoo_grid
from recipe_groups import GROUPS, recipes_grid

from mtdinterp.sweep.grid import SHIPPED
from mtdinterp.training.zoo import ENTRIES

LONGEST_LINE = 1000  # one model per line
NOTICE = "# Written by scripts/build_docs from {source}.\n"


def main() -> None:
    """Write the files."""
    for name, text in grid_files().items():
        (SHIPPED / name).write_text(text, encoding="utf-8")


def grid_files() -> dict[str, str]:
    """The contents of the files, by name."""
    return {
        "recipes.yaml": _text(recipes_grid(GROUPS), "GROUPS in scripts/recipe_groups.py"),
        "zoo.yaml": _text(zoo_grid(ENTRIES), "ENTRIES in mtdinterp/training/zoo.py"),
    }


def _text(contents: Mapping[str, Any], source: str) -> str:
    """A grid as YAML, with settings on one line each unless some are nested."""
    body = yaml.safe_dump(
        dict(contents),
        sort_keys=False,
        default_flow_style=None,
        width=LONGEST_LINE,
        allow_unicode=True,
    )
    return NOTICE.format(source=source) + body


if __name__ == "__main__":
    main()
