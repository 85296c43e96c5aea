"""The undamaged files: a run of a tiny model that can be resumed, and what commands take."""

import io
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.tasks import MTDTask, Sample
from mtdinterp.training import HeldOut, Recipe
from mtdinterp.training.run import new_run

VOCAB_SIZE = 3
ORDER = 2
LENGTH = 6
STEPS = 8
TAKEN = 4
"""Steps that the run has taken when it is damaged."""
PLUGIN = '"""Registers nothing."""\n'


class Materials:
    """The bytes and the structure of the undamaged files."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def bytes(self, name: str) -> bytes:
        """The contents of a file."""
        return (self.home / name).read_bytes()

    @cached_property
    def held_out(self) -> HeldOut:
        """Something to evaluate a resumed run on."""
        return held_out()

    @cached_property
    def state(self) -> dict[str, Any]:
        """The contents of training.pt."""
        return torch.load(io.BytesIO(self.bytes("run/training.pt")), weights_only=True)

    @cached_property
    def header(self) -> tuple[dict[str, Any], bytes]:
        """The header of the weights file, and the bytes after it."""
        content = self.bytes("run/model.safetensors")
        end = 8 + int.from_bytes(content[:8], "little")
        return json.loads(content[8:end]), content[end:]

    @cached_property
    def outline(self) -> dict[str, Any]:
        """Everything that strategies change parts of, as JSON can hold it."""
        history = self.bytes("run/history.jsonl").decode().splitlines()
        return {
            "config": json.loads(self.bytes("run/config.json")),
            "weights": self.header[0],
            "history": [json.loads(line) for line in history],
            "training": _outline(self.state),
        }


def held_out() -> HeldOut:
    """A few sequences, with made-up scores of the estimators."""
    task = _task()
    data: Sample = task.sample(8, LENGTH, 0)
    return HeldOut(task, data, {"uniform": 0.2, "one_step": 0.1}, tuned=None)


def _task() -> MTDTask:
    return MTDTask.random(VOCAB_SIZE, ORDER, seed=0)


def make(home: Path) -> None:
    """Write all files into a new directory."""
    home.mkdir()
    torch.manual_seed(0)
    task = _task()
    config = DisentangledConfig(vocab_size=VOCAB_SIZE, length=LENGTH, d_rel=ORDER)
    model = DisentangledTransformer(config)
    recipe = Recipe(steps=STEPS, batch_size=4, learning_rate=0.01, evaluate_every=2, save_every=2)
    seeds = {"task": 0, "model": 0}
    with new_run(home / "run", model, task, recipe, seeds, held_out()) as run:
        run.train(lambda trainer: trainer.step < TAKEN)
    torch.save(model.state_dict(), home / "weights.pt")
    names = {name: name for name in model.state_dict()}
    (home / "mapping.json").write_text(json.dumps(names))
    tokens = task.sample(2, LENGTH, 1).tokens
    with torch.no_grad():
        outputs = model(tokens)
    np.savez(home / "reference.npz", tokens=tokens.numpy(), outputs=outputs.numpy())
    matrix = task.transition.numpy()
    np.savetxt(home / "pi.csv", matrix, delimiter=",", fmt="%.17g")
    np.save(home / "pi.npy", matrix)
    (home / "pi.json").write_text(json.dumps(matrix.tolist()))
    (home / "plugin.py").write_text(PLUGIN)


def _outline(value: Any) -> Any:
    """Nested values with tensors as marked objects; keys of dictionaries become pairs."""
    if isinstance(value, torch.Tensor):
        return {"$tensor": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, dict):
        return {"$pairs": [[key, _outline(entry)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        return [_outline(entry) for entry in value]
    return value
