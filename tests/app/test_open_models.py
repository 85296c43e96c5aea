"""Models without a reference, tasks of another kind, several heads, and what plugins add."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from mtdinterp import LagSpecificMTDTask, load_checkpoint, save_checkpoint
from mtdinterp.app.experiments import EXPERIMENTS
from mtdinterp.app.models import Registry, fitted_to
from mtdinterp.app.scene import Memory, open_scene
from mtdinterp.app.server import create_app
from mtdinterp.app.state import parse_state
from mtdinterp.errors import NotApplicable, RuleTooLarge
from mtdinterp.estimators import Estimator
from mtdinterp.interventions import patch
from mtdinterp.metrics import divergences
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.notebook import look
from mtdinterp.plugins import register_estimator, register_probe
from mtdinterp.registry import ESTIMATORS, PROBES
from mtdinterp.results import Result
from mtdinterp.tasks import MTDTask

PORT = 8766
LAYERS = {"two-layers": 2, "lag-specific": 3}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Untrained models for which no construction is known, by name."""
    folder = tmp_path_factory.mktemp("open")
    tasks = {
        "two-layers": MTDTask.random(vocab_size=3, order=2, seed=5),
        "lag-specific": LagSpecificMTDTask.random(vocab_size=3, order=2, seed=5),
    }
    for name, n_layers in LAYERS.items():
        torch.manual_seed(1)
        model = DisentangledTransformer(
            DisentangledConfig(vocab_size=3, length=12, n_layers=n_layers, n_heads=1, d_rel=2)
        )
        save_checkpoint(folder / name, model, tasks[name])
    return {name: folder / name for name in LAYERS}


@pytest.fixture(scope="module")
def open_registry(paths):
    return Registry(list(paths.values()))


@pytest.fixture(scope="module")
def ask(open_registry):
    """Ask the server for an answer, by address and JSON."""
    app = create_app(open_registry, PORT)
    with TestClient(app, base_url=f"http://127.0.0.1:{PORT}") as client:

        def send(path, body, status=200):
            answer = client.post(path, json=body)
            assert answer.status_code == status, answer.text
            return answer.json() if path != "/api/maps" else answer.content

        yield send


@pytest.mark.parametrize("name", LAYERS)
def test_a_model_without_a_construction_opens_without_a_reference(name, ask, capsys):
    state = ask("/api/fresh", {"model": {"name": name}})
    found = ask("/api/view", state)
    assert found["construction"]["is_known"] is False
    assert found["construction"]["why_not"].endswith(".")
    assert list(found["predictions"]) == ["truth", "exact_bayes", "one_step", "before", "after"]
    assert "construction" not in found["weights"]
    assert found["model"]["shared_blocks"] == []
    maps = ask("/api/maps", {"state": state, "which": ["before", "after", "source"]})
    assert np.frombuffer(maps, "<f4").shape == (3 * LAYERS[name] * 12 * 12,)
    for body in (
        {**state, "model": {"name": name, "role": "construction"}},
        {**state, "edits": [{"hook": "pattern", "layer": 0, "source": {"kind": "reference"}}]},
    ):
        error = ask("/api/view", body, status=422)["error"]
        assert found["construction"]["why_not"] in error
    exec(compile(ask("/api/python", state)["code"], "copied", "exec"), {})
    printed = json.loads(capsys.readouterr().out)
    assert printed["predictions"].keys() == found["predictions"].keys()
    assert printed["kl"] == pytest.approx(found["kl"], abs=1e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_its_report_and_notebook_say_why_there_is_no_reference(name, ask, open_registry):
    state = ask("/api/fresh", {"model": {"name": name}})
    why_not = ask("/api/view", state)["construction"]["why_not"]
    html = look(open_registry.checkpoint(name), state["tokens"])._repr_html_()
    assert why_not.split(";")[0] in html.replace("&#x27;", "'")
    assert html.count("<img") == 2 * LAYERS[name]


@pytest.mark.parametrize("name", LAYERS)
def test_experiments_without_a_reference(name, ask, open_registry):
    state = ask("/api/fresh", {"model": {"name": name}})
    for experiment, entry in EXPERIMENTS.items():
        body = {"state": state, "name": experiment}
        if entry.needs_reference:
            ask("/api/experiment", body, status=422)
        else:
            assert ask("/api/experiment", body)["outcome"]


def test_steering_puts_all_weight_on_one_lags_row(ask, open_registry):
    state = ask("/api/fresh", {"model": {"name": "lag-specific"}})
    answer = ask("/api/experiment", {"state": state, "name": "steer"})
    scene = open_scene(open_registry, Memory(), parse_state(answer["state"]))
    lag = answer["state"]["edits"][0]["source"]["values"].index(1.0)
    row = scene.task.transitions[lag, state["tokens"][-1 - lag]]
    assert torch.equal(scene.evidence.rows[0, lag], row)
    assert f"lag {lag + 1} (token {state['tokens'][-1 - lag]})" in answer["outcome"]


def test_a_configuration_without_a_task_kind_is_mtd(paths, tmp_path):
    name = "disentangled-m4-T64-mirrored"
    assert "kind" not in load_checkpoint(name).config["task"]
    entry = Registry().entry(name)
    assert (entry.order, entry.vocab_size, entry.layers, entry.length) == (4, 5, 3, 64)


def test_heads_are_shown_separately_and_as_their_mean(fresh, view, registry):
    state = fresh("two-heads")
    found = view(state)
    weights = {name: np.array(found["weights"][name]) for name in ("after", "head_1", "head_2")}
    model = registry.checkpoint("two-heads").model
    by_offset = patch(model, torch.tensor([state["tokens"]]), []).weights_before[0].double()
    for head in range(2):
        expected = [*by_offset[head, :2].tolist(), by_offset[head, 2:].sum().item()]
        assert weights[f"head_{head + 1}"] == pytest.approx(expected, abs=1e-6)
    assert weights["after"] == pytest.approx((weights["head_1"] + weights["head_2"]) / 2)
    assert found["weight_labels"]["before"] == "model, mean over heads"
    assert found["labels"]["before"] == "model"
    assert found["weight_labels"]["head_2"] == "model, head 2"
    assert "head_1" not in found["predictions"]


def test_copied_code_has_the_weights_of_every_head(client, fresh, view, capsys):
    state = fresh("two-heads")
    code = client.post("/api/python", json=state).json()["code"]
    exec(compile(code, "copied", "exec"), {})
    printed = json.loads(capsys.readouterr().out)
    for method, values in view(state)["weights"].items():
        assert printed["weights"][method] == pytest.approx(values[:-1], abs=1e-6)


def test_a_report_says_which_head_its_maps_show(client, fresh):
    state = fresh("two-heads")
    assert "They show the mean over heads." in client.post("/api/report", json=state).text
    assert "They show head 2." in client.post("/api/report", json={**state, "head": 1}).text


def test_transplanting_into_two_heads_works(client, fresh):
    body = {"state": fresh("two-heads"), "name": "transplant"}
    assert client.post("/api/experiment", json=body).status_code == 200


class FirstLag(Estimator):
    name = "first_lag"
    label = "always lag 1"

    def weights(self, evidence):
        weights = torch.zeros_like(evidence.uniform)
        weights[:, 0] = 1
        return weights


class Never(Estimator):
    name = "never"
    label = "an estimator without an answer"

    def weights(self, evidence):
        raise NotApplicable("This estimator never applies.")


def test_every_registered_estimator_has_a_row(client, fresh, registry):
    state = fresh("two-heads")
    for estimator in (FirstLag, Never):
        register_estimator(estimator)
    try:
        rows = client.post("/api/estimators", json=state).json()
        assert [row["name"] for row in rows] == list(ESTIMATORS)
    finally:
        for estimator in (FirstLag, Never):
            ESTIMATORS.remove(estimator.name)
    by_name = {row["name"]: row for row in rows}
    task = registry.checkpoint("two-heads").task
    tokens = torch.tensor([state["tokens"]])
    evidence = task.evidence(tokens)
    truth = evidence.predict(torch.tensor([state["weights"]], dtype=torch.float64))
    expected = divergences(truth, evidence.rows[:, 0]).item()
    assert by_name["first_lag"]["kl"] == pytest.approx(expected)
    assert by_name["never"]["kl"] is None
    assert by_name["never"]["reason"] == "This estimator never applies."
    assert by_name["one_step"]["constants"].startswith("β = ")
    # The untrained model follows no estimator, and the page says what its constants are then.
    assert by_name["one_step"]["constants"].endswith("because the model does not determine them")


def test_bars_and_table_agree(client, fresh, view):
    state = {**fresh(), "model": {"name": "disentangled-m4-T64", "beta": 9.0}}
    found = view(state)
    rows = client.post("/api/estimators", json=state).json()
    by_name = {row["name"]: row for row in rows}
    for name in ("exact_bayes", "one_step"):
        assert by_name[name]["kl"] == pytest.approx(found["kl"][name], abs=1e-6)
    assert by_name["one_step"]["constants"] == "β = 9"


def test_an_exact_rule_that_is_too_large_is_said(fresh, view, client, monkeypatch):
    def refuse(self, evidence):
        raise RuleTooLarge("The rule would need too many nodes.")

    monkeypatch.setattr(type(ESTIMATORS["exact_bayes"]), "weights", refuse)
    state = fresh("two-heads", delta=99.0)
    short = {**state, "tokens": state["tokens"][:11], "source": None}
    found = view(short)
    assert found["missing"] == {"exact_bayes": "The rule would need too many nodes."}
    assert "exact_bayes" not in found["predictions"]
    assert view({**short, "weights": None})["judge"] == "one_step"
    assert client.post("/api/python", json=short).status_code == 200


def test_a_sampled_posterior_mean_says_so(fresh, view, client, monkeypatch):
    state = fresh("two-heads", delta=98.0)
    assert view(state)["notes"] == {}
    monkeypatch.setattr("mtdinterp.estimators.posterior.COMPARING_NODES", 1)
    short = {**state, "tokens": state["tokens"][:11], "source": None}
    found = view(short)
    note = found["notes"]["exact_bayes"]
    assert note.startswith("sampled for 1 of 1 sequences")
    assert found["missing"] == {}
    rows = {row["name"]: row for row in client.post("/api/estimators", json=short).json()}
    assert rows["exact_bayes"]["note"] == note
    assert rows["one_step"]["note"] == ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer(Result):
    def summary(self):
        return f"An answer from {self.n_sequences} sequences."


@pytest.fixture
def probe_names():
    """Probes that exist during a test: one per kind of argument, and one without an answer."""

    @register_probe("of_model", label="Asks a model", needs="model")
    def of_model(model, task):
        return Answer(n_sequences=task.vocab_size, seed=0)

    @register_probe("of_predictions", label="Asks predictions", needs="predictions")
    def of_predictions(predict, task, *, length):
        tokens = task.sample(4, length, 0).tokens
        return Answer(n_sequences=len(predict(tokens)), seed=0)

    @register_probe("of_checkpoint", label="Asks a checkpoint", needs="checkpoint")
    def of_checkpoint(checkpoint):
        return Answer(n_sequences=len(checkpoint.history), seed=0)

    @register_probe("of_nothing", label="Has no answer")
    def of_nothing(model, task):
        raise NotApplicable("This question has no answer here.")

    names = ("of_model", "of_predictions", "of_checkpoint", "of_nothing")
    yield names
    for name in names:
        PROBES.remove(name)


def test_the_workbench_shows_the_verdict_of_judge(client):
    answer = client.post("/api/probe", json={"model": {"name": "two-heads"}, "name": "verdict"})
    identified = client.post(
        "/api/probe", json={"model": {"name": "two-heads"}, "name": "identify_algorithm"}
    )
    first = answer.json()["summary"].splitlines()[0].removeprefix("No algorithm was identified. ")
    assert first in identified.json()["summary"]


def test_a_registered_probe_is_offered_and_runs(client, probe_names):
    offered = {probe["name"]: probe["label"] for probe in client.get("/api/about").json()["probes"]}
    assert offered["of_model"] == "Asks a model"
    assert list(offered) == ["verdict", *PROBES]
    model = {"name": "two-heads"}
    answers = []
    for name in probe_names:
        answers.append(client.post("/api/probe", json={"model": model, "name": name}))
    summaries = [answer.json().get("summary") for answer in answers]
    assert summaries == [
        "An answer from 3 sequences.\n(3 sequences, seed 0)",
        "An answer from 4 sequences.\n(4 sequences, seed 0)",
        "An answer from 0 sequences.\n(0 sequences, seed 0)",
        None,
    ]
    assert answers[-1].status_code == 422
    assert answers[-1].json()["error"] == "This question has no answer here."


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"model": {"name": "two-heads"}, "name": "no_such_probe"}, "no_such_probe"),
        ({"model": {"name": "../two-heads"}, "name": "recover_beta"}, "model"),
        ({"name": "recover_beta"}, "model"),
        ({"model": {"name": "two-heads"}, "name": 7}, "7"),
    ],
)
def test_a_bad_request_for_a_probe_is_refused_in_a_sentence(client, body, sentence):
    answer = client.post("/api/probe", json=body)
    assert answer.status_code in (400, 422)
    assert sentence in answer.json()["error"]
    assert answer.json()["error"].endswith((".", "?"))


@pytest.mark.parametrize("path", ["/api/probe", "/api/estimators"])
def test_slow_questions_are_guarded_like_the_others(client, path):
    sent = {"content-type": "application/json"}
    foreign = {**sent, "origin": "https://evil.example"}
    assert client.post(path, content="{}", headers=foreign).status_code == 403
    assert client.post(path, content="{}", headers={**sent, "host": "evil:8765"}).status_code == 403
    assert (
        client.post(path, content="{}", headers={"content-type": "text/plain"}).status_code == 415
    )
    assert client.post(path, content="{", headers=sent).status_code == 400


def test_the_table_marks_the_constants_that_fits_left_at_a_bound(registry):
    """The bounds of the two-step constants depend on the model's own β."""
    explanation = registry.reading("disentangled-m3-T64", 24).explanation
    evidence = explanation.task.evidence(explanation.tokens)
    found = ESTIMATORS["two_step_construction"].fit(evidence, explanation.predictions)
    fitted = fitted_to("two_step_construction", explanation)
    assert fitted.at_bound == found.at_bound
    assert fitted.constants == pytest.approx(found.constants)
