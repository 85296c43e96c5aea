"""One file per question about a model, found by listing this package.

Each probe returns a frozen result with a `summary()`, and with the claims and blocks that make its
part of the report.
"""

from probes.compare_attention import AttentionComparison, compare_attention
from probes.decode_latents import LatentDecoding, decode_latents
from probes.effective_attention import EffectiveAttention, effective_attention
from probes.identify_algorithm import AlgorithmIdentification, identify_algorithm
from probes.recover_beta import BetaRecovery, recover_beta
from probes.recover_reweighting import ReweightingRecovery, recover_reweighting
from probes.recover_transition import TransitionRecovery, recover_transition
from probes.trace_development import Development, trace_development

__all__ = [
    "AlgorithmIdentification",
    "AttentionComparison",
    "BetaRecovery",
    "Development",
    "EffectiveAttention",
    "LatentDecoding",
    "ReweightingRecovery",
    "TransitionRecovery",
    "compare_attention",
    "decode_latents",
    "effective_attention",
    "identify_algorithm",
    "recover_beta",
    "recover_reweighting",
    "recover_transition",
    "trace_development",
]
