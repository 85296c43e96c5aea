"""The state of a run is checked field by field; what does not fit is refused in one sentence."""

import io
import json
import os
import shutil
import time
import zipfile

import pytest
import torch

from mtdinterp import CheckpointError, MTDTask, load_checkpoint
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.training import HeldOut, Recipe
from mtdinterp.training.run import new_run, resumed_run
from mtdinterp.training.state import read_state

TASK = MTDTask.random(3, 2, seed=0)
LENGTH = 8
HELD_OUT = HeldOut.prepare(TASK, LENGTH, n_sequences=32, bayes=False)
RECIPE = Recipe(steps=20, batch_size=4, learning_rate=1e-2, evaluate_every=5, save_every=5)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run that was stopped after nine steps."""
    path = tmp_path_factory.mktemp("original") / "run"
    config = DisentangledConfig(vocab_size=3, length=LENGTH, d_rel=2)
    model = DisentangledTransformer(config)
    with new_run(path, model, TASK, RECIPE, {"model": 0}, HELD_OUT) as run:
        run.train(after_step=lambda trainer: trainer.step < 9)
    return path


@pytest.fixture
def stopped(original, tmp_path):
    """A copy of that run."""
    return shutil.copytree(original, tmp_path / "run")


def refusal(path):
    """The sentence with which a run is refused."""
    with pytest.raises(CheckpointError) as caught, resumed_run(path, HELD_OUT):
        pass
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def rewrite(path, change):
    """Change the state in a run's directory."""
    state = read_state(path)
    change(state)
    torch.save(state, path / "training.pt")


def with_field(name, value):
    def change(state):
        state[name] = value

    return change


def without_field(name):
    def change(state):
        del state[name]

    return change


def with_adam(key, value):
    def change(state):
        entry = state["optimizer"]["state"][0]
        entry[key] = value(entry[key])

    return change


def with_history(**changes):
    def change(state):
        history = json.loads(state["history"])
        state["history"] = json.dumps([*history[:-1], {**history[-1], **changes}])

    return change


def with_weight(value):
    def change(state):
        name = next(iter(state["model"]))
        state["model"][name] = value(state["model"][name])

    return change


def with_optimizer_entry(place, entry):
    def change(state):
        state["optimizer"]["state"][place] = entry

    return change


CHANGES = {
    "another shape of the first moment": with_adam("exp_avg", lambda old: old[..., :1].clone()),
    "an empty second moment": with_adam("exp_avg_sq", lambda old: torch.zeros(0)),
    "another dtype of a moment": with_adam("exp_avg", lambda old: old.double()),
    "a negative second moment": with_adam("exp_avg_sq", lambda old: old - 1),
    "a moment that is not finite": with_adam("exp_avg", lambda old: old * torch.nan),
    "a moment that is not a tensor": with_adam("exp_avg", lambda old: old.tolist()),
    "half a step": with_adam("step", lambda old: old + 0.5),
    "more steps than taken": with_adam("step", lambda old: old + 1),
    "steps of another shape": with_adam("step", lambda old: old[None]),
    "a parameter that does not exist": with_optimizer_entry(10_000, {}),
    "a parameter by name": with_optimizer_entry("first", {}),
    "an empty entry": with_optimizer_entry(0, {}),
    "an optimizer without a state": with_field("optimizer", {}),
    "an optimizer that is a list": with_field("optimizer", []),
    "a weight of another shape": with_weight(lambda old: old[..., :1].clone()),
    "a weight that is not finite": with_weight(lambda old: old * torch.inf),
    "a weight in half precision": with_weight(lambda old: old.half()),
    "weights of nothing": with_field("model", {}),
    "weights that are a list": with_field("model", [1, 2]),
    "a step that is a text": with_field("step", "x"),
    "a step that is true": with_field("step", True),
    "a negative step": with_field("step", -1),
    "a step after the end": with_field("step", 21),
    "a huge step": with_field("step", 10**30),
    "seconds that are a text": with_field("seconds", "x"),
    "seconds that are not a number": with_field("seconds", float("nan")),
    "losses that are a list": with_field("losses", [1.0]),
    "too many losses": with_field("losses", torch.zeros(6, dtype=torch.float64)),
    "losses that are not finite": with_field("losses", torch.full((1,), torch.nan).double()),
    "losses with two axes": with_field("losses", torch.zeros(1, 1, dtype=torch.float64)),
    "a history of numbers": with_field("history", "[1]"),
    "a history that is an object": with_field("history", "{}"),
    "a history that is not JSON": with_field("history", "[{"),
    "a history that is a list": with_field("history", []),
    "a KL that is a text": with_history(kl="text"),
    "a KL that is infinite": with_history(kl=float("inf")),
    "a branch that is a number": with_history(branch=3),
    "an evaluation after the state": with_history(step=10),
    "an evaluation before the one before": with_history(step=0),
    "an evaluation without a step": with_history(step=None),
    "threads that are a text": with_field("threads", "two"),
    **{
        f"no {name}": without_field(name)
        for name in ("step", "model", "optimizer", "losses", "history", "seconds", "threads")
    },
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_state_that_does_not_fit_is_refused(what, stopped):
    rewrite(stopped, CHANGES[what])
    assert "training.pt does not match its config.json" in refusal(stopped)
    load_checkpoint(stopped)  # the model itself is not affected


def test_the_settings_of_the_optimizer_come_from_the_recipe(stopped):
    """A state that asks for maximisation or for a negative weight decay changes nothing."""

    def change(state):
        for group in state["optimizer"]["param_groups"]:
            group |= {"maximize": True, "weight_decay": -1.0, "betas": (0.0, 0.0), "eps": 10.0}

    rewrite(stopped, change)
    with resumed_run(stopped, HELD_OUT) as run:
        (group,) = run.trainer.optimizer.param_groups
        assert not group["maximize"]
        assert group["weight_decay"] == 0
        assert group["betas"] == RECIPE.adam_betas
        assert group["eps"] == 1e-8


def test_moments_that_share_memory_are_copied(stopped):
    """A tensor may have one number for all its entries; the optimizer writes to each of them."""
    rewrite(stopped, with_adam("exp_avg", lambda old: torch.zeros(1).expand(old.shape)))
    with resumed_run(stopped, HELD_OUT) as run:
        moment = run.trainer.optimizer.state_dict()["state"][0]["exp_avg"]
        assert moment.is_contiguous()
        run.train()


def repacked(path, compression, add=()):
    """Write training.pt again, with another compression or more members."""
    content = path.read_bytes()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(path, "w", compression) as new,
    ):
        for member in old.infolist():
            new.writestr(member.filename, old.read(member))
        for name, data in add:
            new.writestr(name, data)


def test_a_compressed_state_is_refused_before_it_is_unpacked(stopped):
    zeros = [("archive/data/99", bytes(10**7))]
    repacked(stopped / "training.pt", zipfile.ZIP_DEFLATED, zeros)
    assert "this one is compressed" in refusal(stopped)


def test_two_pickles_in_one_state_are_damage(stopped):
    repacked(stopped / "training.pt", zipfile.ZIP_STORED, [("other/data.pkl", b"\x80\x02}.")])
    assert "damaged" in refusal(stopped)


@pytest.mark.parametrize("kind", ["meta", "sparse"])
def test_tensors_without_ordinary_memory_are_refused(kind, stopped):
    change = (lambda old: old.to("meta")) if kind == "meta" else (lambda old: old.to_sparse())
    rewrite(stopped, with_weight(change))
    assert "objects other than tensors" in refusal(stopped)


class Reserving:
    """Unpickled by torch as a call that reserves as much memory as a file asks for."""

    def __reduce__(self):
        return bytearray, (10**11,)


def test_a_state_cannot_ask_for_memory(stopped):
    state = {**read_state(stopped), "seconds": Reserving()}
    torch.save(state, stopped / "training.pt")
    assert "objects other than tensors" in refusal(stopped)


def as_pipe(path):
    os.mkfifo(path)


def as_endless_device(path):
    path.symlink_to("/dev/zero")


def as_huge_file(path):
    with path.open("wb") as file:
        file.truncate(2**40)


def as_directory(path):
    path.mkdir()


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "history.jsonl", "training.pt"]
)
@pytest.mark.parametrize("kind", [as_pipe, as_endless_device, as_huge_file, as_directory])
def test_only_regular_files_of_a_bounded_size_are_read(kind, name, stopped):
    (stopped / name).unlink()
    kind(stopped / name)
    if name in ("config.json", "training.pt"):
        refusal(stopped)
    if name != "training.pt":
        with pytest.raises(CheckpointError, match=r"expected (a regular file|at most)"):
            load_checkpoint(stopped)


def nested(levels, wrap):
    value = 1.0
    for _ in range(levels):
        value = wrap(value)
    return value


LARGE_VALUES = {
    "lists that repeat": nested(25, lambda inner: [inner] * 4),
    "many levels": nested(200, lambda inner: [inner]),
    "a long number": 10**5000,
}


@pytest.mark.parametrize("name", ["seconds", "step", "model", "optimizer"])
@pytest.mark.parametrize("value", LARGE_VALUES.values(), ids=LARGE_VALUES)
def test_values_that_would_take_for_ever_to_show_are_refused_at_once(stopped, name, value):
    rewrite(stopped, with_field(name, value))
    started = time.monotonic()
    assert len(refusal(stopped)) < 500
    assert time.monotonic() - started < 5


def test_a_key_that_would_take_for_ever_to_hash_is_refused_at_once(stopped):
    # {t: 1} with t = (s, s, s), s = (r, r, r) and so on: the hash of t goes through 3^40 numbers.
    parts = [b"\x80\x02}K\x01"]
    for place in range(40):
        number = bytes([place])
        parts.append(b"q" + number + b"h" + number + b"h" + number + b"\x87")
    instructions = b"".join([*parts, b"K\x01s."])
    replace_member(stopped / "training.pt", "data.pkl", instructions)
    started = time.monotonic()
    assert "repeats a tuple" in refusal(stopped)
    assert time.monotonic() - started < 5


def replace_member(path, name, content):
    """Replace a member of an archive."""
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for member, old in members.items():
            archive.writestr(member, content if member.endswith("/" + name) else old)


def test_a_parameter_with_attributes_of_its_own_is_refused(stopped):
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.isfinite = 5
    rewrite(stopped, with_field("losses", parameter))
    assert "objects other than tensors" in refusal(stopped)
