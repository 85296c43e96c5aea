from dataclasses import dataclass

from mtdinterp.claims import Claim, decide
from mtdinterp.plugins import register_probe
from mtdinterp.readings import attention_of, mean_over_heads, probe_sequences
from mtdinterp.results import Result


@dataclass(frozen=True, kw_only=True, eq=False)
class PeakOffset(Result):
    """The offset that the last query attends to most, by layer."""

    offsets: tuple[int, ...]

    def summary(self):
        return f"The last query attends most to the offsets {self.offsets} (one per layer)."

    def claims(self):
        claim = Claim(
            claim="The last layer attends most to a recent token",
            status=decide(self.offsets[-1] < 8),
            evidence="Offset with the largest mean attention",
            number=str(self.offsets[-1]),
            threshold="< 8",
            control="any offset is possible",
            n_sequences=self.n_sequences,
            seed=self.seed,
        )
        return (claim,)


@register_probe("peak_offset", label="Which offset does the last query attend to most?")
def peak_offset(model, task, *, n_sequences=256, seed=0):
    tokens = probe_sequences(model, task, None, n_sequences, seed)
    layers = range(model.config.n_layers)
    found = attention_of(model, tokens, log_at_last=layers).log_at_last
    means = [mean_over_heads(found[layer]).exp().mean(0) for layer in layers]
    offsets = tuple(int(mean.argmax()) for mean in means)
    return PeakOffset(offsets=offsets, n_sequences=n_sequences, seed=seed)
