"""Write docs/terms.md from the definitions that reports show."""

from pathlib import Path

from mtdinterp.report.definitions import terms_page

PAGE = Path(__file__).parent.parent / "docs" / "terms.md"


def main() -> None:
    """Write the page."""
    PAGE.write_text(terms_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
