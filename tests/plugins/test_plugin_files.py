"""Files given with --plugin: what they register, how they fail, and what may never load code."""

import inspect
import json
import os
import sys
import textwrap

import pytest
from starlette.testclient import TestClient

from mtdinterp import (
    MTDTask,
    catalogue,
    load_checkpoint,
    plugins,
    providers,
    registry,
    save_checkpoint,
)
from mtdinterp.app.models import Registry
from mtdinterp.app.server import create_app
from mtdinterp.checkpoint_files import CheckpointError, MissingKind
from mtdinterp.cli import main
from mtdinterp.construction import one_step
from mtdinterp.errors import PluginFailed
from mtdinterp.estimators import Estimator
from mtdinterp.report.collect import run_probe
from mtdinterp.report.write import SHORT_NAMES

pytestmark = pytest.mark.usefixtures("clean_registries")

PLUGIN = """
    from dataclasses import dataclass

    from mtdinterp.plugins import register_probe, register_task
    from mtdinterp.results import Result
    from mtdinterp.tasks import MTDTask


    @register_task
    class Renamed(MTDTask):
        name, label = "renamed", "the same process under another name"


    @dataclass(frozen=True, kw_only=True)
    class Depth(Result):
        depth: int

        def summary(self):
            return f"The model has {self.depth} layers."


    @register_probe("depth", label="How deep is it?")
    def depth(model, task, *, seed=0):
        return Depth(depth=len(model.blocks), n_sequences=1, seed=seed)
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="own.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def test_a_file_registers_and_is_recorded_with_its_checksum(write, tmp_path):
    path = write(PLUGIN)
    provider = plugins.load_plugin(path)
    assert provider.name == "own.py"
    assert providers.loaded_files() == (provider,)
    assert registry.TASKS.provider("renamed") == provider
    assert registry.TASKS.provider("mtd") is None
    known = MTDTask.random(3, 2, seed=0)
    task = registry.TASKS["renamed"](known.transition, 2)
    save_checkpoint(tmp_path / "saved", one_step(known.transition, 2, 8, 5.0), task)
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["plugins"] == {"task": {"name": "own.py", "sha256": provider.sha256}}
    assert load_checkpoint(tmp_path / "saved").task == task
    registry.TASKS.remove("renamed")
    with pytest.raises(MissingKind, match=r"the plugin file own\.py; if you trust that file, load"):
        load_checkpoint(tmp_path / "saved")


def test_a_checkpoint_of_an_edited_file_is_loaded_with_a_warning(write, tmp_path):
    plugins.load_plugin(write(PLUGIN))
    known = MTDTask.random(3, 2, seed=0)
    task = registry.TASKS["renamed"](known.transition, 2)
    path = save_checkpoint(tmp_path / "saved", one_step(known.transition, 2, 8, 5.0), task)
    load_checkpoint(path)
    plugins.load_plugin(write(PLUGIN + "\n    # edited\n"))
    with pytest.warns(plugins.PluginWarning, match=r"own\.py is not the same as when this"):
        load_checkpoint(path)


def test_a_file_that_registers_nothing_is_named(write, capsys):
    path = write("x = 1")
    assert main(["zoo", "--json", "--plugin", str(path)]) == 0
    assert f"mtdinterp: {path} registers nothing" in capsys.readouterr().err


TASK = """
from mtdinterp.plugins import register_task
from mtdinterp.tasks import MTDTask


@register_task
class Own(MTDTask):
    name, label = "own", "a task with a mistake"

"""
MISTAKES = {
    "to_dict() is incomplete": (
        "def to_dict(self): return {'kind': 'own', 'order': self.order}",
        "TypeError: ",
    ),
    "to_dict() names another kind": (
        "def to_dict(self): return super().to_dict() | {'kind': 'mtd'}",
        "ValueError: to_dict(): expected the kind 'own', got 'mtd'",
    ),
    "probabilities are not normalised": (
        "def true_next(self, tokens, weights): return 2 * super().true_next(tokens, weights)",
        "ValueError: sample().next_probs: expected probabilities that sum to 1",
    ),
    "random() fails": (
        "random = lambda *sizes: undefined",
        "NameError: name 'undefined' is not defined; own.py, line ",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_task_with_a_mistake_is_refused_before_training(write, tmp_path, capsys, mistake):
    method, reason = MISTAKES[mistake]
    path = write(f"{TASK}    {method}\n")
    words = ["train", "--task", "own", "--order", "2", "--length", "8", "--steps", "1"]
    assert main([*words, "--out", str(tmp_path / "run"), "--plugin", str(path)]) == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert "the task 'own' of the plugin file own.py failed: " in sentence
    assert reason in sentence
    assert not (tmp_path / "run").exists()


def test_a_kind_that_is_not_a_text_is_refused(tmp_path):
    task = MTDTask.random(3, 2, seed=0)
    path = save_checkpoint(tmp_path / "saved", one_step(task.transition, 2, 8, 5.0), task)
    config = json.loads((path / "config.json").read_text())
    config["task"]["kind"] = ["own"]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="expected its kind to be a name, got"):
        load_checkpoint(path)


def test_a_file_is_run_once_and_again_when_it_changes(write):
    counted = "import builtins\nbuiltins.runs = getattr(builtins, 'runs', 0) + 1\n"
    path = write(counted)
    try:
        first = plugins.load_plugin(path)
        assert plugins.load_plugin(path) == first
        import builtins

        assert builtins.runs == 1
        write(counted + "# edited\n")
        assert plugins.load_plugin(path) != first
        assert builtins.runs == 2
    finally:
        del builtins.runs


def test_an_edited_file_replaces_what_it_registered(write):
    plugins.load_plugin(write(PLUGIN))
    plugins.load_plugin(write(PLUGIN.replace("How deep is it?", "How deep?")))
    assert registry.PROBES["depth"].label == "How deep?"


def test_a_probe_that_fails_is_an_error_only_if_it_was_asked_for(write, tmp_path, capsys):
    """A probe that does not apply is an answer, and exits with 0."""
    boom = """
        from mtdinterp.errors import NotApplicable
        from mtdinterp.plugins import register_probe


        @register_probe("boom", label="Does it fail?")
        def boom(model, task):
            raise RuntimeError("it went off")


        @register_probe("elsewhere", label="Does it apply?")
        def elsewhere(model, task):
            raise NotApplicable("it applies elsewhere")
    """
    task = MTDTask.random(3, 2, seed=0)
    saved = save_checkpoint(tmp_path / "saved", one_step(task.transition, 2, 8, 5.0), task)
    words = ["probe", str(saved), "--sequences", "32", "--plugin", str(write(boom))]
    assert main([*words, "--probe", "boom", "--probe", "elsewhere"]) == 1
    assert "RuntimeError: it went off" in capsys.readouterr().out
    assert main([*words, "--probe", "elsewhere"]) == 0
    assert "it applies elsewhere" in capsys.readouterr().out
    assert main(words) == 0
    assert "it went off" in capsys.readouterr().out


def test_the_command_line_runs_a_probe_of_a_file(write, capsys):
    words = ["probe", "disentangled-m4-T64", "--probe", "depth", "--json"]
    assert main([*words, "--plugin", str(write(PLUGIN))]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["depth"]["depth"] == 3
    assert captured.err.startswith("loading own.py …\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 / 0", "(ZeroDivisionError: division by zero; own.py, line 1)"),
        ("def f(:", "(SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "(SystemExit: 3; own.py, line 1)"),
        (
            "\nfrom mtdinterp.plugins import register_probe\n"
            "@register_probe('recover_beta', label='mine')\ndef mine(model, task): ...",
            "(ValueError: probe: the name 'recover_beta' is taken by a built-in probe; choose",
        ),
    ],
)
def test_a_file_that_fails_is_one_sentence(write, capsys, text, reason):
    path = write(text)
    assert main(["zoo", "--plugin", str(path)]) == 2
    progress, sentence = capsys.readouterr().err.splitlines()
    assert progress == "loading own.py …"
    assert sentence.startswith(f"mtdinterp zoo: {path}: this plugin failed to load ({reason[1:]}")
    assert registry.PROBES["recover_beta"].function.__module__ == "probes.recover_beta"


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("def blocks(self): return ['<b>']", "expected blocks of mtdinterp.pages.blocks"),
        ("def claims(self): return ['it is deep']", "expected claims() to return claims"),
        ("at: object = object()", "not JSON serializable"),
    ],
)
def test_a_result_that_cannot_be_shown_is_named_and_does_not_end_the_report(write, method, reason):
    text = textwrap.dedent(PLUGIN).replace("depth: int\n", f"depth: int\n    {method}\n")
    plugins.load_plugin(write(text))
    checkpoint = load_checkpoint("disentangled-m4-T64")
    probe = registry.PROBES["depth"]
    with pytest.raises(
        PluginFailed, match=r"the probe 'depth' of the plugin file own\.py"
    ) as caught:
        run_probe(probe, checkpoint, checkpoint.model, checkpoint.task, None)
    assert reason in str(caught.value)


def test_what_is_no_plugin_file_is_refused_before_anything_runs(tmp_path, write, capsys):
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "large.py").write_text("#" * (providers.LARGEST_FILE + 1))
    reasons = {
        write("", "own.txt"): "expected a Python file (.py)",
        tmp_path / "absent.py": "cannot be read (No such file or directory)",
        tmp_path / "folder.py": "expected a regular file, got a directory",
        pipe: "expected a regular file",
        tmp_path / "large.py": "expected at most 1,048,576 bytes",
    }
    for path, reason in reasons.items():
        with pytest.raises(SystemExit):
            main(["zoo", "--plugin", str(path)])
        assert reason in capsys.readouterr().err


def test_a_name_of_a_file_is_checked_after_it_was_run(write, capsys):
    words = ["probe", "disentangled-m4-T64", "--probe", "dept"]
    assert main([*words, "--plugin", str(write(PLUGIN))]) == 2
    assert "got 'dept'; did you mean 'depth'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a/b", "", "..", "with space", "<b>", "x" * 81])
def test_names_that_could_be_paths_or_markup_are_refused(name):
    with pytest.raises(ValueError, match="name: expected"):
        plugins.register_probe(name, label="anything")


def test_a_probe_cannot_take_a_key_of_the_report():
    reserved = {"verdict", "kl", "checkpoint", *SHORT_NAMES.values()}
    assert reserved <= plugins.RESERVED
    for name in reserved:
        with pytest.raises(ValueError, match=r"is a key of report\.json"):
            plugins.register_probe(name, label="anything")


def test_what_a_probe_needs_is_checked_when_it_is_registered():
    register = inspect.unwrap(plugins.register_probe)  # without the type checks of the tests
    with pytest.raises(ValueError, match="needs: expected one of model, predictions, checkpoint"):
        register("own", label="anything", needs="predictoins")


def test_by_hand_a_failing_estimator_keeps_its_traceback():
    @plugins.register_estimator
    class Clumsy(Estimator):
        name, label = "by_hand", "an estimator that fails"

        def weights(self, evidence, **constants):
            raise ZeroDivisionError("mine")

    task = MTDTask.random(3, 2, seed=0)
    evidence = task.evidence(task.sample(4, 8, seed=0).tokens)
    with pytest.raises(ZeroDivisionError, match="mine"):
        registry.ESTIMATORS["by_hand"].predict(evidence)


@pytest.fixture
def decoy(tmp_path, monkeypatch):
    """A module that can be imported, and leaves a mark if it is."""
    mark = tmp_path / "mark"
    folder = tmp_path / "path"
    folder.mkdir()
    source = f"open({str(mark)!r}, 'w').close()\nclass Task: ...\n"
    (folder / "decoy_kind.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    yield mark
    assert "decoy_kind" not in sys.modules


HOSTILE = ["decoy_kind", "decoy_kind:Task", "decoy_kind.Task", "../path/decoy_kind.py", "probes"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("entry", ["task", "model", "plugins"])
def test_a_checkpoint_never_causes_an_import(decoy, tmp_path, name, entry, capsys):
    task = MTDTask.random(3, 2, seed=0)
    path = save_checkpoint(tmp_path / "saved", one_step(task.transition, 2, 8, 5.0), task)
    config = json.loads((path / "config.json").read_text())
    if entry == "task":
        config["task"]["kind"] = name
    elif entry == "model":
        config["model"]["architecture"] = name
    else:
        config["task"]["kind"] = "other"
        config["plugins"] = {"task": {"name": name, "version": name, "entry": "decoy_kind"}}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="expected one of"):
        load_checkpoint(path)
    assert main(["probe", str(path)]) == 2
    assert main(["app", str(path), "--port", "99999"]) == 2
    assert not decoy.exists()
    capsys.readouterr()


def test_a_link_never_causes_an_import(decoy):
    """Wherever a state of the workbench holds a name."""
    address = "http://127.0.0.1:8765"
    with TestClient(create_app(Registry(), 8765), base_url=address) as client:
        model = {"name": "disentangled-m4-T64"}
        state = client.post("/api/fresh", json={"model": model}).json()
        for name in HOSTILE:
            linked = {**state, "model": {**state["model"], "name": name}}
            assert client.post("/api/state", json=linked).status_code == 422
            probed = {"model": model, "name": name}
            assert client.post("/api/probe", json=probed).status_code == 400
    assert not decoy.exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_flag_never_causes_an_import_by_its_name(decoy, name, capsys):
    assert main(["train", "--task", name]) == 2
    assert main(["train", "--architecture", name]) == 2
    assert main(["probe", "disentangled-m4-T64", "--probe", name]) == 2
    assert not decoy.exists()
    assert len(capsys.readouterr().err.splitlines()) == 3


@pytest.mark.parametrize(
    "plugin",
    [3, "text", [], {}, {"name": 3}, {"name": "a\nb"}, {"name": "x" * 200}, {"name": "<script>"}],
)
def test_what_a_checkpoint_says_about_its_plugin_is_shown_only_if_it_is_a_name(tmp_path, plugin):
    task = MTDTask.random(3, 2, seed=0)
    path = save_checkpoint(tmp_path / "saved", one_step(task.transition, 2, 8, 5.0), task)
    config = json.loads((path / "config.json").read_text())
    config["task"]["kind"] = "other"
    config["plugins"] = {"task": plugin}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(MissingKind, match=r"got 'other'$"):
        load_checkpoint(path)


def test_the_catalogue_agrees_with_the_registries():
    for kind in catalogue.SOURCES:
        labels = {name: item.label for name, item in registry.BY_KIND[kind].items()}
        assert catalogue.known(kind) == labels
