"""What an algorithm is: an estimator with explicit intermediate variables.

Each variable is a formula of the evidence and of the variables before it. An interchange replaces
one of them with its value on another sequence and recomputes all later ones.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jaxtyping import Float64
from torch import Tensor

from mtdinterp.estimators.base import Constants, Estimator
from mtdinterp.evidence import Evidence

Values = dict[str, Tensor]
"""Variables by name."""


@dataclass(frozen=True)
class Variable:
    """One intermediate quantity of an algorithm."""

    name: str
    symbol: str
    """How formulas and tables write it."""
    compute: Callable[[Evidence, Values, Mapping[str, float | Tensor]], Tensor]
    """Its formula: from the evidence, the variables before it, and the constants."""
    per_step: bool = False
    """Whether it lives at every observed position; otherwise at the last one only."""
    as_attention: bool = False
    """Whether it can be a layer's attention over the components; otherwise layers write it."""


class Algorithm(Estimator):
    """An estimator as a sequence of variables, the last of which are the weights."""

    variables: tuple[Variable, ...]

    @abstractmethod
    def default_constants(self, evidence: Evidence) -> Constants:
        """Constants of a usual size, for a reference when none can be fitted or tuned."""

    def natural_sizes(self, evidence: Evidence, constants: Constants) -> Constants:
        """The unit in which the precision of each constant is judged."""
        return {name: max(abs(value), 0.1) for name, value in constants.items()}

    def run(
        self, evidence: Evidence, given: Values | None = None, /, **constants: float | Tensor
    ) -> Values:
        """All variables, in the order in which they are computed.

        Args:
            evidence: the evidence of the sequences.
            given: values that replace some variables; later variables are computed from them.
            **constants: the algorithm's constants.

        Returns:
            Values by variable.
        """
        values: Values = {}
        for variable in self.variables:
            if given is not None and variable.name in given:
                values[variable.name] = given[variable.name]
            else:
                values[variable.name] = variable.compute(evidence, values, constants)
        return values

    def weights(
        self, evidence: Evidence, **constants: float | Tensor
    ) -> Float64[Tensor, "batch component"]:
        return self.run(evidence, None, **constants)["weights"]

    def variable(self, name: str) -> Variable:
        """The variable of that name; an unknown name is an error that lists the known ones."""
        known = {variable.name: variable for variable in self.variables}
        if name not in known:
            raise ValueError(f"variable: expected one of {', '.join(known)}; got {name!r}")
        return known[name]
