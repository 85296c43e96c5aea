"""What an architecture provides: configuration, model, starts, and what the fast recipe changes."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ClassVar

from mtdinterp.checks import check_option
from mtdinterp.models.config import ModelConfig
from mtdinterp.models.lens import LensTransformer
from mtdinterp.providers import failures_named
from mtdinterp.registry import ARCHITECTURES

Start = Callable[[Any], None]
"""Sets all parameters of a model of its architecture, in place."""


class Architecture:
    """One kind of transformer.

    Subclasses set the class attributes, override methods where the architecture differs, and
    register themselves with `mtdinterp.plugins.register_architecture`.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    """A short description, for lists."""
    config: ClassVar[type[ModelConfig]]
    """The configuration; its `architecture` is the name above."""
    model: ClassVar[type[LensTransformer]]
    """The model, which is built from a configuration alone."""
    starts: ClassVar[Mapping[str, Start]]
    """Where training may start, by name; one of them is "default"."""
    tables: ClassVar[tuple[str, ...]] = ()
    """Names of the parameters of a layer that have one row per offset, [head, offset, width]."""

    def __init__(self) -> None:
        if self.config.architecture != self.name:
            raise ValueError(
                f"architecture: expected a configuration for {self.name!r}, got one for "
                f"{self.config.architecture!r}"
            )

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that this architecture has in addition to the common ones."""
        common = {field.name for field in fields(ModelConfig)}
        own = [field.name for field in fields(self.config)]
        return tuple(name for name in own if name not in common)

    def build(self, config: ModelConfig) -> LensTransformer:
        """The model of a configuration, with the default start.

        Raises:
            PluginFailed: if the architecture comes from a plugin and its code fails.
        """
        with failures_named("architecture", self.name, ARCHITECTURES.provider(self.name)):
            return self.model(config)

    def from_dict(self, values: Mapping[str, Any]) -> LensTransformer:
        """The model of a configuration as `ModelConfig.to_dict` writes it."""
        return self.build(self.config.from_dict(values))

    def new_model(
        self,
        vocab_size: int,
        length: int,
        n_layers: int = 3,
        n_heads: int = 1,
        *,
        n_components: int = 4,
        d_mlp: int = 0,
        logits: bool = False,
        **settings: Any,
    ) -> LensTransformer:
        """A fresh model from common settings, and this architecture's own where they are given.

        Args:
            vocab_size: number of tokens.
            length: the longest sequence that the model accepts.
            n_layers: number of layers.
            n_heads: heads per layer.
            n_components: components of the task (lags), for widths that should match them.
            d_mlp: width of the hidden layer before the output; 0 for none.
            logits: whether outputs are logits.
            settings: this architecture's own settings; None keeps the default.

        Returns:
            The model, with the default start.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        for name in given:
            check_option(f"{self.name} setting", name, self.settings)
        config = self.config(
            vocab_size=vocab_size,
            length=length,
            n_layers=n_layers,
            n_heads=n_heads,
            d_mlp=d_mlp,
            logits=logits,
            **(self.default_settings(n_components) | given),
        )
        return self.build(config)

    def default_settings(self, n_components: int) -> dict[str, Any]:
        """Own settings that depend on the task's number of components."""
        return {}

    def fast_recipe(self, n_layers: int, n_heads: int) -> dict[str, Any]:
        """The fields of the fast recipe that differ for this architecture, by name.

        Args:
            n_layers: number of layers of the model to train.
            n_heads: heads per layer.

        Returns:
            Fields of `training.Recipe`, each with its value.
        """
        return {}

    def keep_far_attention(self, model: Any, shorter: int, n_components: int | None = None) -> None:
        """Lower the scores of far offsets in a model that has just grown, in place.

        The attention that goes to far positions should stay the same in total, although there are
        more of them. By default nothing is changed.

        Args:
            model: the grown model.
            shorter: the length before.
            n_components: the number of lags; if None, what the configuration suggests.
        """
