"""Change a run and measure what follows.

Patches and sweeps, steering and transplants, interchanges, and minimal circuits.
"""

from mtdinterp.interventions.circuit import (
    Circuit,
    Edge,
    ablate_edges,
    minimal_circuit,
    patch_paths,
)
from mtdinterp.interventions.edits import Edit, FromRun, MeanOver, Noise, Share
from mtdinterp.interventions.interchange import Interchange, interchange
from mtdinterp.interventions.patching import PatchResult, patch
from mtdinterp.interventions.steering import (
    DoseResponse,
    dose_response,
    steer_weights,
    steering_edit,
)
from mtdinterp.interventions.sweep import SweepResult, patch_sweep
from mtdinterp.interventions.transplants import Transplant, transplant_attention

__all__ = [
    "Circuit",
    "DoseResponse",
    "Edge",
    "Edit",
    "FromRun",
    "Interchange",
    "MeanOver",
    "Noise",
    "PatchResult",
    "Share",
    "SweepResult",
    "Transplant",
    "ablate_edges",
    "dose_response",
    "interchange",
    "minimal_circuit",
    "patch",
    "patch_paths",
    "patch_sweep",
    "steer_weights",
    "steering_edit",
    "transplant_attention",
]
