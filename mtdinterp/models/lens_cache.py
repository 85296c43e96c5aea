"""TransformerLens' ActivationCache with the labels of models whose layers differ in heads."""

from typing import Any

from torch import Tensor
from transformer_lens import ActivationCache


class LensCache(ActivationCache):
    """An ActivationCache that labels only heads that exist.

    TransformerLens labels `cfg.n_heads` heads in every layer, so if a layer has fewer heads, the
    labels would not match the rows of the stack.
    """

    def stack_head_results(
        self,
        layer: int = -1,
        return_labels: bool = False,
        incl_remainder: bool = False,
        **options: Any,
    ) -> Tensor | tuple[Tensor, list[str]]:
        """What every head writes, layer by layer.

        Args:
            layer: heads of all layers before this one; -1 for all layers.
            return_labels: whether to return labels such as "L0H1" as well.
            incl_remainder: whether to add the rest of the stream as a last row.
            **options: `pos_slice` and `apply_ln`, as in TransformerLens.

        Returns:
            The stack [head, …, d_model], and the labels if they are wanted.
        """
        stack = super().stack_head_results(layer, incl_remainder=incl_remainder, **options)
        if not return_labels:
            return stack
        heads = self.model.config.heads_per_layer
        last = len(heads) if layer is None or layer == -1 else layer
        labels = self.model.all_head_labels[: sum(heads[:last])]
        if incl_remainder:
            labels.append("remainder")
        return stack, labels
