"""Checkpoints: a round trip is exact, and damage gives one clear error."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from mtdinterp import (
    CheckpointError,
    LagSpecificMTDTask,
    MTDTask,
    load_checkpoint,
    save_checkpoint,
)
from mtdinterp.checkpoints.digests import CHECKSUMS, config_digest, tensors_digest
from mtdinterp.construction import one_step, one_step_standard, two_step
from mtdinterp.models import DisentangledConfig, DisentangledTransformer

TASK = MTDTask.random(4, 3, seed=0, concentration=[0.5, 1.0, 2.0])
MODELS = {
    "one_step": lambda: one_step(TASK.transition, 3, 12, 9.0),
    "one_step_float64": lambda: one_step(TASK.transition, 3, 12, 9.0, dtype=torch.float64),
    "two_step": lambda: two_step(TASK.transition, 3, 12, 5.0, 3.0, 1.0, 6.0),
    "one_step_standard": lambda: one_step_standard(TASK.transition, 3, 12, 9.0),
    "untrained": lambda: DisentangledTransformer(
        DisentangledConfig(vocab_size=4, length=12, n_heads=(1, 2, 1))
    ),
}


def test_a_flipped_bit_anywhere_in_the_weights_is_noticed(saved):
    content = (saved / "model.safetensors").read_bytes()
    for place in range(0, len(content), len(content) // 40):
        damaged = bytearray(content)
        damaged[place] ^= 4
        (saved / "model.safetensors").write_bytes(bytes(damaged))
        with pytest.raises(CheckpointError, match=r"model\.safetensors: "):
            load_checkpoint(saved)


def test_another_digit_in_the_configuration_is_noticed(saved):
    config = json.loads((saved / "config.json").read_text())
    row = config["task"]["transition"][0]
    row[0], row[1] = row[0] + 1e-9, row[1] - 1e-9
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="checksums differ"):
        load_checkpoint(saved)


def test_checksums_that_are_none_are_damage(saved):
    tensors = load_file(saved / "model.safetensors")
    for text in ("", "{", "[1]", "7"):
        save_file(tensors, saved / "model.safetensors", metadata={"checksums": text})
        with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged"):
            load_checkpoint(saved)


@pytest.fixture
def saved(tmp_path):
    return save_checkpoint(tmp_path / "model", MODELS["one_step"](), TASK)


@pytest.mark.parametrize("name", MODELS)
def test_a_round_trip_gives_the_same_model_and_task(name, tmp_path):
    model = MODELS[name]()
    history = [{"step": 0, "kl": 0.5}, {"step": 10, "kl": 0.25}]
    save_checkpoint(tmp_path / "c", model, TASK, seeds={"task": 0}, history=history)
    loaded = load_checkpoint(tmp_path / "c")
    assert "step 10: KL 0.25" in repr(loaded)
    tokens = TASK.sample(5, 12, seed=1).tokens
    assert torch.equal(loaded.model(tokens), model(tokens))
    assert loaded.model.config == model.config
    assert not loaded.model.training
    assert torch.equal(loaded.task.transition, TASK.transition)
    assert (loaded.task.order, loaded.task.concentration) == (TASK.order, TASK.concentration)
    assert loaded.history == history
    assert loaded.config["seeds"] == {"task": 0}


def test_a_task_of_another_kind_comes_back_equal(tmp_path):
    task = LagSpecificMTDTask.random(4, 3, seed=0, concentration=[0.5, 1.0, 2.0])
    model = MODELS["untrained"]()
    save_checkpoint(tmp_path / "c", model, task)
    loaded = load_checkpoint(tmp_path / "c")
    assert loaded.task == task
    assert loaded.task != TASK
    assert loaded.config["task"]["kind"] == "lag-specific"
    assert "m = 3, T = 12, one transition matrix per lag" in repr(loaded)
    tokens = task.sample(5, 12, seed=1).tokens
    assert torch.equal(loaded.model(tokens), model(tokens))


def test_a_task_without_a_kind_is_an_mtd_task(saved):
    """As older files have it; their checksums are over the configuration as it was written."""
    config = json.loads((saved / "config.json").read_text())
    assert config["task"].pop("kind") == "mtd"
    (saved / "config.json").write_text(json.dumps(config))
    tensors = load_file(saved / "model.safetensors")
    checksums = json.dumps([tensors_digest(tensors), config_digest(config)])
    save_file(tensors, saved / "model.safetensors", metadata={CHECKSUMS: checksums})
    loaded = load_checkpoint(saved)
    assert loaded.task == TASK
    assert "kind" not in loaded.config["task"]


def test_a_kind_of_task_that_is_not_known_is_named(saved):
    edit_config(saved, task={"kind": "hmm"})
    with pytest.raises(CheckpointError, match=r"task: expected one of .*; got 'hmm'"):
        load_checkpoint(saved)


def test_nothing_but_the_checkpoint_is_left_behind(saved):
    assert [path.name for path in saved.parent.iterdir()] == ["model"]
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]


def test_saving_again_replaces_a_checkpoint_and_spares_anything_else(saved, tmp_path):
    save_checkpoint(saved, one_step(TASK.transition, 3, 20, 2.0), TASK)
    assert load_checkpoint(saved).model.config.length == 20
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis.tex").write_text("all of it")
    with pytest.raises(CheckpointError, match="expected a new or empty directory"):
        save_checkpoint(tmp_path / "papers", MODELS["one_step"](), TASK)
    assert (tmp_path / "papers" / "thesis.tex").read_text() == "all of it"


def test_only_a_checkpoint_is_replaced(saved, tmp_path):
    """A directory that merely has a config.json is somebody's, and so is a checkpoint with notes in
    it."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"hidden_size": 768}')
    with pytest.raises(CheckpointError, match="expected checkpoint schema 1"):
        save_checkpoint(tmp_path / "other", MODELS["one_step"](), TASK)
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"it contains notes\.txt"):
        save_checkpoint(saved, MODELS["one_step"](), TASK)
    assert (saved / "notes.txt").read_text() == "mine"


def edit_config(path, **changes):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))


def damage_truncated(path):
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[: len(content) // 2])


def damage_other_model(path):
    other = save_checkpoint(path.parent / "other", one_step(TASK.transition, 3, 30, 9.0), TASK)
    shutil.copy(other / "model.safetensors", path)


DAMAGES = {
    "no such checkpoint directory": lambda path: shutil.rmtree(path),
    "not a checkpoint (config.json is missing)": lambda path: (path / "config.json").unlink(),
    "not valid JSON": lambda path: (path / "config.json").write_text('{"schema": 1,'),
    "expected checkpoint schema 1, got 7": lambda path: edit_config(path, schema=7),
    "expected checkpoint schema 1, got 'list'": lambda path: (path / "config.json").write_text(
        "[]"
    ),
    "got 'recurrent'": lambda path: edit_config(path, model={"architecture": "recurrent"}),
    "entry 'architecture' is missing": lambda path: edit_config(path, model={}),
    "expected rows that sum to 1": lambda path: edit_config(
        path, task={"transition": [[1, 1], [0, 1]], "order": 1}
    ),
    "expected a vocabulary of 4 tokens, like the model, got 2": lambda path: edit_config(
        path, task={"transition": [[0.5, 0.5], [0, 1]], "order": 1}
    ),
    "model.safetensors: missing": lambda path: (path / "model.safetensors").unlink(),
    "model.safetensors: damaged": damage_truncated,
    "does not match its config.json": damage_other_model,
    "expected tensor blocks.0.attn.R_A with shape (1, 12, 4), got none": lambda path: save_file(
        {"logit_scale": torch.tensor(1.0)}, path / "model.safetensors"
    ),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_damage_gives_one_clear_error(message, saved):
    DAMAGES[message](saved)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(saved)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
