"""Transplants of attention: by hand, and what a result says about itself."""

import math
from dataclasses import fields, replace

import pytest
import torch

from mtdinterp import explain
from mtdinterp.claims import Status
from mtdinterp.construction import LayerRole, one_step
from mtdinterp.criteria import SPARED
from mtdinterp.errors import NotApplicable
from mtdinterp.interventions import Edit, Transplant, patch, transplant_attention
from mtdinterp.interventions.transplants import transplant_blocks
from mtdinterp.metrics import divergences
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.pages.blocks import Heading, Table
from mtdinterp.tasks import MTDTask

LENGTH = 9
TASK = MTDTask.random(3, 2, seed=0)
DATA = TASK.sample(8, LENGTH, seed=1)
MODEL = one_step(TASK.transition, 2, LENGTH, 8.0)


@pytest.fixture(scope="module")
def explanation():
    found = explain(MODEL, TASK, n_sequences=64)
    return replace(found, fitted=True, identified=True, at_bound=())


@pytest.fixture(scope="module")
def result(explanation):
    return Transplant(
        layer=2,
        source="one_step",
        kl_before=0.1,
        kl_after=0.105,
        difference_stderr=0.002,
        kl_uniform=0.3,
        role=LayerRole.WEIGHTS,
        n_heads=1,
        explanation=explanation,
        n_sequences=8,
        seed=None,
    )


def random_model(n_heads):
    torch.manual_seed(0)
    config = DisentangledConfig(vocab_size=3, length=LENGTH, d_rel=2, n_heads=n_heads)
    made = DisentangledTransformer(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


@pytest.mark.parametrize("heads", [(1, 2, 2), (2, 1, 2)])
def test_another_models_attention_by_hand(heads):
    """Heads keep theirs if there are as many; otherwise each gets the mean over heads."""
    taker, giver = random_model(heads), random_model((2, 2, 2))
    for layer in range(3):
        for given in (None, 0, -2):
            found = transplant_attention(taker, TASK, DATA, layer, giver, source_layer=given)
            from_layer = layer if given is None else given % 3
            attention = giver.run_with_cache(DATA.tokens)[1][
                f"blocks.{from_layer}.attn.hook_pattern"
            ]
            if heads[layer] == 1:
                attention = attention.mean(1, keepdim=True)
            edit = Edit("pattern", attention, layer=layer)
            patched = patch(taker, DATA.tokens, [edit])
            after = divergences(DATA.next_probs, patched.after)
            before = divergences(DATA.next_probs, patched.before)
            assert found.kl_before == pytest.approx(before.mean().item())
            assert found.kl_after == pytest.approx(after.mean().item(), rel=1e-5)
            stderr = (after - before).std().item() / 8**0.5
            assert found.difference_stderr == pytest.approx(stderr, rel=1e-3, abs=1e-9)
            assert (found.source, found.role, found.explanation) == ("another model's", None, None)
            assert (found.layer, found.n_heads, found.n_sequences) == (layer, heads[layer], 8)
    evidence = TASK.evidence(DATA.tokens)
    uniform = divergences(DATA.next_probs, evidence.predict(evidence.uniform)).mean().item()
    assert found.kl_uniform == pytest.approx(uniform)


def test_layers_are_checked(explanation):
    assert transplant_attention(MODEL, TASK, DATA, -1, explanation=explanation).layer == 2
    with pytest.raises(ValueError, match=r"^layer: expected a layer in 0\.\.2, got 3$"):
        transplant_attention(MODEL, TASK, DATA, 3, explanation=explanation)
    with pytest.raises(ValueError, match=r"^source_layer: expected a layer in 0\.\.2, got 3$"):
        transplant_attention(MODEL, TASK, DATA, 0, MODEL, source_layer=3)


def test_no_sequences_are_refused():
    nothing = type(DATA)(*(getattr(DATA, entry.name)[:0] for entry in fields(DATA)))
    with pytest.raises(ValueError, match="expected at least 1 sequence, got 0"):
        transplant_attention(MODEL, TASK, nothing, 0, MODEL)


def test_the_attention_of_the_construction_by_role(explanation):
    found = transplant_attention(MODEL, TASK, DATA, 1, explanation=explanation)
    assert (found.source, found.role) == ("reference", LayerRole.AVERAGE)
    named = transplant_attention(MODEL, TASK, DATA, 0, "one_step", explanation=explanation)
    assert (named.source, named.role) == ("one_step", LayerRole.WEIGHTS)
    weaker = one_step(TASK.transition, 2, LENGTH, 2.0)
    by_model = transplant_attention(MODEL, TASK, DATA, 2, weaker)
    by_beta = transplant_attention(MODEL, TASK, DATA, 2, beta=2.0, explanation=explanation)
    assert by_beta.kl_after == pytest.approx(by_model.kl_after, abs=1e-6)
    assert by_beta.kl_after > by_beta.kl_before + 1e-4


def test_a_role_that_no_layer_has_is_named(explanation):
    class Averaging(type(explanation.implementation)):
        roles = (LayerRole.LAGS, LayerRole.AVERAGE, LayerRole.AVERAGE)

    without = replace(explanation, implementation=Averaging())
    with pytest.raises(
        NotApplicable, match=f"reference construction has no layer that {LayerRole.WEIGHTS.value}$"
    ):
        transplant_attention(MODEL, TASK, DATA, 0, "one_step", explanation=without)


def test_the_summary_of_a_transplant(result):
    assert result.summary() == (
        "Layer 3 with one_step attention: KL to the truth 0.10000 -> 0.10500 "
        "(+0.00500 ± 0.00200, a deterioration)."
    )
    verdicts = {0.095: "an improvement", 0.1039: "within two standard errors"}
    for after, verdict in verdicts.items():
        assert verdict in replace(result, kl_after=after).summary()
    exact = replace(result, kl_before=0.25, kl_after=0.75, difference_stderr=0.25)
    assert "within two standard errors" in exact.summary()
    unknown = replace(result, difference_stderr=math.nan)
    assert "within two standard errors" in unknown.summary()


def test_the_table_of_transplants(result):
    heading, table = transplant_blocks([result])
    assert result.blocks() == [heading, table]
    assert heading == Heading("Transplanted attention")
    assert table == Table(
        ("layer", "transplanted attention", "KL before", "KL after", "difference", "sequences"),
        (
            (
                "3",
                f"one step: {LayerRole.WEIGHTS.value}",
                *("0.10000", "0.10500", "+0.00500 ± 0.00200", "8"),
            ),
        ),
    )
    (_, other) = replace(result, role=None, source="another model's").blocks()
    assert other.rows[0][1] == "another model's"


def test_the_claim_of_a_transplant(result):
    (claim,) = result.claims()
    assert claim.status is Status.HOLDS
    assert claim.claim == (
        "With the reference construction's attention in layer 3, the KL rises by at most 10% or "
        "two standard errors"
    )
    assert claim.evidence == "KL to the truth after the transplant"
    assert claim.number == "0.10500 (+0.00500 ± 0.00200)"
    assert claim.threshold == "rises by at most 0.01000"
    assert claim.control == "its own attention 0.10000, uniform weights 0.30000"
    (several,) = replace(result, n_heads=2).claims()
    assert several.evidence == "KL to the truth after the transplant into all 2 heads"


def test_what_a_transplant_may_cost(result):
    exact = {"kl_before": 0.0, "difference_stderr": 0.25}
    for after, status in ((0.5, Status.HOLDS), (0.51, Status.FAILS)):
        assert replace(result, **exact, kl_after=after).claims()[0].status is status
    # A single sequence has no standard error: the share alone decides.
    alone = {"difference_stderr": math.nan, "kl_before": 0.25}
    for after, status in ((0.25 + 0.99 * SPARED / 4, Status.HOLDS), (0.276, Status.FAILS)):
        assert replace(result, **alone, kl_after=after).claims()[0].status is status
    larger = replace(result, difference_stderr=0.02)
    assert larger.claims()[0].threshold == "rises by at most 0.04000"


def test_which_transplants_claim_nothing(result):
    assert replace(result, explanation=None, role=None).claims() == ()
    assert replace(result, role=LayerRole.AVERAGE).claims() == ()
    unnamed = replace(result.explanation, implementation=None)
    assert replace(result, explanation=unnamed, role=None).claims() == ()


def test_which_transplants_decide_nothing(result):
    for uniform in (0.1, 0.05, math.nan):
        (claim,) = replace(result, kl_uniform=uniform).claims()
        assert claim.status is Status.UNDECIDABLE
        assert claim.reason == (
            "the model predicts no better than uniform weights with its own attention"
        )
    doubtful = replace(result.explanation, identified=False)
    (claim,) = replace(result, explanation=doubtful).claims()
    assert claim.status is Status.UNDECIDABLE
    assert "only partly determine" in claim.reason
    plain = replace(result, explanation=doubtful, layer=1, role=LayerRole.AVERAGE)
    assert plain.claims()[0].status is Status.HOLDS
