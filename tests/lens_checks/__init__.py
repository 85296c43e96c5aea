"""Which tools of TransformerLens work on which architecture, tool by tool.

Each module declares checks. `tests/test_lens_page.py` runs them, and
`scripts/generate_lens_page.py` makes `docs/transformerlens.md` of them.
"""

from lens_checks import caches, patches, running, tools, uneven, weights
from lens_checks.base import ARCHITECTURES, CHECKS, Check, Section, outcome

SECTIONS = (
    running.forward,
    running.hooks,
    caches.caches,
    weights.weights,
    patches.patches,
    tools.tools,
    uneven.uneven,
)
"""In the order of the page."""

__all__ = ["ARCHITECTURES", "CHECKS", "SECTIONS", "Check", "Section", "outcome"]
