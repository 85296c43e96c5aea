"""The examples of docs/extending.md are the plugins that the tests install."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = (HERE.parent.parent / "docs" / "extending.md").read_text()
EXAMPLES = ("peak_offset", "recency", "powers", "narrow", "last_token")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_shows_the_code_that_is_tested(name):
    source = (HERE / "package" / "src" / "mtd_menagerie" / f"{name}.py").read_text()
    assert f"```python\n{source}```" in PAGE


def test_the_page_shows_the_entry_points_that_are_tested():
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    tested = (HERE / "package" / "pyproject.toml").read_text()
    for line in shown.splitlines():
        assert line in tested.splitlines()
    for name in EXAMPLES:
        assert f"mtd_menagerie.{name}" in shown
