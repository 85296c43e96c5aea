"""One module a question about a model. Each probe returns a frozen result with a plain-language `summary()`."""

from probes.recover_beta import BetaRecovery, recover_beta
from probes.recover_transition import TransitionRecovery, recover_transition

__all__ = ["BetaRecovery", "TransitionRecovery", "recover_beta", "recover_transition"]
