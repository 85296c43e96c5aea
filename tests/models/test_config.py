"""Configurations refuse nonsense and survive a round trip."""

import json

import pytest

from mtdinterp.models import DisentangledConfig, StandardConfig

CONFIGS = [
    DisentangledConfig(vocab_size=5, length=64),
    DisentangledConfig(
        vocab_size=3, length=8, n_layers=2, n_heads=(1, 2), d_rel=3, exact_length=True
    ),
    StandardConfig(vocab_size=5, length=64, n_heads=2),
    StandardConfig(vocab_size=4, length=9, d_model=6, d_head=5, blocks=(("token", 4), ("rest", 2))),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_a_config_survives_json(config):
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DisentangledConfig(vocab_size=1, length=4),
            "vocab_size: expected an integer ≥ 2, got 1",
        ),
        (
            lambda: DisentangledConfig(vocab_size=3, length=0),
            "length: expected an integer ≥ 1, got 0",
        ),
        (
            lambda: DisentangledConfig(vocab_size=3, length=4, n_heads=(1, 2)),
            r"n_heads: expected one number, or one per layer \(3\)",
        ),
        (
            lambda: StandardConfig(vocab_size=3, length=4, d_model=7, n_heads=2),
            "d_model: expected a multiple",
        ),
        (
            lambda: StandardConfig(vocab_size=3, length=4, blocks=(("a", 3),)),
            "blocks: expected widths that add",
        ),
        (
            lambda: StandardConfig.from_dict({"vocab_size": 3, "lenght": 4}),
            "got 'lenght'; did you mean 'length'",
        ),
    ],
)
def test_a_bad_config_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
