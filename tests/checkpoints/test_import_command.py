"""`mtdinterp import`: the same from the command line, from files alone."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mtdinterp import load_checkpoint
from mtdinterp.cli import main

NAME = "disentangled-m4-T64"


@pytest.fixture
def files(tmp_path):
    """Weights with other names and orientations, and what describes them, as files."""
    original = load_checkpoint(NAME)
    foreign = {}
    mapping = {}
    for name, tensor in original.model.state_dict().items():
        foreign[f"net.{name}"] = tensor.mT.contiguous()
        mapping[name] = [f"net.{name}", "transpose"]
    foreign["net.mask"] = torch.ones(2)
    save_file(foreign, tmp_path / "weights.safetensors")
    (tmp_path / "mapping.json").write_text(json.dumps(mapping))
    described = {"model": original.config["model"], "task": original.config["task"]}
    (tmp_path / "config.json").write_text(json.dumps(described))
    tokens = original.task.sample(3, 64, seed=0).tokens
    with torch.no_grad():
        outputs = original.model(tokens, last_only=True)
    np.savez(tmp_path / "reference.npz", tokens=tokens, outputs=outputs)
    return tmp_path


def run(files, *further):
    flags = ["--config", str(files / "config.json"), "--mapping", str(files / "mapping.json")]
    target = ["--out", str(files / "out"), "--ignore", "net.mask"]
    return main(["import", str(files / "weights.safetensors"), *flags, *target, *further])


def test_a_checkpoint_is_written(files, capsys):
    assert run(files, "--reference", str(files / "reference.npz")) == 0
    assert "agree with those of the original program on 3 sequences" in capsys.readouterr().out
    found = load_checkpoint(files / "out")
    expected = load_checkpoint(NAME)
    assert found.task == expected.task
    for name, tensor in expected.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], tensor)
    assert found.config["recipe"] == {"name": "imported"}


def test_without_a_reference_it_says_so(files, capsys):
    assert run(files, "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["checked_sequences"] is None
    assert "a wrong transpose of a square matrix would go unnoticed" in captured.err
    assert captured.err.count("unnoticed") == captured.err.count("warning") == 1


def test_a_reference_of_one_token_is_refused(files, capsys):
    tokens = torch.tensor([[1]])
    with torch.no_grad():
        outputs = load_checkpoint(NAME).model(tokens)
    np.savez(files / "reference.npz", tokens=tokens, outputs=outputs)
    assert run(files, "--reference", str(files / "reference.npz")) == 2
    assert "does not determine the orientation of" in capsys.readouterr().err
    assert not (files / "out").exists()


def test_a_wrong_transpose_is_refused_and_nothing_is_written(files, capsys):
    mapping = json.loads((files / "mapping.json").read_text())
    mapping["blocks.1.attn.W_A"] = "net.blocks.1.attn.W_A"
    (files / "mapping.json").write_text(json.dumps(mapping))
    assert run(files, "--reference", str(files / "reference.npz")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("mtdinterp import: blocks.1.attn.W_A: it was imported in the wrong")
    assert not (files / "out").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "not valid JSON"),
        ("[1]", "expected a JSON object, got list"),
        ("{}", "entry 'task' is missing"),
    ],
)
def test_a_configuration_that_does_not_fit(files, capsys, content, sentence):
    path = files / "config.json"
    path.write_text(content)
    assert run(files) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"mtdinterp import: {path}: ")
    assert sentence in error


def test_an_architecture_is_looked_up_by_its_name_and_nothing_is_imported(files, capsys):
    path = files / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"model": {"architecture": "os.system"}}))
    assert run(files) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "architecture: expected one of" in error
    del config["model"]
    path.write_text(json.dumps(config))
    assert run(files) == 2
    assert "entry 'model' is missing" in capsys.readouterr().err


def test_names_in_a_file_cannot_control_the_terminal(files, capsys):
    (files / "mapping.json").write_text(json.dumps({"\x1b[2Jα\u202e": "x"}))
    assert run(files, "--mapping", str(files / "mapping.json")) == 2
    error = capsys.readouterr().err
    assert "\x1b" not in error
    assert "\u202e" not in error
    save_file({"\x1b[2Jα": torch.ones(2)}, files / "weights.safetensors")
    (files / "mapping.json").write_text("{}")
    assert run(files) == 2
    error = capsys.readouterr().err
    assert "\x1b" not in error
    assert "\\x1b[2Jα" in error
