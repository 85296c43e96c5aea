"""Weights of another program become the same model, and every mistake is named."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mtdinterp import (
    CheckpointError,
    MTDTask,
    import_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from mtdinterp.checkpoints import UncheckedOrientation
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    StandardConfig,
    StandardTransformer,
)

UNCHECKED = "ignore::mtdinterp.checkpoints.UncheckedOrientation"
ZOO = ("disentangled-m4-T64", "standard-m4-T64")


@pytest.fixture(scope="module", params=ZOO)
def original(request):
    """A trained model of each architecture."""
    return load_checkpoint(request.param)


def foreign_weights(model):
    """The weights under other names, with matrices transposed and without their head axis.

    Returns:
        The foreign state dict, and the mapping that undoes all of it.
    """
    foreign = {}
    mapping = {}
    for name, tensor in model.state_dict().items():
        theirs = name.replace("blocks.", "transformer.layer_").replace("attn.", "")
        theirs = theirs.replace("unembed.", "head.").replace("embed.", "wte.")
        turned = tensor.mT.contiguous()
        foreign[theirs] = turned[0].clone() if turned.ndim == 3 else turned
        mapping[name] = (theirs, "transpose")
    return foreign, mapping


def reference_of(model, task, last_only=False):
    tokens = task.sample(4, model.config.length, seed=3).tokens
    with torch.no_grad():
        return tokens, model(tokens, last_only=last_only)


def written(foreign, kind, directory):
    """The foreign weights as a state dict, as arrays, or as one of the two kinds of file."""
    if kind == "dict":
        return foreign
    if kind == "arrays":
        return {name: tensor.numpy() for name, tensor in foreign.items()}
    path = directory / f"weights.{kind}"
    if kind == "safetensors":
        save_file(foreign, path)
    else:
        torch.save(foreign, path)
    return path


@pytest.mark.parametrize("kind", ["dict", "arrays", "safetensors", "pt"])
def test_renamed_and_transposed_weights_are_the_same_bits(original, kind, tmp_path):
    foreign, mapping = foreign_weights(original.model)
    before = {name: tensor.clone() for name, tensor in foreign.items()}
    source = written(foreign, kind, tmp_path)
    reference = reference_of(original.model, original.task)
    found = import_checkpoint(source, original.model.config, original.task, mapping, reference)
    assert_same_bits(found.model, original.model)
    assert not found.model.training
    for name, tensor in foreign.items():
        assert torch.equal(tensor, before[name])
    with torch.no_grad():
        next(found.model.parameters()).add_(1.0)
    for name, tensor in foreign.items():
        assert torch.equal(tensor, before[name]), "the model shares memory with the caller"


def assert_same_bits(found, expected):
    assert found.config == expected.config
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name


@pytest.mark.filterwarnings(UNCHECKED)
def test_the_result_is_a_checkpoint(original, tmp_path):
    foreign, mapping = foreign_weights(original.model)
    config = original.model.config.to_dict()
    found = import_checkpoint(foreign, config, original.task, mapping)
    assert found.history == []
    assert json.loads(json.dumps(found.config["model"])) == original.config["model"]
    assert repr(found).startswith("Checkpoint(imported: ")
    save_checkpoint(tmp_path / "saved", found.model, found.task)
    reloaded = load_checkpoint(tmp_path / "saved")
    assert_same_bits(reloaded.model, original.model)
    assert reloaded.task == original.task


@pytest.mark.filterwarnings(UNCHECKED)
def test_a_file_gives_the_checkpoint_its_name(original, tmp_path):
    path = written(dict(original.model.state_dict()), "pt", tmp_path)
    found = import_checkpoint(path, original.model.config, original.task)
    assert repr(found).startswith("Checkpoint(weights.pt: ")
    assert found.path == path


def test_float64_and_a_hidden_layer(tmp_path):
    config = DisentangledConfig(vocab_size=3, length=6, n_layers=1, n_heads=2, d_rel=2, d_mlp=4)
    model = DisentangledTransformer(config).double()
    task = MTDTask.random(3, 2, seed=0)
    found = import_checkpoint(
        model.state_dict(), config, task, reference=reference_of(model, task, last_only=True)
    )
    assert found.model.W_U.dtype == torch.float64
    assert_same_bits(found.model, model)


def square_parameters(name):
    state = load_checkpoint(name).model.state_dict()
    return [(name, key) for key, value in state.items() if value.shape[-1] == value.shape[-2]]


SQUARE = [pair for name in ZOO for pair in square_parameters(name)]


@pytest.mark.parametrize("last_only", [False, True], ids=["all", "last"])
@pytest.mark.parametrize(("name", "wrong"), SQUARE)
def test_one_wrong_transpose_is_named(name, wrong, last_only):
    original = load_checkpoint(name)
    foreign, mapping = foreign_weights(original.model)
    mapping[wrong] = mapping[wrong][0]
    reference = reference_of(original.model, original.task, last_only)
    config = original.model.config
    with pytest.warns(UncheckedOrientation, match=r"without a reference.* cannot be noticed"):
        import_checkpoint(foreign, config, original.task, mapping)
    with pytest.raises(CheckpointError, match=f"^{wrong}: it was imported in the wrong orient"):
        import_checkpoint(foreign, config, original.task, mapping, reference)


def test_there_are_square_parameters_of_both_architectures():
    assert len(SQUARE) == 3 + 12


def refusal(original, foreign, mapping=None, reference=None, **settings):
    with pytest.raises(CheckpointError) as caught:
        import_checkpoint(
            foreign, original.model.config, original.task, mapping, reference, **settings
        )
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_two_wrong_transposes_are_named(original):
    square = [key for name, key in SQUARE if key in original.model.state_dict()]
    foreign, mapping = foreign_weights(original.model)
    first, last = square[0], square[-1]
    for wrong in (first, last):
        mapping[wrong] = mapping[wrong][0]
    reference = reference_of(original.model, original.task)
    sentence = refusal(original, foreign, mapping, reference)
    assert sentence.startswith(f"{first} and {last}: both were imported in the wrong orientation")


def test_a_kind_that_is_wrong_in_all_layers_is_named():
    original = load_checkpoint("disentangled-m4-T64")
    foreign, mapping = foreign_weights(original.model)
    names = [f"blocks.{layer}.attn.W_A" for layer in range(3)]
    for wrong in names:
        mapping[wrong] = mapping[wrong][0]
    reference = reference_of(original.model, original.task)
    sentence = refusal(original, foreign, mapping, reference)
    assert sentence.startswith(f"{', '.join(names)}: all were imported in the wrong orientation")


def test_exchanged_names_are_named():
    original = load_checkpoint("standard-m4-T64")
    foreign, mapping = foreign_weights(original.model)
    first, second = "blocks.1.attn.W_Q", "blocks.1.attn.W_V"
    mapping[first], mapping[second] = mapping[second], mapping[first]
    reference = reference_of(original.model, original.task)
    sentence = refusal(original, foreign, mapping, reference)
    assert sentence.startswith(f"{first} and {second}: they are swapped")


def test_outputs_after_a_softmax_are_noticed(original):
    tokens, outputs = reference_of(original.model, original.task)
    reference = (tokens, outputs.softmax(-1))
    sentence = refusal(original, original.model.state_dict(), reference=reference)
    assert "give the outputs before the softmax" in sentence


def test_an_unexplained_difference_says_where_it_starts(original):
    tokens, outputs = reference_of(original.model, original.task)
    outputs[:, 10:] += 0.25
    sentence = refusal(original, original.model.state_dict(), reference=(tokens, outputs))
    assert "up to 0.25 (rounding: 5e-05), first at position 10 of 0..63" in sentence
    assert "none of these explains it: a softmax, a wrong transpose of one parameter" in sentence
    is_standard = original.model.config.architecture == "standard"
    assert ("scores divided by √d_head" in sentence) == is_standard
    sentence = refusal(original, original.model.state_dict(), reference=(tokens, outputs[:, -1]))
    assert "in 4 of 4 sequences" in sentence


@pytest.mark.parametrize(
    ("power", "says"), [(0.5, "divides its scores by √d_head once more"), (-0.5, "does not divide")]
)
def test_another_scale_of_the_scores_is_named(power, says):
    original = load_checkpoint("standard-m4-T64")
    factor = original.model.blocks[0].attn.d_head ** power
    state = dict(original.model.state_dict())
    foreign = {name: state[name] * factor if "W_Q" in name else state[name] for name in state}
    reference = reference_of(original.model, original.task)
    sentence = refusal(original, foreign, reference=reference)
    assert sentence.startswith("blocks.0.attn.W_Q, blocks.1.attn.W_Q, blocks.2.attn.W_Q: the orig")
    assert says in sentence


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_reference_of_one_token_determines_no_orientation(original, is_wrong):
    foreign, mapping = foreign_weights(original.model)
    name = next(key for _, key in SQUARE if key in mapping)
    if is_wrong:
        mapping[name] = mapping[name][0]
    tokens = torch.tensor([[1]])
    with torch.no_grad():
        reference = (tokens, original.model(tokens))
    sentence = refusal(original, foreign, mapping, reference)
    assert sentence.startswith(f"reference: it does not determine the orientation of {name}")
    assert sentence.endswith("use longer or more sequences")


def test_parameters_whose_orientation_does_not_matter_are_accepted():
    config = StandardConfig(vocab_size=3, length=6, n_layers=1, d_model=4)
    task = MTDTask.random(3, 2, seed=0)
    state = StandardTransformer(config).double().state_dict()
    generator = torch.Generator().manual_seed(0)
    for tensor in state.values():
        tensor.normal_(generator=generator)
    # Without values there is nothing that attention could change.
    state["blocks.0.attn.W_V"].zero_()
    state["blocks.0.attn.R_V"].zero_()
    model = StandardTransformer(config).double()
    model.load_state_dict(state)
    import_checkpoint(state, config, task, reference=reference_of(model, task))


def test_rounding_is_accepted(original):
    tokens, outputs = reference_of(original.model, original.task)
    state = original.model.state_dict()
    config = original.model.config
    import_checkpoint(state, config, original.task, reference=(tokens, outputs + 1e-6))
    import_checkpoint(state, config, original.task, reference=(tokens.numpy(), outputs.numpy()))
    import_checkpoint(state, config, original.task, reference=(tokens, outputs.half()))
    doubles = {name: tensor.double() for name, tensor in state.items()}
    import_checkpoint(doubles, config, original.task, reference=(tokens, outputs))


def test_reference_outputs_of_another_shape(original):
    tokens, outputs = reference_of(original.model, original.task)
    reference = (tokens, outputs[:, :3])
    sentence = refusal(original, original.model.state_dict(), reference=reference)
    assert "[4, 64, 5] (all positions) or [4, 5] (the last one)" in sentence
    assert sentence.endswith("got [4, 3, 5]")


def altered(original, name, change):
    return dict(original.model.state_dict()) | {name: change(original.model.state_dict()[name])}


def test_a_missing_tensor(original):
    state = dict(original.model.state_dict())
    state["head.W_U"] = state.pop("unembed.W_U")
    sentence = refusal(original, state)
    assert sentence.startswith("unembed.W_U: the weights have no tensor of this name; add it to")
    assert sentence.endswith(f"fit its shape {list(state['head.W_U'].shape)}: head.W_U")
    state["head.W_U"] = state["head.W_U"].T
    assert refusal(original, state).endswith(": head.W_U")
    state["head.W_U"] = state["head.W_U"][1:]
    assert refusal(original, state).endswith("; the nearest names are head.W_U")
    state["head.W_U"] = original.model.W_U
    sentence = refusal(original, state, {"unembed.W_U": "haed.W_U"})
    assert sentence.startswith("unembed.W_U: mapping says 'haed.W_U', which is not among")
    assert "head.W_U" in sentence


def test_an_unknown_parameter_in_the_mapping(original):
    sentence = refusal(original, original.model.state_dict(), {"unembed.W_V": "x"})
    assert sentence.startswith("mapping: this model has no parameter 'unembed.W_V'")
    assert "unembed.W_U" in sentence


@pytest.mark.parametrize("value", [("a", "flip"), ("a",), 3, ["a", "transpose", "b"]])
def test_a_mapping_that_is_neither_a_name_nor_a_pair(original, value):
    sentence = refusal(original, original.model.state_dict(), {"unembed.W_U": value})
    assert 'expected a name or (name, "transpose") for unembed.W_U' in sentence


@pytest.mark.filterwarnings(UNCHECKED)
def test_unused_tensors_are_named_or_ignored(original):
    state = dict(original.model.state_dict()) | {"attn.mask": torch.ones(3), "b_U": torch.ones(5)}
    sentence = refusal(original, state)
    assert sentence.startswith("source: this model has no parameter for attn.mask, b_U;")
    ignored = ["attn.mask", "b_U"]
    config = original.model.config
    found = import_checkpoint(state, config, original.task, ignore=ignored)
    assert_same_bits(found.model, original.model)
    sentence = refusal(original, original.model.state_dict(), ignore=ignored)
    assert sentence.startswith("ignore: 'attn.mask' is not among the weights")


def test_a_wrong_shape_says_if_the_transpose_fits(original):
    state = altered(original, "unembed.W_U", lambda tensor: tensor.T)
    sentence = refusal(original, state)
    assert sentence.startswith("unembed.W_U: expected shape [")
    assert sentence.endswith("""so map it to ('unembed.W_U', "transpose")""")
    sentence = refusal(
        original, original.model.state_dict(), {"unembed.W_U": ("unembed.W_U", "transpose")}
    )
    assert sentence.endswith("so map it to 'unembed.W_U'")
    sentence = refusal(original, altered(original, "unembed.W_U", lambda tensor: tensor[:-1]))
    assert sentence.endswith("from 'unembed.W_U'")


def test_dtypes_and_values(original):
    name = "unembed.W_U"
    assert "got torch.float16; convert it with .float()" in refusal(
        original, altered(original, name, torch.Tensor.half)
    )
    assert "got torch.int64" in refusal(original, altered(original, name, torch.Tensor.long))
    assert f"{name}: expected all parameters in one dtype" in refusal(
        original, altered(original, name, torch.Tensor.double)
    )
    assert f"{name}: expected finite numbers" in refusal(
        original, altered(original, name, lambda tensor: tensor / 0)
    )
    assert "to be a dense tensor" in refusal(
        original, altered(original, name, torch.Tensor.to_sparse)
    )
    assert "to be a dense tensor" in refusal(
        original, altered(original, name, lambda tensor: tensor.to("meta"))
    )
    assert "to be a tensor, got list" in refusal(
        original, altered(original, name, torch.Tensor.tolist)
    )
    assert "in float32 or float64, got <U1" in refusal(
        original, altered(original, name, lambda tensor: np.array(["a"]))
    )
    assert "in float32 or float64, got longdouble" in refusal(
        original, altered(original, name, lambda tensor: tensor.numpy().astype(np.longdouble))
    ).replace(str(np.dtype(np.longdouble)), "longdouble")


@pytest.mark.filterwarnings(UNCHECKED)
def test_arrays_in_the_other_byte_order_have_the_same_values(original):
    state = original.model.state_dict()
    swapped = {name: tensor.numpy().astype(">f4") for name, tensor in state.items()}
    found = import_checkpoint(swapped, original.model.config, original.task)
    for name, tensor in found.model.state_dict().items():
        assert torch.equal(tensor, state[name])


def test_an_expanded_tensor_of_any_size_costs_nothing(original):
    huge = torch.zeros(1).expand(10**15)
    sentence = refusal(original, altered(original, "unembed.W_U", lambda tensor: huge))
    assert f"got {[10**15]}" in sentence


def test_a_dictionary_that_contains_the_state_dict(original):
    sentence = refusal(original, {"epoch": 3, "model": original.model.state_dict()})
    assert "pass it alone, for example torch.load(path, weights_only=True)['model']" in sentence


def test_other_tasks_and_architectures(original):
    state = original.model.state_dict()
    with pytest.raises(
        CheckpointError, match="expected a vocabulary of 5 tokens, like the model, got 3"
    ):
        import_checkpoint(state, original.model.config, MTDTask.random(3, 2, seed=0))
    with pytest.raises(ValueError, match="architecture: expected one of"):
        import_checkpoint(state, {"architecture": "diffusion"}, original.task)
    with pytest.raises(CheckpointError, match=r"^config: entry 'architecture' is missing$"):
        import_checkpoint(state, {"vocab_size": 5}, original.task)
