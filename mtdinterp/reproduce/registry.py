"""Which figures there are, in the order of the paper. Names alone: the command line lists them
before it starts."""

import difflib
from typing import NamedTuple

ALL = "all"


class Source(NamedTuple):
    """Where a figure is made and what it shows."""

    module: str
    function: str
    summary: str


FIGURES = {
    "attention": Source(
        "attention",
        "attention_maps",
        "attention of trained models next to the construction's, m = 4",
    ),
    "kl-lengths": Source(
        "lengths", "kl_against_length", "KL to the truth against sequence length, m = 3, 4, 5"
    ),
    "transition": Source(
        "transition", "transition_matrices", "π read from layer 1: row softmax, and gauge fixed"
    ),
    "five-layers": Source(
        "steps", "five_layers", "five layers against k steps of mirror descent, three seeds"
    ),
    "regularised-path": Source(
        "path", "regularised_path", "entropy-regularised likelihood between Bayes and the MLE"
    ),
    "attention-grids": Source("attention", "attention_grids", "attention maps for m = 3 and m = 5"),
    "dimensions": Source(
        "tables", "dimensions", "widths of the residual stream (the paper's Table 1)"
    ),
    "parameters": Source(
        "tables", "parameters", "experimental parameters, the paper's and these (Table 2)"
    ),
    "first-order": Source(
        "first_order", "first_order", "one step is Bayes to first order, at one rate only"
    ),
    "learning-rate": Source(
        "learning_rate", "learning_rate", "the tuned rate times T, and the smoothness bounds"
    ),
    "gradient": Source("gradient", "gradient", "how the likelihood's gradient grows with length"),
}


def chosen(names: list[str]) -> list[str]:
    """The figures that names mean, each once and in the paper's order; an unknown name suggests the
    nearest."""
    for name in names:
        if name not in (*FIGURES, ALL):
            close = difflib.get_close_matches(name, [*FIGURES, ALL], n=1, cutoff=0.4)
            hint = (
                f"did you mean {close[0]}?"
                if close
                else f"there are {', '.join(FIGURES)} and {ALL}"
            )
            raise ValueError(f"no figure is called {name!r}; {hint}")
    return [name for name in FIGURES if ALL in names or name in names]
