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
            lambda: DisentangledConfig(vocab_size=3, length=4, d_rel=0),
            "d_rel: expected an integer ≥ 1, got 0",
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


def test_a_model_is_refused_by_its_number_of_parameters():
    """12 heads with 4 projections of d_model × d_head and 2 tables of length × d_head each."""
    shape = {"vocab_size": 2, "length": 8, "n_layers": 3, "n_heads": 4, "d_model": 1024}
    assert 12 * 505 * (4 * 1024 + 2 * 8) < 25e6 < 12 * 507 * (4 * 1024 + 2 * 8)
    StandardConfig(**shape, d_head=505)
    with pytest.raises(ValueError, match="more than 25,000,000 parameters"):
        StandardConfig(**shape, d_head=507)
