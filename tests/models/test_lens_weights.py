"""Weights stacked over layers, and what is computed from them, against hand computations."""

import pytest
import torch
from torch import Tensor

from mtdinterp.errors import NotApplicable
from mtdinterp.models import DisentangledConfig, DisentangledTransformer, LensTransformer
from mtdinterp.models.lens_weights import ABSENT

HEADS = [(layer, head) for layer in range(2) for head in range(2)]


@pytest.fixture
def disentangled(model: LensTransformer) -> DisentangledTransformer:
    if not isinstance(model, DisentangledTransformer):
        pytest.skip("about the concatenated stream")
    return model


def test_stacks_have_the_shapes_of_transformer_lens(model):
    d_model, d_head = model.cfg.d_model, model.cfg.d_head
    for name in ("W_Q", "W_K", "W_V"):
        assert getattr(model, name).shape == (2, 2, d_model, d_head)
    assert model.W_O.shape == (2, 2, d_head, d_model)
    assert model.QK.shape == model.OV.shape == (2, 2, d_model, d_model)
    for name in ("b_Q", "b_K", "b_V"):
        assert getattr(model, name).shape == (2, 2, d_head)
        assert not getattr(model, name).any()
    assert model.b_O.shape == (2, d_model)


def test_stacked_circuits_are_those_of_the_layers(model):
    for layer, head in HEADS:
        attn = model.blocks[layer].attn
        torch.testing.assert_close(model.QK.AB[layer, head], attn.W_Q[head] @ attn.W_K[head].T)
        torch.testing.assert_close(model.OV.AB[layer, head], attn.W_V[head] @ attn.W_O[head])


def test_qk_and_the_key_table_are_the_whole_score(model, clean):
    _, cache = model.run_with_cache(clean)
    position = torch.arange(clean.shape[1])
    offset = (position[:, None] - position).clamp_min(0)
    visible = position[:, None] >= position
    content = model.QK.AB
    for layer, block in enumerate(model.layers):
        attn, stream = block.attn, cache["resid_pre", layer]
        if isinstance(model, DisentangledTransformer):
            query, table = stream[:, :, None, : attn.d_in].expand(-1, -1, 2, -1), attn.R_A
        else:
            query, table = cache["q", layer], attn.R_K
        scores = torch.einsum("bqd,hde,bke->bhqk", stream, content[layer], stream)
        by_offset = torch.einsum("bqhd,hqkd->bhqk", query, table[:, offset])
        expected = (scores + by_offset) / model.cfg.attn_scale
        found = cache["attn_scores", layer]
        torch.testing.assert_close(found[..., visible], expected[..., visible])


def test_ov_and_the_value_table_are_the_whole_output(model, clean):
    _, cache = model.run_with_cache(clean)
    position = torch.arange(clean.shape[1])
    offset = (position[:, None] - position).clamp_min(0)
    results = cache.stack_head_results().unflatten(0, (2, 2))
    for layer, head in HEADS:
        attn = model.blocks[layer].attn
        pattern = cache["pattern", layer][:, head]
        content = pattern @ cache["resid_pre", layer] @ model.OV.AB[layer, head]
        table_rows = attn.W_O[head, -attn.R_V.shape[-1] :]
        gathered = torch.einsum("bqk,qkd->bqd", pattern, attn.R_V[head][offset])
        expected = content + gathered @ table_rows
        torch.testing.assert_close(results[layer, head], expected)


def test_disentangled_qk_is_the_score_matrix_on_the_columns_that_exist(disentangled):
    for layer, head in HEADS:
        attn = disentangled.attention[layer]
        expected = torch.zeros(disentangled.cfg.d_model, disentangled.cfg.d_model).double()
        expected[: attn.d_in, : attn.d_in] = attn.W_A[head]
        assert torch.equal(disentangled.QK.AB[layer, head], expected)


def test_disentangled_ov_copies_every_block_into_its_copy(disentangled):
    stream = disentangled.stream
    for layer, head in HEADS:
        read = disentangled.streams[layer]
        expected = torch.zeros(disentangled.cfg.d_model, disentangled.cfg.d_model).double()
        for block in read:
            copy = stream[f"L{layer + 1}.H{head + 1}.{block}"]
            expected[read[block], copy] = torch.eye(read.width_of(block)).double()
        assert torch.equal(disentangled.OV.AB[layer, head], expected)


def frobenius(matrix: Tensor) -> Tensor:
    return matrix.square().sum().sqrt()


@pytest.mark.parametrize("mode", ["Q", "K", "V"])
def test_composition_scores_are_ratios_of_norms(model, mode):
    scores = model.all_composition_scores(mode)
    assert scores.head_labels == ["L0H0", "L0H1", "L1H0", "L1H1"]
    assert scores.shape == (2, 2, 2, 2)
    qk, ov = model.QK.AB, model.OV.AB
    for earlier, head in HEADS:
        for later, other in HEADS:
            written = ov[earlier, head]
            read = {"Q": qk[later, other], "K": qk[later, other].T, "V": ov[later, other]}[mode]
            ratio = frobenius(written @ read) / (frobenius(written) * frobenius(read))
            expected = ratio if earlier < later else torch.zeros_like(ratio)
            torch.testing.assert_close(scores[earlier, head, later, other], expected)


def test_disentangled_composition_is_the_weight_on_the_copied_block(disentangled):
    """Q-scores are the share of W_A in the rows of a copied block, K-scores that in its columns."""
    vocab = disentangled.config.vocab_size
    by_query = disentangled.all_composition_scores("Q")
    by_key = disentangled.all_composition_scores("K")
    by_value = disentangled.all_composition_scores("V")
    width = disentangled.attention[1].d_in
    for head in range(2):
        copy = disentangled.stream[f"L1.H{head + 1}.token"]
        for other in range(2):
            matrix = disentangled.attention[1].W_A[other]
            scale = vocab**0.5 * frobenius(matrix)
            torch.testing.assert_close(by_query[0, head, 1, other], frobenius(matrix[copy]) / scale)
            torch.testing.assert_close(
                by_key[0, head, 1, other], frobenius(matrix[:, copy]) / scale
            )
            assert by_value[0, head, 1, other].item() == pytest.approx(width**-0.5)


def test_composition_scores_do_not_see_the_value_table(disentangled, clean):
    """A layer that reads lag blocks alone scores zero, although it depends on the head it reads."""
    lag = disentangled.stream["L1.H1.lag"]
    with torch.no_grad():
        later = disentangled.attention[1].W_A
        kept = later[:, lag].clone()
        later.zero_()
        later[:, lag] = kept
    assert disentangled.all_composition_scores("Q")[0].max() < 1e-12

    def cut(value: Tensor, hook: object) -> None:
        value[..., lag] = 0

    disentangled.set_use_split_qkv_input(True)
    hooks = [("blocks.1.attn.hook_q_input", cut)]
    without = disentangled.run_with_hooks(clean, fwd_hooks=hooks)
    assert (without - disentangled(clean)).abs().max() > 0.01


def test_composition_with_an_empty_matrix_is_not_a_number(constructed):
    """The second layer of the construction averages: there is no content score to compose with."""
    if not isinstance(constructed.model, DisentangledTransformer):
        pytest.skip("layers of the standard construction have content scores")
    assert not constructed.model.QK.AB[1].any()
    scores = constructed.model.all_composition_scores("Q")
    assert scores[0, 0, 1, 0].isnan()


def test_an_unknown_mode_is_refused(model):
    with pytest.raises(ValueError, match="mode: expected one of Q, K, V; got 'q'"):
        model.all_composition_scores("q")


def test_uneven_heads_cannot_be_stacked(uneven):
    assert uneven.all_head_labels == ["L0H0", "L0H1", "L1H0"]
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        with pytest.raises(NotApplicable, match=rf"{name}: .* \(2, 1\) heads, .* blocks\[layer\]"):
            getattr(uneven, name)
    for name in ("QK", "OV", "b_Q"):
        with pytest.raises(NotApplicable, match="cannot be stacked"):
            getattr(uneven, name)
    with pytest.raises(NotApplicable, match="cannot be stacked"):
        uneven.all_composition_scores("Q")


def test_labels_of_head_results_belong_to_their_rows(clean):
    """One head in layer 0, two in layer 1: TransformerLens alone would name an L0H1."""
    config = DisentangledConfig(vocab_size=3, length=5, n_layers=2, n_heads=(1, 2), d_rel=2)
    model = DisentangledTransformer(config)
    _, cache = model.run_with_cache(clean)
    rows, labels = cache.stack_head_results(return_labels=True, incl_remainder=True)
    assert labels == ["L0H0", "L1H0", "L1H1", "remainder"]
    torch.testing.assert_close(rows[1:3].sum(0), cache["attn_out", 1])
    rows, labels = cache.stack_head_results(1, return_labels=True)
    assert labels == ["L0H0"]
    torch.testing.assert_close(rows[0], cache["attn_out", 0])
    rows, labels = cache.get_full_resid_decomposition(return_labels=True)
    assert labels == ["L0H0", "L1H0", "L1H1", "embed", "bias"]
    assert len(rows) == len(labels)


@pytest.mark.parametrize("name", ABSENT)
def test_what_does_not_apply_says_why(model, name):
    assert not hasattr(model, name)
    with pytest.raises(NotApplicable, match=f"^{name} does not apply to this model: .*[.]$"):
        getattr(model, name)


def test_an_unknown_name_is_an_ordinary_attribute_error(model):
    with pytest.raises(AttributeError, match="no attribute 'W_X'") as caught:
        model.W_X  # noqa: B018
    assert not isinstance(caught.value, NotApplicable)


def test_the_configuration_tells_the_truth(model):
    cfg = model.cfg
    for block in model.layers:
        assert block.attn.score_scale == pytest.approx(1 / cfg.attn_scale)
    assert cfg.d_mlp == 0
    assert cfg.attn_only
    assert cfg.positional_embedding_type == "relative"
    assert cfg.normalization_type is None
    assert cfg.model_name == model.config.architecture
