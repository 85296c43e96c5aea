"""The whole training step in one call against the definition in float64: loss, gradients, and every
awkward input."""

import copy
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtdinterp.architectures import new_model
from mtdinterp.construction import one_step, one_step_standard, two_step
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    StandardConfig,
    StandardTransformer,
    prediction_loss,
)
from mtdinterp.models.loss import loss_of_outputs
from mtdinterp.native import step
from mtdinterp.native.step import fused_loss
from mtdinterp.native.threads import kernel_threads, torch_on_one_thread
from mtdinterp.tasks import MTDTask


def loss_and_gradients(loss, model):
    return [loss, *torch.autograd.grad(loss, tuple(model.parameters()))]


def fused(model, tokens, targets, kind="mse"):
    """By the kernel, and by nothing else."""
    assert model.attention_path(training=True).name == "whole step"
    layers = model.folded_layers()
    targets = targets[:, None] if targets.ndim == 2 else targets
    return loss_and_gradients(fused_loss(layers, model.W_U, tokens, targets, kind), model)


def eager_loss(model, tokens, targets, kind):
    """Plain PyTorch in float32: a hook anywhere makes every layer eager."""
    with model.hooks(fwd_hooks=[("hook_embed", lambda value, hook: value)]):
        assert model.attention_path(training=True).name == "eager"
        return prediction_loss(model, tokens, targets, kind)


def by_definition(model, tokens, targets, kind="mse"):
    """Eager attention in float64, every hook point aside."""
    model.double()
    try:
        outputs = model(tokens, last_only=targets.ndim == 2)
        return loss_and_gradients(loss_of_outputs(outputs, targets, kind), model)
    finally:
        model.float()


def worst_error(got, wanted):
    return max(
        ((a.double() - b).abs().max() / b.abs().max().clamp_min(1e-4)).item()
        for a, b in zip(got, wanted, strict=True)
    )


def random_problem(model, batch, length, last_only, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model.config.vocab_size, (batch, length), generator=generator)
    shape = (
        (batch, model.config.vocab_size) if last_only else (batch, length, model.config.vocab_size)
    )
    return tokens, torch.rand(shape, generator=generator)


@given(data=st.data())
def test_disentangled_loss_and_gradients(data):
    n_layers = data.draw(st.integers(1, 4))
    heads = tuple(data.draw(st.lists(st.integers(1, 2), min_size=n_layers, max_size=n_layers)))
    length, batch = data.draw(
        st.sampled_from([(90, 3), (33, 17), (9, 130), (1, 4), (2, 2), (16, 8), (64, 5)])
    )
    config = DisentangledConfig(
        vocab_size=data.draw(st.integers(2, 9)),
        length=length + data.draw(st.integers(0, 2)),
        n_layers=n_layers,
        n_heads=heads,
        d_rel=data.draw(st.integers(1, 6)),
    )
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    model = DisentangledTransformer(config)
    problem = random_problem(model, batch, length, data.draw(st.booleans()), 0)
    kind = data.draw(st.sampled_from(["mse", "cross-entropy"]))
    assert worst_error(fused(model, *problem, kind), by_definition(model, *problem, kind)) <= 5e-6


@given(data=st.data())
def test_standard_loss_and_gradients(data):
    length, batch = data.draw(
        st.sampled_from([(90, 3), (33, 17), (9, 130), (1, 4), (2, 2), (64, 5)])
    )
    config = StandardConfig(
        vocab_size=data.draw(st.integers(2, 9)),
        length=length + data.draw(st.integers(0, 2)),
        n_layers=data.draw(st.integers(1, 4)),
        n_heads=data.draw(st.integers(1, 3)),
        d_model=data.draw(st.integers(3, 40)),
        d_head=data.draw(st.integers(1, 20)),
    )
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    model = StandardTransformer(config)
    problem = random_problem(model, batch, length, data.draw(st.booleans()), 0)
    kind = data.draw(st.sampled_from(["mse", "cross-entropy"]))
    # Four layers at the scale of a fresh model lose digits in float32 whatever computes them, so
    # the kernel may also have a few times the error of the eager implementation in float32.
    definition = by_definition(model, *problem, kind)
    eager = loss_and_gradients(eager_loss(model, *problem, kind), model)
    bound = max(2e-5, 4 * worst_error(eager, definition))
    assert worst_error(fused(model, *problem, kind), definition) <= bound


@pytest.mark.parametrize("length", [64, 300])
def test_constructions_have_the_loss_of_their_formula(length):
    task = MTDTask.random(5, 3, seed=0)
    data = task.sample(20, length, seed=1)
    constants = {"beta_first": 9.0, "sharpness": 2.0, "beta_mean": 8.0, "beta_reweighted": 7.0}
    for model in (
        one_step(task.transition, 3, length, beta=15.0),
        two_step(task.transition, 3, length, **constants),
        one_step_standard(task.transition, 3, length, beta=15.0),
    ):
        targets = data.next_probs.float()
        with torch.no_grad():
            got = prediction_loss(model, data.tokens, targets).item()
            wanted = loss_of_outputs(
                model.double()(data.tokens, last_only=True), targets, "mse"
            ).item()
        assert got == pytest.approx(
            wanted, rel=2e-4
        )  # errors of 1e-5 in predictions that are 1e-2 off


MODELS = {
    "disentangled": DisentangledTransformer(
        DisentangledConfig(vocab_size=5, length=40, n_heads=(2, 1, 2), d_rel=3)
    ),
    "standard": StandardTransformer(StandardConfig(vocab_size=5, length=40, n_heads=2)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_same_threads_give_the_same_bits(name, threads):
    model = MODELS[name]
    problem = random_problem(model, 7, 33, True, seed=1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        first = fused(model, *problem)
        for _ in range(3):
            assert all(
                torch.equal(a, b) for a, b in zip(first, fused(model, *problem), strict=True)
            )
    finally:
        torch.set_num_threads(before)
    assert worst_error(first, by_definition(model, *problem)) <= 5e-6


@pytest.mark.parametrize("name", MODELS)
def test_prediction_loss_takes_either_kernel(name, monkeypatch):
    model = MODELS[name]
    tokens, targets = random_problem(model, 6, 20, False, seed=2)
    results = []
    for kernel in ("fused", "eager"):
        monkeypatch.setenv("MTDINTERP_KERNEL", kernel)
        results.append(loss_and_gradients(prediction_loss(model, tokens, targets), model))
    assert worst_error(results[0], [x.double() for x in results[1]]) <= 1e-5


def test_a_hook_sees_the_step_that_is_taken():
    model = MODELS["disentangled"]
    tokens, targets = random_problem(model, 2, 20, True, seed=2)
    quiet = prediction_loss(model, tokens, targets)
    with model.hooks(
        fwd_hooks=[("blocks.0.attn.hook_pattern", lambda pattern, hook: torch.zeros_like(pattern))]
    ):
        watched = prediction_loss(model, tokens, targets)
    assert abs(quiet.item() - watched.item()) > 1e-6
    assert prediction_loss(model, tokens, targets).item() == quiet.item()


@pytest.mark.parametrize("module", ["", "blocks.1", "blocks.1.attn", "unembed"])
def test_torch_hooks_on_modules_fire_too(module):
    model = MODELS["disentangled"]
    tokens, targets = random_problem(model, 2, 20, True, seed=2)
    quiet = prediction_loss(model, tokens, targets)
    handle = model.get_submodule(module).register_forward_hook(
        lambda module, inputs, output: 2 * output
    )
    try:
        assert abs(prediction_loss(model, tokens, targets).item() - quiet.item()) > 1e-6
    finally:
        handle.remove()


def test_gradients_of_the_targets_are_not_lost():
    model = MODELS["disentangled"]
    tokens, targets = random_problem(model, 2, 20, True, seed=2)
    prediction_loss(model, tokens, targets.requires_grad_()).backward()
    assert targets.grad is not None


def test_torchs_defaults_do_not_matter():
    for model in MODELS.values():
        problem = random_problem(model, 2, 20, True, seed=2)
        expected = loss_and_gradients(prediction_loss(model, *problem), model)
        torch.set_default_dtype(torch.float64)
        try:
            got = loss_and_gradients(prediction_loss(model, *problem), model)
            with torch.no_grad():
                assert prediction_loss(model, *problem).item() == expected[0].item()
        finally:
            torch.set_default_dtype(torch.float32)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_gradients_are_freed_and_cannot_be_changed_behind_ones_back():
    model = MODELS["disentangled"]
    loss = prediction_loss(model, *random_problem(model, 2, 20, True, seed=2))
    (gradient,) = torch.autograd.grad(loss, model.W_U, retain_graph=True)
    gradient.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, model.W_U)
    loss = prediction_loss(model, *random_problem(model, 2, 20, True, seed=2))
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    model.zero_grad()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("last_only", [False, True])
def test_too_much_attention_to_keep_is_recomputed(name, last_only, monkeypatch):
    model = MODELS[name]
    problem = random_problem(model, 3, 20, last_only, seed=3)
    kept = fused(model, *problem)
    monkeypatch.setattr(step, "KEPT_BYTES", 0)
    recomputed = fused(model, *problem)
    assert worst_error(recomputed, by_definition(model, *problem)) <= 5e-6
    assert torch.equal(kept[0], recomputed[0])


@given(data=st.data())
def test_a_whole_pass_gives_the_outputs_of_the_definition(data):
    n_layers, n_heads = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    length, batch = data.draw(st.sampled_from([(90, 3), (33, 17), (9, 130), (1, 4), (64, 5)]))
    shape = {"vocab_size": data.draw(st.integers(2, 9)), "length": length + 1}
    name = data.draw(st.sampled_from(["disentangled", "standard"]))
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    model = new_model(name, **shape, n_layers=n_layers, n_heads=n_heads)
    last_only = data.draw(st.booleans())
    tokens, _ = random_problem(model, batch, length, last_only, 0)
    with torch.no_grad():
        assert model.attention_path().name == "whole pass"
        got = model(tokens, last_only=last_only)
        wanted = model.double()(tokens, last_only=last_only)
    assert got.dtype == torch.float32
    assert worst_error([got], [wanted]) <= 2e-5


def test_a_scaled_loss_has_scaled_gradients_and_no_second_ones():
    model = MODELS["disentangled"]
    tokens, targets = random_problem(model, 3, 20, True, seed=3)
    once = torch.autograd.grad(prediction_loss(model, tokens, targets), model.W_U)[0]
    thrice = torch.autograd.grad(3 * prediction_loss(model, tokens, targets), model.W_U)[0]
    assert torch.allclose(3 * once, thrice, rtol=1e-6)
    (gradient,) = torch.autograd.grad(
        prediction_loss(model, tokens, targets), model.W_U, create_graph=True
    )
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        gradient.sum().backward()


@pytest.mark.parametrize("name", MODELS)
def test_nan_reaches_the_loss(name):
    model = MODELS[name]
    tokens, targets = random_problem(model, 3, 20, True, seed=3)
    targets[1, 2] = float("nan")
    assert prediction_loss(model, tokens, targets).isnan()
    with torch.no_grad():
        kept = model.blocks[1].attn.R_V[0, 3, 1].item()
        model.blocks[1].attn.R_V[0, 3, 1] = float("nan")
        try:
            assert prediction_loss(model, tokens, torch.zeros(3, 5)).isnan()
        finally:
            model.blocks[1].attn.R_V[0, 3, 1] = kept


def test_wrong_inputs_are_named():
    model = MODELS["disentangled"]
    tokens, targets = random_problem(model, 3, 20, True, seed=3)
    with pytest.raises(ValueError, match=r"targets: expected shape \[3, 5\], got \[2, 5\]"):
        prediction_loss(model, tokens, targets[:2])
    with pytest.raises(ValueError, match=r"tokens: expected values in 0..4"):
        prediction_loss(model, tokens + 1, targets)
    with pytest.raises(ValueError, match="loss"):
        prediction_loss(model, tokens, targets, "hinge")
    assert prediction_loss(model, tokens[:0], targets[:0]).isnan()  # the mean of nothing


def test_a_copy_of_a_model_watches_its_own_hooks():
    model = MODELS["disentangled"]
    twin = copy.deepcopy(model)
    handle = twin.blocks[0].attn.register_forward_hook(lambda module, inputs, output: output)
    assert twin.is_watched
    assert not model.is_watched
    handle.remove()
    assert not twin.is_watched


def test_kernels_keep_their_threads_where_torch_has_one():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with torch_on_one_thread():
            assert (torch.get_num_threads(), kernel_threads()) == (1, 3)
            with torch_on_one_thread():
                assert (torch.get_num_threads(), kernel_threads()) == (1, 3)
            assert (torch.get_num_threads(), kernel_threads()) == (1, 3)
        assert (torch.get_num_threads(), kernel_threads()) == (3, 3)
    finally:
        torch.set_num_threads(before)


def test_contexts_that_overlap_in_two_threads_restore_the_number_of_threads():
    before = torch.get_num_threads()
    first_is_open, second_is_open = threading.Event(), threading.Event()

    def first():
        with torch_on_one_thread():
            first_is_open.set()
            second_is_open.wait(10)

    torch.set_num_threads(3)
    try:
        other = threading.Thread(target=first)
        other.start()
        first_is_open.wait(10)
        with torch_on_one_thread():
            second_is_open.set()
            other.join(10)
            assert (torch.get_num_threads(), kernel_threads()) == (1, 3)
        assert (torch.get_num_threads(), kernel_threads()) == (3, 3)
    finally:
        torch.set_num_threads(before)
