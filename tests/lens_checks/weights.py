"""Checks of weights, circuits, and tools that read weights alone."""

import torch
from transformer_lens import SVDInterpreter
from transformer_lens.tools.analysis import attention_head_subspace_affinity

from lens_checks.base import Section, Setting, each_raises, random_model, same
from mtdinterp.errors import NotApplicable

weights = Section("Weights and circuits")

TABLES = (
    "The position tables are not part of QK and OV: scores also have `hook_rel_scores`, outputs "
    "also have what the value table R_V writes."
)


@weights.works(
    "`W_E`, `W_U`, `b_U`",
    disentangled="W_E is the identity into the token block.",
)
def embeddings(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    same(at.model.W_E[at.tokens], cache["hook_embed"])
    same(cache["resid_post", 1] @ at.model.W_U + at.model.b_U, at.model(at.tokens))


@weights.works(
    "`model.W_Q`, `W_K`, `W_V`, `W_O`",
    disentangled="All layers live in the final stream, and their inner axis is filled up with "
    "zeros to `cfg.d_head`; W_K and W_V are identities and W_O is a placement.",
)
def stacks(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    for layer in range(2):
        stream = cache["resid_pre", layer]
        for name, weight in (("q", at.model.W_Q), ("k", at.model.W_K), ("v", at.model.W_V)):
            seen = cache[name, layer]
            found = torch.einsum("bpd,hde->bphe", stream, weight[layer])
            same(found[..., : seen.shape[-1]], seen)
            assert not found[..., seen.shape[-1] :].any()
        z = cache["z", layer]
        written = torch.einsum("bphd,hdm->bpm", z, at.model.W_O[layer, :, : z.shape[-1]])
        same(written, cache["attn_out", layer])


@weights.works("`model.QK`, `model.OV`, `blocks[layer].attn.QK`", TABLES)
def circuits(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    visible = torch.ones(12, 12).tril().bool()
    for layer in range(2):
        stream = cache["resid_pre", layer]
        content = torch.einsum("bqd,hde,bke->bhqk", stream, at.model.QK.AB[layer], stream)
        by_position = cache["rel_scores", layer, "attn"]
        scores = content / at.model.cfg.attn_scale + by_position
        same(cache["attn_scores", layer][..., visible], scores[..., visible])
        same(at.model.QK.AB[layer], at.model.blocks[layer].attn.QK.AB)
        same(at.model.OV.AB[layer], at.model.blocks[layer].attn.OV.AB)


@weights.works("`b_Q`, `b_K`, `b_V`, `b_O`, `accumulated_bias`", "No component has a bias: zeros.")
def biases(at: Setting) -> None:
    for bias in (at.model.b_Q, at.model.b_K, at.model.b_V, at.model.b_O):
        assert not bias.any()
    assert not at.model.accumulated_bias(2).any()


@weights.works(
    "`FactoredMatrix`: `svd`, `S`, `norm`, `eigenvalues`, `@`",
)
def factored(at: Setting) -> None:
    product = at.model.OV[0, 1] @ at.model.QK[1, 0]
    same(product.AB, at.model.OV.AB[0, 1] @ at.model.QK.AB[1, 0])
    same(product.norm(), product.AB.norm())
    same(product.S, torch.linalg.svdvals(product.AB)[: product.S.shape[-1]])
    u, s, v = product.svd()
    same(u @ torch.diag(s) @ v.T, product.AB)
    same(at.model.QK.eigenvalues.sum(-1).real, at.model.QK.AB.diagonal(dim1=-2, dim2=-1).sum(-1))


@weights.works(
    "`all_composition_scores(mode)`, modes Q and K",
    "Scores know QK and OV only, so they do not see what heads exchange through position tables "
    "and value tables; they are NaN for a layer without content scores.",
)
def composition(at: Setting) -> None:
    for mode in "QK":
        scores = at.model.all_composition_scores(mode)
        read = at.model.QK.AB[1, 0]
        read = read if mode == "Q" else read.T
        written = at.model.OV.AB[0, 1]
        same(scores[0, 1, 1, 0], (written @ read).norm() / written.norm() / read.norm())
        assert not scores[1].any()


@weights.works(
    '`all_composition_scores("V")`',
    disentangled="The score is the same for all pairs of two layers, because OV is a placement "
    "and not learned.",
)
def value_composition(at: Setting) -> None:
    scores = at.model.all_composition_scores("V")[0, :, 1]
    first, second = at.model.OV.AB[0, 1], at.model.OV.AB[1, 0]
    same(scores[1, 0], (first @ second).norm() / first.norm() / second.norm())
    spread = scores.max() - scores.min()
    assert (spread < 1e-6) == at.is_disentangled


@weights.works("`all_head_labels`, `attn_head_labels`")
def labels(at: Setting) -> None:
    assert at.model.all_head_labels == at.model.attn_head_labels == ["L0H0", "L0H1", "L1H0", "L1H1"]


@weights.works("`tokens_to_residual_directions`")
def directions(at: Setting) -> None:
    assert torch.equal(at.model.tokens_to_residual_directions("2"), at.model.W_U[:, 2])


@weights.works("`tl_parameters`, `state_dict`, `load_state_dict`")
def parameters(at: Setting) -> None:
    assert torch.equal(at.model.tl_parameters()["blocks.1.attn.W_O"], at.model.blocks[1].attn.W_O)
    copy = random_model(at.architecture)
    with torch.no_grad():
        copy.unembed.W_U.zero_()
    copy.load_state_dict(at.model.state_dict())
    same(copy(at.tokens), at.model(at.tokens))


@weights.works(
    '`SVDInterpreter.get_singular_vectors("OV", …)`',
    disentangled="All singular values of OV are equal, so single vectors are arbitrary; only the "
    "space that they span has a meaning.",
)
def singular_vectors(at: Setting) -> None:
    product = at.model.OV.AB[1, 0]
    rank = int(torch.linalg.matrix_rank(product))
    vectors = SVDInterpreter(at.model).get_singular_vectors("OV", 1, rank, 0)[:, 0]
    read = at.model.W_U.T @ torch.linalg.svd(product).Vh[:rank].T
    same(vectors @ vectors.T, read @ read.T)
    values = torch.linalg.svdvals(product)[:rank]
    assert (values.max() - values.min() < 1e-6) == at.is_disentangled


@weights.refused(
    '`SVDInterpreter.get_singular_vectors("w_in" or "w_out", …)`',
    NotImplementedError,
    "The layers have attention only.",
)
def singular_vectors_of_mlp(at: Setting) -> None:
    interpreter = SVDInterpreter(at.model)
    calls = [
        lambda: interpreter.get_singular_vectors("w_in", 1),
        lambda: interpreter.get_singular_vectors("w_out", 1),
    ]
    each_raises(NotImplementedError, calls)


@weights.refused(
    "`attention_head_subspace_affinity`",
    ValueError,
    disentangled="Heads of later layers are wider, and the tool needs one width; the subspaces "
    "are the stream's named blocks anyway.",
)
def subspaces(at: Setting) -> None:
    found = attention_head_subspace_affinity(at.model, target_role="Q").scores[0, 1, 1, 0]
    written, _ = torch.linalg.qr(at.model.W_O[0, 1].T)
    read, _ = torch.linalg.qr(at.model.W_Q[1, 0])
    same(found, (written.T @ read).square().sum())


@weights.refused(
    "`W_pos`, `W_E_pos`",
    NotApplicable,
    "Positions enter through each layer's tables, `R_A` or `R_K`, and `R_V`.",
)
def position_weights(at: Setting) -> None:
    each_raises(NotApplicable, [lambda: at.model.W_pos, lambda: at.model.W_E_pos])


@weights.refused(
    "`W_in`, `W_out`, `W_gate`, `b_in`, `b_out`",
    NotApplicable,
    "The layers have attention only; the hidden layer of `d_mlp` belongs to `unembed`.",
)
def mlp_weights(at: Setting) -> None:
    names = ("W_in", "W_out", "W_gate", "b_in", "b_out")
    each_raises(NotApplicable, [lambda name=name: getattr(at.model, name) for name in names])


@weights.refused(
    "`process_weights`, `fold_layer_norm`, `fold_value_biases`, `center_writing_weights`, "
    "`center_unembed`, `enable_compatibility_mode`",
    NotApplicable,
    "There are no layer norms and no biases, so there is nothing to fold or to centre.",
)
def processing(at: Setting) -> None:
    names = (
        "process_weights",
        "fold_layer_norm",
        "fold_value_biases",
        "center_writing_weights",
        "center_unembed",
        "enable_compatibility_mode",
    )
    each_raises(NotApplicable, [lambda name=name: getattr(at.model, name) for name in names])
