"""Wording that the reports of several interventions share."""

import math

from mtdinterp.explanation import Explanation


def unknown_constants(explanation: Explanation) -> str:
    """Why the algorithm's constants are not known to be the model's; empty if they are."""
    if not explanation.fitted:
        return (
            f"the algorithm explains only {explanation.explained:.0%} of the model's predictions "
            "beyond uniform weights, so its constants are not the model's"
        )
    if explanation.at_bound:
        return f"the fit of {', '.join(explanation.at_bound)} ended at the bound of its range"
    if not explanation.identified:
        return "the model's predictions determine the algorithm's constants only in part"
    return ""


def number(value: float, digits: int = 2) -> str:
    """A number for a table; a dash if it is not finite."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "—"
