"""TransformerLens' causal tools, cell by cell against a forward pass that shares no code with the
model."""

import pytest
import torch
from torch import Tensor
from transformer_lens import patching
from transformer_lens.tools.analysis.attribution_patching import (
    EdgeAttributionConfig,
    FaithfulnessConfig,
    Node,
    attribution_patch,
    faithfulness,
)

from mtdinterp.estimators import mean_responsibilities, predict_next

BETA = 4.0
CLOSE = {"rtol": 1e-5, "atol": 1e-6}  # TransformerLens stores what it measured in float32
READING = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)

# Of each sweep: the activation it patches, and the axes of its result after the layer.
SWEEPS = {
    "resid_pre": ("resid_pre", ("pos",)),
    "attn_out": ("attn_out", ("pos",)),
    **{
        f"attn_head_{label}_by_pos": (name, ("pos", "head"))
        for label, name in {"out": "z", "q": "q", "k": "k", "v": "v"}.items()
    },
    **{
        f"attn_head_{label}_all_pos": (name, ("head",))
        for label, name in {"out": "z", "q": "q", "k": "k", "v": "v"}.items()
    },
    "attn_head_pattern_by_pos": ("pattern", ("head", "pos")),
    "attn_head_pattern_all_pos": ("pattern", ("head",)),
    "attn_head_pattern_dest_src_pos": ("pattern", ("head", "pos", "key")),
}


def metric(outputs: Tensor) -> Tensor:
    """Linear in the outputs of the last position."""
    return (outputs[:, -1] @ READING).mean()


def cell(name: str, axes: tuple[str, ...], index: tuple[int, ...]) -> tuple:
    """Where a sweep's cell lies in the activation."""
    order = ("batch", "head", "pos", "key") if name == "pattern" else ("batch", "pos", "head")
    at = dict(zip(axes, index, strict=True))
    return tuple(at.get(axis, slice(None)) for axis in order)


def swap(name: str, layer: int, where: tuple, source: Tensor):
    """An edit that copies `source` there, out of place."""

    def edit(at: str, at_layer: int, value: Tensor) -> Tensor:
        if (at, at_layer) != (name, layer):
            return value
        mask = torch.zeros_like(value, dtype=torch.bool)
        mask[where] = True
        return torch.where(mask, source, value)

    return edit


@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_cell_of_a_patch_sweep_is_an_independent_forward(
    model, clean, corrupt, additive, sweep
):
    name, axes = SWEEPS[sweep]
    _, cache = model.run_with_cache(clean)
    measured = getattr(patching, f"get_act_patch_{sweep}")(model, corrupt, cache, metric)
    source = additive.cache(model, clean)
    expected = torch.empty_like(measured)
    for layer, *index in torch.cartesian_prod(*map(torch.arange, measured.shape)).tolist():
        edit = swap(name, layer, cell(name, axes, tuple(index)), source[name, layer])
        expected[layer, *index] = metric(additive.forward(model, corrupt, edit))
    torch.testing.assert_close(measured, expected, **CLOSE)
    assert expected.unique().numel() > 1


def test_patching_the_absent_mlp_changes_nothing(model, clean, corrupt):
    _, cache = model.run_with_cache(clean)
    measured = patching.get_act_patch_mlp_out(model, corrupt, cache, metric)
    torch.testing.assert_close(
        measured, metric(model(corrupt)).float().expand_as(measured), **CLOSE
    )


def test_helpers_for_every_activation_stack_the_single_sweeps(model, clean, corrupt):
    _, cache = model.run_with_cache(clean)
    heads = patching.get_act_patch_attn_head_all_pos_every(model, corrupt, cache, metric)
    by_pos = patching.get_act_patch_attn_head_by_pos_every(model, corrupt, cache, metric)
    blocks = patching.get_act_patch_block_every(model, corrupt, cache, metric)
    assert torch.equal(
        heads[2], patching.get_act_patch_attn_head_k_all_pos(model, corrupt, cache, metric)
    )
    assert torch.equal(
        by_pos[3], patching.get_act_patch_attn_head_v_by_pos(model, corrupt, cache, metric)
    )
    assert torch.equal(blocks[1], patching.get_act_patch_attn_out(model, corrupt, cache, metric))
    torch.testing.assert_close(
        blocks[2], metric(model(corrupt)).float().expand_as(blocks[2]), **CLOSE
    )


def test_patching_results_carry_the_unpatched_baseline(model, clean, corrupt):
    _, cache = model.run_with_cache(clean)
    result = patching.get_act_patch_resid_pre(
        model, corrupt, cache, lambda out: out[:, -1] @ READING, reduce="none", baseline=True
    )
    torch.testing.assert_close(result.baseline.double(), (model(corrupt)[:, -1] @ READING), **CLOSE)
    torch.testing.assert_close(
        result.effect().mean(-1), result.mean() - result.baseline.mean(), **CLOSE
    )


@pytest.mark.parametrize(
    "name",
    [
        "hook_embed",
        "blocks.0.hook_resid_pre",
        "blocks.1.hook_resid_pre",
        "blocks.1.hook_resid_post",
    ],
)
def test_patching_the_whole_stream_recovers_the_clean_outputs(model, clean, corrupt, name):
    _, cache = model.run_with_cache(clean)
    patched = model.run_with_hooks(
        corrupt, fwd_hooks=[(name, lambda value, hook: cache[hook.name])]
    )
    torch.testing.assert_close(patched, model(clean))


@pytest.mark.parametrize("component", ["q", "k", "v"])
def test_direct_path_patching_is_the_exact_edge_intervention(
    model, clean, corrupt, additive, component
):
    model.set_use_attn_in(True)
    _, clean_cache = model.run_with_cache(clean)
    _, corrupt_cache = model.run_with_cache(corrupt)
    measured = patching.get_act_patch_direct_path_all_sources(
        model, corrupt, clean_cache, corrupt_cache, metric, component, verbose=False
    )
    assert model.cfg.use_attn_in
    assert not model.cfg.use_split_qkv_input
    assert not measured[1].any()  # nothing comes after the last layer
    difference = additive.cache(model, clean)["z", 0] - additive.cache(model, corrupt)["z", 0]
    for source in range(2):
        delta = difference[:, :, source] @ model.blocks[0].attn.W_O[source]
        for head in range(2):

            def edit(
                name: str, layer: int, value: Tensor, head: int = head, delta: Tensor = delta
            ) -> Tensor:
                chosen = torch.arange(2)[:, None] == head
                here = (name, layer) == (f"{component}_input", 1)
                return value + chosen * delta[:, :, None] if here else value

            expected = metric(additive.forward(model, corrupt, edit)).float()
            torch.testing.assert_close(measured[0, source, 1, head], expected, **CLOSE)


def test_direct_path_patching_of_one_source_is_a_row_of_all_sources(model, clean, corrupt):
    caches = [model.run_with_cache(tokens)[1] for tokens in (clean, corrupt)]
    every = patching.get_act_patch_direct_path_all_sources(
        model, corrupt, *caches, metric, "k", verbose=False
    )
    one = patching.get_act_patch_direct_path(
        model, corrupt, *caches, metric, 0, 1, "k", verbose=False
    )
    assert torch.equal(one, every[0, 1])


def test_node_attribution_is_exact_where_the_output_is_linear(model, clean, corrupt):
    """The last layer's head outputs enter the metric linearly: the first-order estimate is the
    effect."""
    clean, corrupt = clean[:1], corrupt[:1]
    scores = attribution_patch(model, clean, corrupt, metric).node_scores
    _, cache = model.run_with_cache(clean)
    patched = patching.get_act_patch_attn_head_out_by_pos(model, corrupt, cache, metric)
    for head in range(2):
        node = Node("attn_head_out", position=clean.shape[1] - 1, layer=1, head=head)
        effect = (patched[1, -1, head] - metric(model(corrupt))).item()
        assert scores[node] == pytest.approx(effect, abs=1e-6)
        assert scores[Node("attn_head_out", position=0, layer=1, head=head)] == 0
    assert all(score == 0 for node, score in scores.items() if node.kind == "mlp_out")


def test_node_attribution_is_the_derivative_along_the_patch(model, clean, corrupt):
    """Elsewhere: the slope of the metric, at the corrupt run, as the activation moves to the clean
    one."""
    clean, corrupt = clean[:1], corrupt[:1]
    scores = attribution_patch(model, clean, corrupt, metric).node_scores
    clean_cache, corrupt_cache = (model.run_with_cache(tokens)[1] for tokens in (clean, corrupt))
    for kind, name, layer in (
        ("embed", "hook_embed", None),
        ("attn_head_out", "blocks.0.attn.hook_z", 0),
    ):
        for position in range(clean.shape[1]):
            for head in [None] if layer is None else [0, 1]:
                where = (slice(None), position) if head is None else (slice(None), position, head)

                def moved(step: float, name: str = name, where: tuple = where) -> Tensor:
                    def move(value: Tensor, hook: object) -> Tensor:
                        value = value.clone()
                        value[where] += step * (clean_cache[name] - corrupt_cache[name])[where]
                        return value

                    return metric(model.run_with_hooks(corrupt, fwd_hooks=[(name, move)]))

                slope = ((moved(1e-4) - moved(-1e-4)) / 2e-4).item()
                score = scores[Node(kind, position=position, layer=layer, head=head)]
                assert score == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_edge_attributions_add_up_to_their_nodes(model, clean, corrupt):
    nodes = attribution_patch(model, clean, corrupt, metric).node_scores
    edges = attribution_patch(
        model, clean, corrupt, metric, EdgeAttributionConfig(granularity="edge")
    )
    assert edges.node_scores == pytest.approx(nodes, abs=1e-9)
    switches = ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in")
    assert [getattr(model.cfg, switch) for switch in switches] == [False, False, False]


@pytest.mark.parametrize("ablation", ["corrupt", "mean"])
def test_the_full_graph_is_faithful(model, clean, corrupt, ablation):
    tokens = clean[:1], corrupt[:1]
    held_out = corrupt[1:] if ablation == "mean" else None
    every = list(
        attribution_patch(
            model, *tokens, metric, EdgeAttributionConfig(granularity="edge")
        ).edge_scores
    )
    full = faithfulness(
        model, *tokens, metric, every, FaithfulnessConfig(ablation), mean_tokens=held_out
    )
    assert full.recovered == pytest.approx(1)
    assert full.circuit_size == full.total_edges == len(every)
    assert full.full_metric == pytest.approx(metric(model(tokens[0])).item())


def test_the_empty_graph_recovers_nothing(model, clean, corrupt):
    assert faithfulness(model, clean[:1], corrupt[:1], metric, []).recovered == pytest.approx(
        0, abs=1e-9
    )


# The constructions: which paths carry the algorithm is known, and so is the answer when one is cut.


def formula(constructed, mean_from: Tensor, tokens: Tensor) -> Tensor:
    """Σ_g softmax(β·Γ)_g·π[y_{T-g}], with Γ of one sequence and the tokens of another."""
    mean = mean_responsibilities(constructed.transition, mean_from, 2)
    return predict_next(constructed.transition, tokens, (BETA * mean).softmax(-1))


def columns(constructed, block: str, source: Tensor):
    """A hook that copies one named block of the stream, at every position."""
    part = constructed.model.stream[block]

    def hook(value: Tensor, hook: object) -> None:
        value[..., part] = source[..., part]

    return hook


def test_patching_a_named_block_moves_the_algorithm_by_what_the_block_holds(constructed):
    """γ before layer 2, or Γ before layer 3, from another sequence: the output mixes with its
    weights."""
    model, clean, corrupt = constructed.model, constructed.clean, constructed.corrupt
    _, cache = model.run_with_cache(clean)
    expected = formula(constructed, mean_from=clean, tokens=corrupt)
    assert (expected - formula(constructed, corrupt, corrupt)).abs().max() > 0.05
    for layer, block in ((1, constructed.gamma), (2, constructed.mean)):
        hook = columns(constructed, block, cache["resid_pre", layer])
        patched = model.run_with_hooks(
            corrupt, last_only=True, fwd_hooks=[(f"blocks.{layer}.hook_resid_pre", hook)]
        )
        torch.testing.assert_close(patched, expected)


def test_noise_in_a_block_that_nobody_reads_changes_nothing(constructed):
    model, tokens = constructed.model, constructed.clean
    _, cache = model.run_with_cache(tokens)
    noise = torch.randn(
        cache["resid_pre", 1].shape, generator=torch.Generator().manual_seed(0)
    ).double()
    hook = columns(constructed, constructed.inert, noise)
    patched = model.run_with_hooks(
        tokens, last_only=True, fwd_hooks=[("blocks.1.hook_resid_pre", hook)]
    )
    torch.testing.assert_close(patched, formula(constructed, tokens, tokens))


def test_attention_out_patches_find_where_the_algorithm_reads(constructed):
    """Clean γ matters at positions m..T-1 only; clean Γ at the last position alone."""
    model, clean, corrupt = constructed.model, constructed.clean, constructed.corrupt
    _, cache = model.run_with_cache(clean)
    measured = patching.get_act_patch_attn_out(
        model, corrupt, cache, lambda out: out[:, -1] @ READING, reduce="none", baseline=True
    ).effect()
    felt = measured.abs().amax(-1) > 1e-6
    assert felt[0].tolist() == [False, False] + [True] * 6
    assert felt[1].tolist() == felt[2].tolist() == [False] * 7 + [True]
    swapped = (
        formula(constructed, clean, corrupt) - formula(constructed, corrupt, corrupt)
    ) @ READING
    torch.testing.assert_close(measured[1, -1].double(), swapped, **CLOSE)


def test_the_algorithm_is_the_circuit(constructed):
    """token → γ → Γ → weights, and token → output, carry everything; cut Γ → weights and Γ stays
    corrupt."""
    model, clean, corrupt = constructed.model, constructed.clean[:1], constructed.corrupt[:1]
    last = clean.shape[1] - 1
    edges = attribution_patch(
        model, clean, corrupt, metric, EdgeAttributionConfig(granularity="edge")
    ).edge_scores

    def belongs(writer: Node, reader: Node) -> bool:
        return (writer.kind, writer.layer, reader.kind, reader.layer) in {
            ("embed", None, "q_input", 0),
            ("embed", None, "k_input", 0),
            ("attn_head_out", 0, "v_input", 1),
            ("attn_head_out", 1, "q_input", 2),
            ("embed", None, "v_input", 2),
            ("attn_head_out", 2, "logits", 2),
        }

    circuit = [edge for edge in edges if belongs(*edge)]
    assert faithfulness(model, clean, corrupt, metric, circuit).recovered == pytest.approx(1)
    cut = [
        (writer, reader)
        for writer, reader in circuit
        if (reader.kind, reader.layer, reader.position) != ("q_input", 2, last)
    ]
    result = faithfulness(model, clean, corrupt, metric, cut)
    gap = result.full_metric - result.corrupt_metric
    assert result.recovered * gap + result.corrupt_metric == pytest.approx(
        (formula(constructed, mean_from=corrupt, tokens=clean) @ READING).item()
    )
