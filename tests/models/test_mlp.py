"""The optional hidden layer before the output."""

import pytest
import torch
import torch.nn.functional as F

from mtdinterp import MTDTask, load_checkpoint, save_checkpoint
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    StandardConfig,
    StandardTransformer,
    prediction_loss,
)
from mtdinterp.models.loss import loss_of_outputs

MODELS = {
    "disentangled": lambda: DisentangledTransformer(
        DisentangledConfig(vocab_size=3, length=8, d_rel=2, d_mlp=5)
    ),
    "standard": lambda: StandardTransformer(
        StandardConfig(vocab_size=3, length=8, d_model=6, d_mlp=5)
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_adds_a_hidden_layer_of_the_last_stream(name, tmp_path):
    torch.manual_seed(0)
    model, tokens = MODELS[name](), torch.randint(3, (4, 8))
    output, cache = model.run_with_cache(tokens)
    stream, head = cache["resid_post", 2], model.unembed
    expected = stream @ head.W_U + F.gelu(stream @ head.W_in + head.b_in) @ head.W_out
    assert torch.allclose(output, expected, atol=1e-6)
    targets = torch.rand(4, 3)
    loss = prediction_loss(model, tokens, targets, "cross-entropy")
    assert loss.item() == pytest.approx(
        loss_of_outputs(output[:, -1], targets, "cross-entropy").item(), rel=1e-5
    )
    save_checkpoint(tmp_path / "c", model, MTDTask.random(3, 2, seed=0))
    assert torch.equal(load_checkpoint(tmp_path / "c").model(tokens), model(tokens))


def test_without_it_there_is_nothing_to_learn_there():
    model = DisentangledTransformer(DisentangledConfig(vocab_size=3, length=8, d_rel=2))
    assert [name for name, _ in model.unembed.named_parameters()] == ["W_U"]
