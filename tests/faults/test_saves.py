"""Every file-system call of a save fails once, kills the process once, and loses power once."""

import contextlib
import errno
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from faults import power
from faults.injection import Call, fail_at, kill_at, recorded, without_exchange
from mtdinterp import MTDTask, load_checkpoint, save_checkpoint
from mtdinterp.checkpoints.snapshots import write_snapshot
from mtdinterp.construction import one_step
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.storage import settled, write_file
from mtdinterp.training import HeldOut, Recipe
from mtdinterp.training.run import new_run, resumed_run

TASK = MTDTask.random(3, 2, seed=0)
LENGTH = 12
OLD, NEW = 3.0, 7.0
HISTORY = [{"step": 0, "kl": 0.5}]
HELD_OUT = HeldOut.prepare(TASK, LENGTH, n_sequences=100, bayes=False)
RECIPE = Recipe(
    steps=24, batch_size=4, learning_rate=1e-2, evaluate_every=8, save_every=12, snapshots=4
)


def save(path, beta, snapshots=None):
    model = one_step(TASK.transition, TASK.order, LENGTH, beta)
    return save_checkpoint(
        path, model, TASK, recipe={"beta": beta}, history=HISTORY, snapshots=snapshots
    )


def saved_beta(path):
    """β of the checkpoint at a path, or None if there is nothing at all."""
    if not path.exists():
        return None
    checkpoint = load_checkpoint(path)
    assert checkpoint.history == HISTORY
    beta = checkpoint.config["recipe"]["beta"]
    expected = one_step(TASK.transition, TASK.order, LENGTH, beta).state_dict()
    found = checkpoint.model.state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert list(checkpoint.snapshots) == [1]
    checkpoint.snapshots[1].load()
    return beta


def no_context():
    return contextlib.nullcontext()


SYSTEMS = {"with exchange": no_context, "without exchange": without_exchange}


@pytest.fixture(params=SYSTEMS)
def system(request):
    """Systems that can exchange two directories in one step, and others."""
    with SYSTEMS[request.param]():
        yield request.param


@pytest.fixture(params=[None, OLD], ids=["new", "replaced"])
def before(request):
    """What is there before the save: nothing, or an older checkpoint."""
    return request.param


class Bench:
    """A directory with a target that can be put back to what it was before the save."""

    def __init__(self, root, before):
        self.root = root
        self.before = before
        self.original = root / "original"
        self.place = root / "place"
        self.target = self.place / "model"
        source = save(root / "source", NEW)
        checkpoint = load_checkpoint(source)
        write_snapshot(source, 1, checkpoint.model, checkpoint.config)
        self.snapshots = checkpoint.snapshots
        if before is not None:
            save(self.original, before, self.snapshots)
        self.reset()

    def reset(self):
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        if self.before is not None:
            shutil.copytree(self.original, self.target)

    def save(self):
        save(self.target, NEW, self.snapshots)

    def check_after_fault(self):
        """The old or the new checkpoint is there, and the next save leaves nothing behind."""
        assert find_beta(self.target) in (self.before, NEW)
        self.save()
        assert saved_beta(self.target) == NEW
        assert [path.name for path in self.place.iterdir()] == ["model"]


def find_beta(path):
    """β of the checkpoint that a reader finds, who may have to undo an interrupted replacement."""
    return saved_beta(path) if settled(path) else None


@pytest.fixture
def bench(tmp_path, before):
    return Bench(tmp_path, before)


def test_every_call_of_a_save_may_fail(bench, system):
    n_calls = len(recorded(bench.save))
    assert n_calls > 15
    for place in range(n_calls):
        bench.reset()
        error = fail_at(place, bench.save)
        if error is not None:
            assert "No space left on device" in str(error)
            assert "\n" not in str(error)
        bench.check_after_fault()


def test_a_process_may_be_killed_at_every_call_of_a_save(bench, system):
    place = 0
    while True:
        bench.reset()
        if not kill_at(place, bench.save):
            break
        bench.check_after_fault()
        place += 1
    assert place > 15


def test_power_may_be_lost_at_every_call_of_a_save(bench, system, tmp_path):
    bench.reset()
    tree = power.tree_at(bench.place)
    record = recorded(bench.save)
    for place, call in enumerate([*record, None]):
        for names_survive in (False, True):
            remains = tmp_path / f"remains-{place}-{names_survive}"
            power.write_remains(tree, remains, names_survive)
            found = find_beta(remains / "model")
            assert found in (bench.before, NEW), f"before call {place}, {call}"
            if call is None:
                assert found == NEW, "a save that has returned must survive"
        if call is not None:
            power.after(bench.place, tree, [call])


def test_a_model_of_the_disk_ends_as_the_disk_does(bench):
    tree = power.tree_at(bench.place)
    power.after(bench.place, tree, recorded(bench.save))
    assert names_and_bytes(tree) == names_and_bytes(power.tree_at(bench.place))


def names_and_bytes(entry):
    """What programs see of a modelled file or directory."""
    if isinstance(entry, power.File):
        return entry.current
    return {name: names_and_bytes(inner) for name, inner in entry.current.items()}


def places_of(record, **wanted):
    """Where calls with the given attributes stand in a record."""
    found = []
    for place, call in enumerate(record):
        if all(getattr(call, name) == value for name, value in wanted.items()):
            found.append(place)
    return found


def test_data_is_synced_before_it_is_published_and_names_after(tmp_path):
    target = (tmp_path / "file.txt").resolve()
    record = recorded(lambda: write_file(target, b"content"))
    unfinished = record[0].path
    assert record == [
        Call("create_file", unfinished),
        Call("write", unfinished, content=b"content"),
        Call("sync_file", unfinished),
        Call("rename", unfinished, target),
        Call("sync_directory", target.parent),
    ]


@pytest.mark.parametrize("kind", ["exchange", "rename"])
def test_a_directory_is_synced_before_it_is_published_and_its_parent_after(tmp_path, kind):
    bench = Bench(tmp_path, OLD if kind == "exchange" else None)
    record = recorded(bench.save)
    target = bench.target.resolve()
    (published,) = places_of(record, name=kind, target=target)
    staging = record[published].path
    last_file = max(places_of(record, name="sync_file"))
    (synced,) = [
        place
        for place in places_of(record, name="sync_directory", path=staging)
        if place > last_file + 2
    ]
    (parent_synced,) = places_of(record, name="sync_directory", path=target.parent)
    assert last_file < synced < published < parent_synced
    removals = [
        place for place, call in enumerate(record) if call.name in ("unlink", "remove_directory")
    ]
    assert all(place > parent_synced for place in removals)


CHANGING_EVENTS = {
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "os.link",
    "os.symlink",
    "os.chmod",
    "shutil.move",
    "shutil.rmtree",
}


def test_no_call_of_a_save_bypasses_the_harness(tmp_path):
    """Python reports every file that is opened, renamed or removed; each must be a recorded one."""
    bench = Bench(tmp_path, OLD)
    seen = []
    watching = True

    def watch(event, arguments):
        if not watching:
            return
        opened_to_write = event == "open" and (arguments[2] or 0) & 3
        if (event in CHANGING_EVENTS or opened_to_write) and str(tmp_path) in str(arguments[0]):
            seen.append(event)

    sys.addaudithook(watch)
    record = recorded(bench.save)
    watching = False
    names = {"open": "create_file", "os.rename": "rename", "os.remove": "unlink"}
    names |= {"os.mkdir": "make_directory", "os.rmdir": "remove_directory"}
    audited = {"create_file", "rename", "unlink", "make_directory", "remove_directory"}
    assert [names[event] for event in seen] == [c.name for c in record if c.name in audited]


def begin(path):
    config = DisentangledConfig(vocab_size=3, length=LENGTH, d_rel=2)
    seeds = {"task": 0, "model": 5}
    return new_run(path, DisentangledTransformer(config), TASK, RECIPE, seeds, HELD_OUT)


def finish(path):
    with resumed_run(path, HELD_OUT) as run:
        run.train()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that was stopped, and the same run at its end."""
    root = tmp_path_factory.mktemp("runs")
    with begin(root / "stopped") as run:
        run.train(after_step=lambda trainer: trainer.step < 5)
    shutil.copytree(root / "stopped", root / "whole")
    finish(root / "whole")
    return root


@pytest.fixture
def run_copy(runs, tmp_path):
    place = tmp_path / "place"

    def reset():
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(runs / "stopped", place / "run")
        return place / "run"

    return reset


def check_resumes(path, whole):
    """The run loads, resumes to the same bits, and leaves nothing behind."""
    load_checkpoint(path)
    finish(path)
    found, wanted = load_checkpoint(path), load_checkpoint(whole)
    weights = wanted.model.state_dict()
    assert all(
        torch.equal(weights[name], tensor) for name, tensor in found.model.state_dict().items()
    )
    assert [entry["kl"] for entry in found.history] == [entry["kl"] for entry in wanted.history]
    assert list(found.snapshots) == list(wanted.snapshots) == [0, 1, 3, 8, 24]
    for step, snapshot in wanted.snapshots.items():
        weights = snapshot.load().state_dict()
        again = found.snapshots[step].load().state_dict()
        assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert names_below(Path(path)) == names_below(whole)


def names_below(path):
    """Everything in a directory and below it."""
    return sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))


def test_every_call_of_a_run_may_fail(run_copy, runs):
    path = run_copy()
    n_calls = len(recorded(lambda: finish(path)))
    assert n_calls > 30
    for place in range(n_calls):
        path = run_copy()
        error = fail_at(place, partial(finish, path), errno.EIO)
        assert error is None or "Input/output error" in str(error)
        check_resumes(path, runs / "whole")


def test_a_run_may_be_killed_at_every_call(run_copy, runs):
    place = 0
    while True:
        path = run_copy()
        if not kill_at(place, partial(finish, path)):
            break
        check_resumes(path, runs / "whole")
        place += 1
    assert place > 30


def test_a_run_may_be_killed_at_every_call_of_its_beginning(tmp_path):
    def start():
        with begin(tmp_path / "run"):
            pass

    place = 0
    while kill_at(place, start):
        if (tmp_path / "run").exists():
            load_checkpoint(tmp_path / "run")
            shutil.rmtree(tmp_path / "run")
        place += 1
    assert place > 15
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
