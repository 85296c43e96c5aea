"""TransformerLens' reading tools give the right numbers on both architectures."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformer_lens import FactoredMatrix, SVDInterpreter
from transformer_lens.head_detector import detect_head
from transformer_lens.tools.analysis.direct_logit_attribution import direct_logit_attribution
from transformer_lens.tools.analysis.interchange import (
    NormMatchedPlacebo,
    SubspaceInterchange,
    collect_activations,
    fit_das,
    intervened_logits,
    neuron_basis,
    random_basis,
    reinitialized,
)
from transformer_lens.tools.analysis.logit_lens import logit_lens, logit_readout
from transformer_lens.tools.analysis.sparse_probing import fit_sparse_probe, sweep_sparse_probe
from transformer_lens.tools.training import TrainConfig, train

from mtdinterp.estimators import mean_responsibilities, predict_next, responsibilities
from mtdinterp.models import DisentangledTransformer

BETA, ORDER = 4.0, 2


def band(length: int, offsets: range) -> Tensor:
    """Ones at the given offsets i - j."""
    return sum(torch.ones(length, length).tril(-o).triu(-o) for o in offsets)


# ActivationCache


def test_components_add_up_to_the_stream_and_to_the_outputs(model, clean):
    outputs, cache = model.run_with_cache(clean)
    parts, labels = cache.decompose_resid(return_labels=True)
    assert labels == ["embed", "0_attn_out", "1_attn_out"]
    torch.testing.assert_close(parts.sum(0), cache["resid_post", 1])
    torch.testing.assert_close(parts.sum(0) @ model.W_U, outputs)


def test_the_accumulated_stream_is_the_running_sum_of_components(model, clean):
    outputs, cache = model.run_with_cache(clean)
    stream, labels = cache.accumulated_resid(return_labels=True)
    assert labels == ["0_pre", "1_pre", "final_post"]
    torch.testing.assert_close(stream, cache.decompose_resid().cumsum(0))
    torch.testing.assert_close(stream[-1] @ model.W_U, outputs)


@pytest.mark.parametrize("use_attn_result", [False, True])
def test_head_results_add_up_to_their_layers(model, clean, use_attn_result):
    model.set_use_attn_result(use_attn_result)
    _, cache = model.run_with_cache(clean)
    heads, labels = cache.stack_head_results(return_labels=True, incl_remainder=True)
    assert labels == ["L0H0", "L0H1", "L1H0", "L1H1", "remainder"]
    torch.testing.assert_close(heads[:2].sum(0), cache["attn_out", 0])
    torch.testing.assert_close(heads[2:4].sum(0), cache["attn_out", 1])
    torch.testing.assert_close(heads[4], cache["hook_embed"])


def test_logit_attributions_add_up_to_the_logits(model, clean):
    outputs, cache = model.run_with_cache(clean)
    parts = cache.decompose_resid()
    batch = torch.arange(len(clean))
    right, wrong = torch.tensor([0, 1, 2]), torch.tensor([1, 0, 0])
    torch.testing.assert_close(cache.logit_attrs(parts, 1).sum(0), outputs[..., 1])
    torch.testing.assert_close(cache.logit_attrs(parts, "2").sum(0), outputs[..., 2])
    difference = cache.logit_attrs(cache.decompose_resid(pos_slice=-1), right, wrong, pos_slice=-1)
    torch.testing.assert_close(
        difference.sum(0), outputs[batch, -1, right] - outputs[batch, -1, wrong]
    )
    own = cache.logit_attrs(parts, clean).sum(0)
    torch.testing.assert_close(own, outputs.gather(-1, clean[..., None])[..., 0])


@pytest.mark.parametrize("unit", ["component", "head"])
def test_direct_logit_attribution_is_complete(model, clean, unit):
    result = direct_logit_attribution(model, clean, answer_tokens=0, incorrect_tokens=2, unit=unit)
    outputs = model(clean)[:, -1]
    torch.testing.assert_close(result.attribution.sum(0), outputs[:, 0] - outputs[:, 2])


# Logit lens


def test_logit_lens_ends_at_the_outputs_and_starts_at_the_embedding(model, clean):
    lens = logit_lens(model, clean, positions=None)
    assert lens.labels == ["0_pre", "1_pre", "final_post"]
    torch.testing.assert_close(lens.values[-1], model(clean))
    torch.testing.assert_close(lens.values[0], model.W_E[clean] @ model.W_U)
    _, cache = model.run_with_cache(clean)
    torch.testing.assert_close(cache.logit_lens(positions=None).values, lens.values)


def test_logit_lens_ranks_targets_among_all_tokens(model, clean):
    ranks = logit_lens(model, clean, targets=["0", "1", "2"]).readout.target_ranks[-1]
    assert torch.equal(ranks, model(clean)[:, -1].argsort(descending=True).argsort())


def test_logit_readout_is_the_unembedding(model):
    vectors = torch.randn(4, model.cfg.d_model, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(logit_readout(model, vectors).values, vectors @ model.W_U)


def test_logit_lens_sees_the_construction_answer_in_its_last_layer_only(constructed):
    lens = logit_lens(constructed.model, constructed.clean)
    mean = mean_responsibilities(constructed.transition, constructed.clean, ORDER)
    answer = predict_next(constructed.transition, constructed.clean, (BETA * mean).softmax(-1))
    assert not lens.values[:-1].any()
    torch.testing.assert_close(lens.values[-1], answer)


# Heads and their weights


def test_detect_head_measures_attention_inside_a_pattern(model, clean):
    wanted = band(clean.shape[1], range(1, 3))
    scores = detect_head(model, " ".join(map(str, clean[0].tolist())), wanted)
    _, cache = model.run_with_cache(clean[:1])
    inside = torch.stack([(cache["pattern", layer][0] * wanted).sum((1, 2)) for layer in range(2)])
    torch.testing.assert_close(scores, inside / clean.shape[1])


def test_detect_head_finds_the_lags_of_the_construction(constructed):
    """Layer 1 looks at lags 1..m of each token (position 0 has none), layer 3 at those of the next
    one."""
    model, tokens = constructed.model, constructed.clean[0]
    length, seq = len(tokens), " ".join(map(str, tokens.tolist()))
    own_lags = detect_head(model, seq, band(length, range(1, ORDER + 1)))
    next_lags = detect_head(model, seq, band(length, range(ORDER)))
    assert own_lags[0, 0].item() == pytest.approx((length - 1) / length)
    assert next_lags[2, 0].item() == pytest.approx(1)
    # Layer 2 is uniform over the last T - m positions, or over all there are.
    uniform = sum(1 / min(i + 1, length - ORDER) for i in range(1, length)) / length
    assert detect_head(model, seq, "previous_token_head")[1, 0].item() == pytest.approx(uniform)


def test_detect_head_by_distance_recognises_responsibilities(constructed):
    tokens = constructed.clean[0]
    gamma = responsibilities(constructed.transition, tokens[None], ORDER)[0]
    pattern = torch.zeros(len(tokens), len(tokens), dtype=torch.float64)
    pattern[0, 0] = pattern[1, 0] = 1  # before there are m lags, all that there is
    for step, row in enumerate(gamma):
        for lag, weight in enumerate(row, start=1):
            pattern[ORDER + step, ORDER + step - lag] = weight
    scores = detect_head(
        constructed.model, " ".join(map(str, tokens.tolist())), pattern, error_measure="abs"
    )
    assert scores[0, 0] == 1
    assert scores[1:].max() < 0.9


def test_qk_is_the_content_score(model, clean):
    """x_i·QK·x_j is what the scores hold besides the position table's part."""
    _, cache = model.run_with_cache(clean)
    for layer, block in enumerate(model.blocks):
        assert isinstance(block.attn.QK, FactoredMatrix)
        stream = cache["resid_pre", layer]
        content = torch.einsum("bqd,hde,bke->bhqk", stream, block.attn.QK.AB, stream)
        scale = 1 if isinstance(model, DisentangledTransformer) else block.attn.d_head**-0.5
        held = cache["attn_scores", layer] - cache["rel_scores", layer, "attn"]
        visible = torch.ones(clean.shape[1], clean.shape[1]).tril().bool()
        torch.testing.assert_close(held[:, :, visible], scale * content[:, :, visible])


def test_ov_is_what_a_head_writes_of_what_it_attends_to(model, clean):
    """Exactly so when the value table, which writes by itself, is empty."""
    with torch.no_grad():
        for block in model.blocks:
            block.attn.R_V.zero_()
    _, cache = model.run_with_cache(clean)
    heads = cache.stack_head_results()
    for layer, block in enumerate(model.blocks):
        seen = torch.einsum("bhqk,bkd->hbqd", cache["pattern", layer], cache["resid_pre", layer])
        written = torch.einsum("hbqd,hde->hbqe", seen, block.attn.OV.AB)
        torch.testing.assert_close(heads[2 * layer : 2 * layer + 2], written)


def test_factored_singular_values_are_those_of_the_product(model):
    attn = model.blocks[1].attn
    for factored in (attn.QK, attn.OV):
        rank = factored.S.shape[-1]
        torch.testing.assert_close(factored.S, torch.linalg.svdvals(factored.AB)[:, :rank])


def test_svd_interpreter_reads_the_singular_vectors_of_ov_through_the_read_out(model):
    """Compared as a subspace, since the disentangled OV, a placement, has all singular values
    equal."""
    for layer, block in enumerate(model.blocks):
        for head in range(2):
            product = block.attn.W_V[head] @ block.attn.W_O[head]
            rank = int(torch.linalg.matrix_rank(product))
            right = torch.linalg.svd(product).Vh[:rank]
            vectors = SVDInterpreter(model).get_singular_vectors("OV", layer, rank, head)[:, 0]
            read = model.W_U.T @ right.T
            torch.testing.assert_close(vectors @ vectors.T, read @ read.T)
            if not isinstance(model, DisentangledTransformer):
                torch.testing.assert_close(vectors.abs(), read.abs())


# Interchange


def last_outputs(model):
    return lambda tokens: model(tokens)[:, -1]


def test_interchanging_mean_responsibilities_transplants_the_weights(constructed):
    """The named block of Γ, given as a basis, moves the answer to softmax(β·Γ of the source)."""
    model, base, source = constructed.model, constructed.clean, constructed.corrupt
    last = torch.full((len(base),), base.shape[1] - 1)
    name, task = "blocks.2.hook_resid_pre", last_outputs(model)
    held = collect_activations(model, name, source, task, positions=last)
    part = model.stream[constructed.mean]
    mean = mean_responsibilities(constructed.transition, source, ORDER)
    torch.testing.assert_close(held[:, part], mean)
    swap = SubspaceInterchange(neuron_basis(model.cfg.d_model, range(part.start, part.stop)))
    moved = intervened_logits(model, name, swap, base, held, task, positions=last)
    answer = predict_next(constructed.transition, base, (BETA * mean).softmax(-1))
    torch.testing.assert_close(moved, answer)
    unread = model.stream[constructed.gamma]
    placebo = NormMatchedPlacebo(
        swap, neuron_basis(model.cfg.d_model, range(unread.start, unread.stop))
    )
    unmoved = intervened_logits(model, name, placebo, base, held, task, positions=last)
    torch.testing.assert_close(unmoved, task(base))


def test_das_learns_a_direction_as_good_as_the_one_that_carries_the_weights(constructed):
    """Γ of two lags adds to one, so one direction, known here, carries it."""
    model, base, source = constructed.model, constructed.clean, constructed.corrupt
    last = torch.full((len(base),), base.shape[1] - 1)
    name, part = "blocks.2.hook_resid_pre", model.stream[constructed.mean]

    def task(tokens: Tensor) -> Tensor:
        return 20 * model(tokens)[:, -1]

    mean = mean_responsibilities(constructed.transition, source, ORDER)
    targets = predict_next(constructed.transition, base, (BETA * mean).softmax(-1)).argmax(-1)
    model.requires_grad_(True)
    result = fit_das(
        model,
        name,
        base,
        source,
        targets,
        task,
        rank=1,
        base_positions=last,
        source_positions=last,
        epochs=30,
        lr=0.05,
    )
    held = collect_activations(model, name, source, task, positions=last)

    def loss(basis: Tensor) -> float:
        swapped = intervened_logits(
            model, name, SubspaceInterchange(basis), base, held, task, positions=last
        )
        return F.cross_entropy(swapped, targets).item()

    ideal = torch.zeros(model.cfg.d_model, 1)
    ideal[part, 0] = torch.tensor([1.0, -1.0]) / 2**0.5
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert result.basis.norm().item() == pytest.approx(1)
    assert result.losses[-1] < result.losses[0]
    assert loss(result.basis) < 1.05 * loss(ideal)
    assert (
        loss(ideal) < min(loss(random_basis(model.cfg.d_model, 1, seed)) for seed in range(5)) / 2
    )


def test_reinitialized_control_has_new_parameters_and_the_same_shape(model, clean):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    control = reinitialized(model, seed=1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(not torch.equal(value, before[name]) for name, value in control.state_dict().items())
    assert control.config == model.config
    outputs, cache = control.run_with_cache(clean)
    torch.testing.assert_close(cache.decompose_resid().sum(0) @ control.W_U, outputs)


# Sparse probing


def test_sparse_probe_finds_the_column_of_the_token(constructed):
    model, tokens = constructed.model, constructed.clean
    _, cache = model.run_with_cache(tokens)
    labels = (tokens[:, -1] == 1).long()
    column = model.stream[constructed.token].start + 1
    result = fit_sparse_probe(cache["resid_pre", 1][:, -1], labels, k=1)
    assert result.selected_features.tolist() == [column]
    assert result.metrics.accuracy == 1
    sweep = sweep_sparse_probe(cache["resid_pre", 1][:, -1], labels, ks=[1, 2], n_label_shuffles=5)
    assert sweep.results[0].selected_features.tolist() == [column]
    assert sweep.label_shuffle_controls[0].accuracy.mean() < 1


# Training


def test_one_step_of_the_training_loop_is_gradient_descent(model, clean):
    loss = model(clean, return_type="loss")
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    expected = [
        weight - 0.1 * slope for weight, slope in zip(model.parameters(), gradients, strict=True)
    ]
    config = TrainConfig(
        num_epochs=1,
        batch_size=len(clean),
        lr=0.1,
        optimizer_name="SGD",
        device="cpu",
        print_every=None,
    )
    train(model, config, [{"tokens": row} for row in clean])
    torch.testing.assert_close(list(model.parameters()), expected)


def test_training_lowers_the_loss(model, clean):
    before = model(clean, return_type="loss").item()
    config = TrainConfig(num_epochs=30, batch_size=2, lr=0.02, device="cpu", print_every=None)
    trained = train(model, config, [{"tokens": row} for row in clean])
    assert trained is model
    assert model(clean, return_type="loss").item() < before / 2
