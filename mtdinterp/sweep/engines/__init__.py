"""Engines: where and when cells run. Everything else, truth included, is in the cells' files."""

from mtdinterp.sweep.engines.base import Engine, EngineError, Resources

ENGINES = {
    "local": "processes on this machine",
    "ray": "tasks of a Ray cluster, or of one started for the sweep",
    "slurm": "job arrays of a Slurm cluster",
}
"""Names and descriptions, for help."""

__all__ = ["ENGINES", "Engine", "EngineError", "Resources"]
