"""The fast forward passes against the obvious ones, gradients included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mtdinterp.bench.reference import disentangled_forward, gather_by_offset, standard_forward
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    StandardConfig,
    StandardTransformer,
    relative_attention,
)
from mtdinterp.models.attention import attention_by_offset, gather_positions, position_scores


def randomised(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Parameters large enough that attention is far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2
    return model


def disentangled(seed=0, **kwargs):
    return randomised(DisentangledTransformer(DisentangledConfig(**kwargs)).double(), seed)


def standard(seed=0, **kwargs):
    return randomised(StandardTransformer(StandardConfig(**kwargs)).double(), seed)


def tokens_of(batch, length, vocab_size, seed=0):
    return torch.randint(vocab_size, (batch, length), generator=torch.Generator().manual_seed(seed))


def gradients(loss, model):
    return torch.autograd.grad(loss, tuple(model.parameters()), materialize_grads=True)


SHAPES = [
    {"vocab_size": 3, "length": 9, "n_layers": 3},
    {"vocab_size": 5, "length": 12, "n_layers": 2, "n_heads": 3},
    {"vocab_size": 2, "length": 1, "n_layers": 1},
]
DISENTANGLED = [
    *({**shape, "d_rel": 2} for shape in SHAPES),
    {"vocab_size": 3, "length": 7, "n_layers": 3, "n_heads": (2, 1, 3), "d_rel": 4},
]
STANDARD = [
    *({**shape, "d_model": 6} for shape in SHAPES),
    {"vocab_size": 4, "length": 8, "n_layers": 2, "n_heads": 2, "d_model": 5, "d_head": 3},
]
CASES = [(disentangled, disentangled_forward, shape) for shape in DISENTANGLED] + [
    (standard, standard_forward, shape) for shape in STANDARD
]


@pytest.mark.parametrize(("build", "reference", "shape"), CASES)
def test_the_forward_pass_and_its_gradients_equal_the_reference(build, reference, shape):
    model = build(**shape)
    tokens = tokens_of(4, shape["length"], shape["vocab_size"])
    outputs, expected = model(tokens), reference(model, tokens)
    assert (outputs - expected).abs().max() <= 1e-12 * expected.abs().max()
    direction = torch.randn(
        outputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    ours, theirs = (
        gradients((outputs * direction).sum(), model),
        gradients((expected * direction).sum(), model),
    )
    for name, got, wanted in zip(dict(model.named_parameters()), ours, theirs, strict=True):
        assert (got - wanted).abs().max() <= 1e-12 * (1 + wanted.abs().max()), name


@pytest.mark.parametrize(("build", "reference", "shape"), CASES)
def test_last_only_is_the_last_position_with_the_same_gradients(build, reference, shape):
    model = build(**shape)
    tokens = tokens_of(3, shape["length"], shape["vocab_size"], seed=2)
    last, expected = model(tokens, last_only=True), reference(model, tokens)[:, -1]
    assert (last - expected).abs().max() <= 1e-12 * expected.abs().max()
    ours, theirs = gradients(last.square().sum(), model), gradients(expected.square().sum(), model)
    for got, wanted in zip(ours, theirs, strict=True):
        assert (got - wanted).abs().max() <= 1e-12 * (1 + wanted.abs().max())


@pytest.mark.parametrize("build", [disentangled, standard])
def test_a_shorter_sequence_gives_the_prefix(build):
    """Causal, and offsets mean the same at every length."""
    model = build(vocab_size=4, length=11, n_layers=3)
    tokens = tokens_of(2, 11, 4)
    assert torch.allclose(model(tokens)[:, :6], model(tokens[:, :6]), atol=1e-12)


@pytest.mark.parametrize("build", [disentangled, standard])
def test_bad_tokens_are_refused(build):
    model = build(vocab_size=3, length=6)
    for bad, message in [
        (torch.zeros(1, 7, dtype=torch.long), r"expected a length in 1\.\.6, got 7"),
        (torch.zeros(1, 0, dtype=torch.long), r"expected a length in 1\.\.6, got 0"),
        (torch.full((1, 4), 3), r"expected values in 0\.\.2, got values in 3\.\.3"),
        (torch.zeros(1, 4), "expected an integer type, got torch.float32"),
        (torch.zeros(4, dtype=torch.long), r"expected shape \[batch, pos\], got \(4,\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            model(bad)
    with pytest.raises(
        ValueError, match="return_type: expected one of logits, loss, both; got 'logit'"
    ):
        model(torch.zeros(1, 4, dtype=torch.long), return_type="logit")


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_relative_attention_equals_its_definition(data):
    """Any sizes, any number of trailing queries, tables longer than the sequence."""
    batch, heads, n_keys = (data.draw(st.integers(1, 4)) for _ in range(3))
    n_keys += data.draw(st.integers(0, 8))
    n_queries = data.draw(st.integers(1, n_keys))
    d_key, d_pos, d_value, d_rel = (data.draw(st.integers(1, 4)) for _ in range(4))
    length = n_keys + data.draw(st.integers(0, 3))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, p = normal(batch, n_queries, heads, d_key), normal(batch, n_queries, heads, d_pos)
    k, v = normal(batch, n_keys, heads, d_key), normal(batch, n_keys, heads, d_value)
    key_table, value_table = normal(heads, length, d_pos), normal(heads, length, d_rel)
    content, position = relative_attention(q, p, k, v, key_table, value_table)
    for i in range(n_queries):
        seen = n_keys - n_queries + i + 1
        offsets = torch.arange(seen - 1, -1, -1)
        scores = torch.einsum("bhd,bkhd->bhk", q[:, i], k[:, :seen]) + torch.einsum(
            "bhd,hkd->bhk", p[:, i], key_table[:, offsets]
        )
        pattern = scores.softmax(-1)
        assert torch.allclose(
            content[:, i], torch.einsum("bhk,bkhd->bhd", pattern, v[:, :seen]), atol=1e-12
        )
        assert torch.allclose(
            position[:, i],
            torch.einsum("bhk,hkd->bhd", pattern, value_table[:, offsets]),
            atol=1e-12,
        )


def test_changing_between_offsets_and_keys_by_hand():
    """Three positions, one feature: the score at [i, j] is the table's row i - j, and back."""
    table = torch.tensor([[[10.0], [20.0], [30.0]]])
    scores = position_scores(torch.ones(1, 3, 1, 1), table, 3)[0, 0]
    assert scores.tril().tolist() == [[10, 0, 0], [20, 10, 0], [30, 20, 10]]
    pattern = torch.tensor([[[[1.0, 0, 0], [0.25, 0.75, 0], [0.5, 0.125, 0.375]]]])
    assert attention_by_offset(pattern)[0, 0].tolist() == [
        [1, 0, 0],
        [0.75, 0.25, 0],
        [0.375, 0.125, 0.5],
    ]
    assert gather_positions(pattern, table)[0, :, 0, 0].tolist() == [10, 12.5, 21.25]
    assert gather_by_offset(table, 3)[0, :, :, 0].tril().equal(scores.tril())


def test_no_tensor_of_query_times_key_times_width_is_ever_built(eager_kernel):
    """The largest tensor of the eager forward and backward stays near [batch, query, key]."""
    length, batch = 64, 2
    model = DisentangledTransformer(DisentangledConfig(vocab_size=3, length=length, d_rel=2))
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            parts = result if isinstance(result, tuple | list) else [result]
            largest = max(
                [largest, *(part.numel() for part in parts if isinstance(part, torch.Tensor))]
            )
            return result

    with Watch():
        model(tokens_of(batch, length, 3)).square().sum().backward()
    assert batch * length * length <= largest <= batch * (length + 1) ** 2
