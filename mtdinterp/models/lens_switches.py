"""TransformerLens' switches for hook points that cost memory when they fire."""

from mtdinterp.models.hooked import LensConfig


class HookSwitches:
    """The methods of a TransformerLens model that switch hook points on and off."""

    cfg: LensConfig

    def set_use_attn_result(self, value: bool) -> None:
        """Whether `hook_result` fires."""
        self.cfg.use_attn_result = value

    def set_use_split_qkv_input(self, value: bool) -> None:
        """Whether queries, keys and values have separate input hooks."""
        self._check_forks(value, self.cfg.use_attn_in)
        self.cfg.use_split_qkv_input = value

    def set_use_attn_in(self, value: bool) -> None:
        """Whether `hook_attn_in` fires."""
        self._check_forks(value, self.cfg.use_split_qkv_input)
        self.cfg.use_attn_in = value

    def set_use_hook_mlp_in(self, value: bool) -> None:
        """Has no effect; some tools call it."""
        self.cfg.use_hook_mlp_in = value

    @staticmethod
    def _check_forks(value: bool, other: bool) -> None:
        if value and other:
            raise ValueError(
                "use_attn_in and use_split_qkv_input cannot be combined: switch one off first"
            )
