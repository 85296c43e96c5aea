"""Optional logging to Weights & Biases, offline unless the environment says otherwise."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def tracker(
    project: str | None, name: str, config: Mapping[str, Any]
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Log evaluations while the context lasts.

    A resumed run is logged as a new run in the same group.

    Args:
        project: the Weights & Biases project; None to log nothing.
        name: the name of the run and its group.
        config: settings to store with the run.

    Returns:
        A context manager whose value is a function to call with every evaluation.
    """
    if project is None:
        yield lambda entry: None
        return
    import wandb

    mode: Any = os.environ.get("WANDB_MODE", "offline")
    run = wandb.init(project=project, name=name, group=name, config=dict(config), mode=mode)
    try:
        yield lambda entry: run.log(dict(entry), step=entry["step"])
    finally:
        run.finish()
