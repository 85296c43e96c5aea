"""Wording that the reports of several interventions share."""

from mtdinterp.criteria import EXPLAINED
from mtdinterp.explanation import Explanation
from mtdinterp.formatting import explained_text


def unknown_constants(explanation: Explanation) -> str:
    """Why the algorithm's constants are not known to be the model's; empty if they are."""
    if not explanation.fitted:
        return (
            f"the algorithm explains {explained_text(explanation.explained, 0)} of how the "
            f"predictions differ from those of uniform weights (needed: {EXPLAINED:.0%}), so its "
            "constants are not the model's"
        )
    if explanation.at_bound:
        return f"the fit of {', '.join(explanation.at_bound)} ended at the bound of its range"
    if not explanation.identified:
        return "the model's predictions only partly determine the constants of the algorithm"
    return ""
