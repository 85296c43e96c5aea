"""The numbers of the page are those of the library."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from mtdinterp import load_checkpoint
from mtdinterp.app.cone import cone_maps, reach, reach_mask
from mtdinterp.app.experiments import EXPERIMENTS
from mtdinterp.app.models import Registry
from mtdinterp.app.scene import Memory, open_scene
from mtdinterp.app.state import EditState, SourceState, parse_state
from mtdinterp.construction import one_step
from mtdinterp.estimators import exact_posterior_mean, mean_responsibilities, predict_next
from mtdinterp.interventions import (
    Edit,
    FromRun,
    MeanOver,
    Share,
    patch,
    patch_sweep,
    steering_edit,
)
from mtdinterp.metrics import clip_to_distribution, kl_divergence
from mtdinterp.registry import ESTIMATORS

NAME = "disentangled-m4-T64"


def edit(source, hook="pattern", **place):
    return {"hook": hook, "source": source, **place}


def test_weights_predictions_and_divergences_are_the_librarys(fresh, view, checkpoint):
    state = fresh()
    found = view({**state, "model": {"name": NAME, "beta": 12.5}})
    tokens = torch.tensor([state["tokens"]])
    task = checkpoint.task
    truth = torch.tensor([state["weights"]], dtype=torch.float64)
    expected = {
        "truth": truth,
        "exact_bayes": ESTIMATORS["exact_bayes"].weights(task.evidence(tokens)),
        "one_step": (12.5 * mean_responsibilities(task.transition, tokens, task.order)).softmax(-1),
    }
    posterior = exact_posterior_mean(task.transition, tokens, task.order)
    assert found["weights"]["exact_bayes"][:4] == pytest.approx(posterior[0].tolist(), abs=1e-6)
    for name, weights in expected.items():
        assert found["weights"][name] == pytest.approx([*weights[0].tolist(), 0.0], abs=1e-12)
        assert found["predictions"][name] == pytest.approx(
            predict_next(task.transition, tokens, weights)[0].tolist()
        )
    plain = patch(checkpoint.model, tokens, [])
    assert found["predictions"]["before"] == pytest.approx(
        clip_to_distribution(plain.before)[0][0].tolist(), abs=1e-9
    )
    own = plain.weights_before.double()[0, 0]
    assert found["weights"]["before"] == pytest.approx(
        [*own[:4].tolist(), own[4:].sum().item()], abs=1e-9
    )
    assert found["weights"]["construction"][:4] == pytest.approx(
        expected["one_step"][0].tolist(), abs=1e-5
    )
    score = kl_divergence(
        predict_next(task.transition, tokens, truth), clip_to_distribution(plain.before)[0]
    )
    assert found["kl"]["before"] == pytest.approx(score.item(), abs=1e-9)
    assert found["change"] == 0
    assert found["judge"] == "truth"
    assert view({**state, "weights": None})["judge"] == "exact_bayes"


SOURCES = {
    "zero": (
        edit({"kind": "zero"}, layer=1, position=[63, 64]),
        lambda s: Edit("pattern", "zero", layer=1, position=63),
    ),
    "sequence": (
        edit({"kind": "sequence"}, "resid_pre", layer=2, block="L2.L1.lag", position=[60, 64]),
        lambda s: Edit(
            "resid_pre", FromRun(s["source"]), layer=2, block="L2.L1.lag", position=slice(60, 64)
        ),
    ),
    "elsewhere": (
        edit({"kind": "sequence", "layer": 1, "position": 40}, layer=2, position=[62, 64]),
        lambda s: Edit(
            "pattern", FromRun(s["source"], layer=1, position=40), layer=2, position=slice(62, 64)
        ),
    ),
    "reference": (
        edit({"kind": "reference"}, layer=0, position=[10, 50], key=[5, 40]),
        lambda s: Edit(
            "pattern",
            FromRun(s["tokens"], s["construction"]),
            layer=0,
            position=slice(10, 50),
            key=slice(5, 40),
        ),
    ),
    "mean": (
        edit({"kind": "mean"}, "attn_out", layer=1),
        lambda s: Edit("attn_out", MeanOver(s["many"]), layer=1),
    ),
    "number": (
        edit({"kind": "number", "value": 0.25}, layer=2, position=[63, 64], key=[61, 63]),
        lambda s: Edit("pattern", 0.25, layer=2, position=63, key=slice(61, 63)),
    ),
    "values": (
        edit(
            {"kind": "values", "values": [0.5, 0, -0.5, 1]},
            "resid_pre",
            layer=2,
            block="L2.L1.lag",
            position=[63, 64],
        ),
        lambda s: Edit(
            "resid_pre", torch.tensor([0.5, 0, -0.5, 1]), layer=2, block="L2.L1.lag", position=63
        ),
    ),
    "share": (
        edit({"kind": "share", "value": 0.75}, layer=2, position=[63, 64], key=[61, 62]),
        lambda s: Edit("pattern", Share(0.75, keys=61), layer=2, position=63),
    ),
    "weights": (
        edit({"kind": "weights", "values": [0.1, 0.2, 0.3, 0.4]}),
        lambda s: steering_edit([0.1, 0.2, 0.3, 0.4]),
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_patches_as_the_library_does(kind, fresh, view, checkpoint):
    state = fresh()
    state["model"]["beta"] = 16.0
    given, make = SOURCES[kind]
    task, tokens = checkpoint.task, torch.tensor([state["tokens"]])
    setting = {
        "tokens": tokens,
        "source": torch.tensor([state["source"]]),
        "many": task.sample(64, 64, 0).tokens,
        "construction": one_step(task.transition, 4, 64, 16.0),
    }
    expected = patch(checkpoint.model, tokens, [make(setting)])
    found = view({**state, "edits": [given]})
    assert found["change"] == pytest.approx(expected.kl.item(), abs=1e-9)
    assert found["change"] > 1e-6
    after = clip_to_distribution(expected.after)[0][0].tolist()
    assert found["predictions"]["after"] == pytest.approx(after, abs=1e-9)
    assert found["weights"]["after"][:4] == pytest.approx(
        expected.weights_after[0, 0, :4].tolist(), abs=1e-7
    )
    off = view({**state, "edits": [{**given, "on": False}]})
    assert off["change"] == 0
    assert off["predictions"]["after"] == off["predictions"]["before"]


@pytest.mark.parametrize("name", [NAME, "standard-m4-T64", "disentangled-m3-T64-L5"])
@pytest.mark.parametrize("role", ["checkpoint", "construction"])
def test_copied_code_gives_the_numbers_on_the_screen(name, role, client, fresh, view, capsys):
    state = fresh(name, role=role)
    last = len(state["tokens"]) - 1
    state["edits"] = [
        edit({"kind": "sequence", "position": 9}, layer=1, position=[last, last + 1]),
        edit({"kind": "reference"}, layer=0, position=[3, 9]),
        edit({"kind": "mean"}, "resid_pre", layer=1, position=[20, 30]),
        edit({"kind": "zero"}, "z", layer=2, position=[5, 6], on=False),
        edit({"kind": "share", "value": 0.3}, layer=2, position=[last, last + 1], key=[2, 5]),
        edit({"kind": "number", "value": -0.5}, "resid_post", layer=0, position=[7, 8]),
    ]
    code = client.post("/api/python", json=state).json()["code"]
    exec(compile(code, "copied", "exec"), {})
    printed, shown = json.loads(capsys.readouterr().out), view(state)
    assert printed["change"] == pytest.approx(shown["change"], abs=1e-6)
    for what in ("kl", "predictions"):
        for method, value in shown[what].items():
            assert printed[what][method] == pytest.approx(value, abs=1e-6)
    for method, value in shown["weights"].items():
        assert printed["weights"][method] == pytest.approx(value[:-1], abs=1e-6)


def test_maps_are_the_attention_of_each_run(client, fresh, checkpoint):
    state = {**fresh(), "edits": [SOURCES["zero"][0]], "selected": 0}
    answer = client.post(
        "/api/maps", json={"state": state, "which": ["before", "after", "source", "cone"]}
    )
    maps = np.frombuffer(answer.content, "<f4").reshape(4, 3, 64, 64)
    for number, tokens in ((0, state["tokens"]), (2, state["source"])):
        _, cache = checkpoint.model.run_with_cache(torch.tensor([tokens]))
        for layer in range(3):
            assert maps[number, layer] == pytest.approx(
                cache["pattern", layer][0, 0].detach().numpy(), abs=1e-7
            )
    assert (maps[1, 1, 63] == 0).all()
    assert maps[3] == pytest.approx(maps[1] - maps[0], abs=1e-7)


def test_blocks_hold_what_the_stream_holds(fresh, view, checkpoint):
    state = {**fresh(), "position": 40}
    _, cache = checkpoint.model.run_with_cache(torch.tensor([state["tokens"]]))
    stream = cache["blocks.2.hook_resid_post"][0, 40]
    blocks = {entry["name"]: entry for entry in view(state)["blocks"]}
    assert list(blocks) == list(checkpoint.model.stream)
    for name, columns in checkpoint.model.stream.items():
        assert blocks[name]["before"] == pytest.approx(stream[columns].tolist(), abs=1e-6)
    assert blocks["token"]["before"] == [float(token == state["tokens"][40]) for token in range(5)]


def test_a_block_can_be_edited_where_the_page_says(fresh, view):
    for name in (NAME, "standard-m4-T64", "disentangled-m3-T64-L5"):
        state = fresh(name)
        for block in view(state)["model"]["blocks"][:: 1 if name == NAME else 5]:
            given = edit(
                {"kind": "zero"},
                block["hook"],
                layer=block["layer"],
                block=block["name"],
                position=[63, 64],
            )
            after = {
                entry["name"]: entry["after"]
                for entry in view({**state, "edits": [given]})["blocks"]
            }
            if name != "standard-m4-T64":  # an additive stream is added to afterwards
                assert after[block["name"]] == [0.0] * block["width"]


HOOKS = (
    "pattern",
    "attn_scores",
    "rel_scores",
    "resid_pre",
    "attn_out",
    "resid_post",
    "q",
    "p",
    "k",
    "v",
    "z",
)


# The standard transformer has no position queries of their own.
@pytest.mark.parametrize(
    ("name", "hook"),
    [(NAME, hook) for hook in HOOKS] + [("standard-m4-T64", hook) for hook in HOOKS if hook != "p"],
)
def test_nothing_changes_outside_the_cone(name, hook, registry, fresh):
    state = parse_state(fresh(name))
    for layer, position in ((0, (20, 23)), (1, (40, 41)), (2, (63, 64))):
        given = EditState(
            hook,
            SourceState("number", value=0.3),
            layer=layer,
            position=position,
            key=(5, 8) if hook == "pattern" else None,
        )
        scene = open_scene(registry, Memory(), replace(state, edits=(given,)))
        changes = cone_maps(scene, given)
        masks = [reach_mask(*reach(scene, given, other), 64) for other in range(3)]
        for other, (change, mask) in enumerate(zip(changes, masks, strict=True)):
            assert (change[~mask] == 0).all(), f"layer {other + 1} changed outside"
        later = any(mask.any() for mask in masks)
        assert not later or any((change != 0).any() for change in changes)


def test_the_cone_counts_what_it_changed(client, fresh):
    state = {**fresh(), "edits": [SOURCES["zero"][0]], "selected": 0}
    cone = client.post("/api/cone", json=state).json()
    assert [layer["rows"] for layer in cone["layers"]] == [None, [63, 64], [63, 64]]
    assert [layer["reached"] for layer in cone["layers"]] == [0, 64, 64]
    assert cone["layers"][1]["changed"] == 64  # every key had some attention
    view = client.post("/api/view", json=state).json()
    assert cone["change"] == pytest.approx(view["change"], abs=1e-12)


@pytest.mark.parametrize("aim", ["away", "towards"])
def test_a_sweep_is_the_librarys_and_its_cells_are_patches(aim, client, fresh, view, checkpoint):
    state = fresh()
    job = client.post("/api/sweeps", json={"state": state, "kind": "block", "aim": aim}).json()
    while job["status"] == "running":
        job = client.get(f"/api/sweeps/{job['id']}").json()
    assert job["status"] == "done"
    assert job["done"] == job["total"] == 64 * (1 + 3 + 7)
    tokens, source = (torch.tensor([state[name]]) for name in ("tokens", "source"))
    pair = (tokens, source) if aim == "away" else (source, tokens)
    expected = patch_sweep(
        checkpoint.model, *pair, "block", "noise" if aim == "away" else "denoise"
    )
    values = torch.tensor(
        [
            [[np.nan if value is None else value for value in parts] for parts in layer]
            for layer in job["result"]["values"]
        ]
    )
    assert torch.allclose(values.double(), -expected.values, atol=1e-7, equal_nan=True)
    part = job["result"]["parts"].index("L2.L1.lag")
    applied = view(
        {
            **state,
            "edits": [
                edit(
                    {"kind": "sequence"}, "resid_pre", layer=2, block="L2.L1.lag", position=[63, 64]
                )
            ],
        }
    )
    if aim == "away":
        assert values[2, 63, part].item() == pytest.approx(applied["change"], abs=1e-5)


def test_a_sweep_can_be_cancelled_and_a_new_one_ends_the_old(client, fresh):
    state = fresh("disentangled-m3-T128-L5")
    first = client.post("/api/sweeps", json={"state": state, "kind": "block", "aim": "away"}).json()
    second = client.post(
        "/api/sweeps", json={"state": state, "kind": "block", "aim": "away"}
    ).json()
    assert client.get(f"/api/sweeps/{first['id']}").status_code == 404
    stopped = client.post(f"/api/sweeps/{second['id']}/cancel", json={}).json()
    assert stopped["status"] == "cancelled"
    assert stopped["done"] < stopped["total"]
    assert stopped["result"] is None


def test_a_sweep_that_dies_says_so(client, fresh, monkeypatch):
    def die(*arguments, **options):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("mtdinterp.app.sweeps.patch_sweep", die)
    request = {"state": fresh("two-heads"), "kind": "block", "aim": "away"}
    job = client.post("/api/sweeps", json=request).json()
    ended = client.post(f"/api/sweeps/{job['id']}/cancel", json={}).json()  # waits for the end
    assert ended["status"] == "failed"
    assert ended["error"] == "The sweep failed with RuntimeError: out of luck"
    assert ended["result"] is None


def test_experiments_come_out_as_they_say(registry, fresh, client):
    state = fresh()
    for name in EXPERIMENTS:
        answer = client.post("/api/experiment", json={"state": state, "name": name}).json()
        scene = open_scene(registry, Memory(), parse_state(answer["state"]))
        before, after = (
            clip_to_distribution(run.outputs)[0] for run in (scene.before, scene.after)
        )
        moved = 0.5 * (after - before).abs().sum().item()
        assert moved < 0.02 if name == "transplant" else moved > 0.1
        assert len(answer["outcome"]) > 40


def test_a_given_checkpoint_is_offered_with_all_its_heads(client, registry, fresh, view):
    names = [entry["name"] for entry in client.get("/api/about").json()["models"]]
    assert names[0] == registry.first == "two-heads"
    state = fresh("two-heads")
    found = view(state)
    assert found["model"]["heads"] == 2
    asked = [{"state": {**state, "head": head}, "which": ["before"]} for head in (0, 1, None)]
    both = [np.frombuffer(client.post("/api/maps", json=body).content, "<f4") for body in asked]
    assert both[2] == pytest.approx((both[0] + both[1]) / 2, abs=1e-6)
    assert not np.array_equal(both[0], both[1])


def test_a_directory_named_as_a_zoo_model_hides_none(tmp_path, local_checkpoint):
    twin = tmp_path / NAME
    shutil.copytree(local_checkpoint, twin)
    registry = Registry([twin, local_checkpoint, local_checkpoint])
    assert registry.entry(NAME).path == twin.resolve()
    assert registry.entry(f"zoo/{NAME}").length == 64
    assert list(registry.entries)[:2] == [NAME, "two-heads"]


def test_sampling_from_weights_uses_them(client):
    asked = {"model": {"name": NAME}, "length": 64, "weights": [1, 0, 0, 0], "seed": 3}
    found = client.post("/api/sample", json=asked).json()
    assert found["weights"] == [1, 0, 0, 0]
    expected = load_checkpoint(NAME).task.sample(1, 64, 3, [1.0, 0, 0, 0])
    assert found["tokens"] == expected.tokens[0].tolist()


def test_shorter_sequences_have_a_construction_of_their_length(fresh, view):
    state = fresh()
    short = {**state, "tokens": state["tokens"][:20], "source": None}
    found = view({**short, "model": {"name": NAME, "beta": 9.0}})
    assert found["weights"]["construction"][:4] == pytest.approx(
        found["weights"]["one_step"][:4], abs=1e-5
    )


def test_the_report_is_a_page_that_fetches_nothing(client, fresh):
    page = client.post("/api/report", json={**fresh(), "edits": [SOURCES["zero"][0]]})
    assert page.headers["content-type"].startswith("text/html")
    assert "Layer 2: attention, query 63 ← zero" in page.text
    assert page.text.count("data:image/png;base64,") == 12
    assert "http" not in page.text.replace("http-equiv", "")
    assert "<script src" not in page.text


def test_constants_of_the_construction_leave_the_checkpoints_runs(registry, fresh):
    memory, state = Memory(), parse_state(fresh())
    taken = EditState("pattern", SourceState("reference"), layer=2)
    scenes = [
        open_scene(
            registry, memory, replace(state, model=replace(state.model, beta=beta), edits=(taken,))
        )
        for beta in (1.0, 30.0)
    ]
    assert scenes[0].before is scenes[1].before
    assert scenes[0].of_source is scenes[1].of_source
    assert not torch.equal(scenes[0].reference_run.outputs, scenes[1].reference_run.outputs)
    assert not torch.equal(scenes[0].after.outputs, scenes[1].after.outputs)
