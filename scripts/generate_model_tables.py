"""Write the tables of docs/models.md from the models: `python scripts/generate_model_tables.py`.

Names and shapes are read from small models whose sizes are all different, so that every size can be
replaced by its name. A parameter or a hook point without a description below is an error, so a new
one cannot be forgotten.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from mtdinterp.checkpoints import load_checkpoint
from mtdinterp.construction import one_step_standard
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    LensTransformer,
    StandardConfig,
    StandardTransformer,
)

PAGE = Path(__file__).parent.parent / "docs" / "models.md"
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
BATCH, LENGTH, VOCAB, HEADS, D_REL, D_MODEL, D_HEAD, D_MLP = 3, 11, 5, 2, 7, 13, 19, 17
LAYER = 1
"""The layer that stands for all of them; layer 0 would hide the difference of d_in and q."""
EXAMPLES = {"disentangled": "disentangled-m4-T64", "standard": "standard-m4-T64"}
"""Trained models whose shapes are shown next to the general ones."""

PARAMETERS = {
    "attn.W_A": "content score: axis 1 is the query's stream, axis 2 the key's",
    "attn.R_A": "position score: row o is multiplied with the query if the key is o tokens back",
    "attn.R_V": "value table: row o is gathered from a key that is o tokens back",
    "attn.W_Q": "queries from the stream",
    "attn.W_K": "keys from the stream",
    "attn.W_V": "values from the stream",
    "attn.W_O": "from a head to the stream",
    "attn.R_K": "key table: row o is added to the key if it is o tokens back",
    "embed.W_E": "token embedding",
    "unembed.W_U": "read-out; no bias, no softmax",
    "unembed.W_in": "hidden layer before the output, only if d_mlp > 0",
    "unembed.b_in": "its bias",
    "unembed.W_out": "from the hidden layer to the output",
}
HOOKS = {
    "hook_embed": "embedded tokens",
    "hook_resid_pre": "stream before the layer",
    "hook_attn_out": "what all heads of the layer write",
    "hook_mlp_in": "input of an MLP that does not exist, for tools that expect one",
    "hook_mlp_out": "its output, zeros",
    "hook_resid_post": "stream after the layer",
    "attn.hook_attn_in": "what each head reads",
    "attn.hook_q_input": "what each head's queries read",
    "attn.hook_k_input": "what each head's keys read",
    "attn.hook_v_input": "what each head's values read",
    "attn.hook_q": "queries of the content score: h·W_A, or x·W_Q",
    "attn.hook_p": "queries of the position score: h",
    "attn.hook_k": "keys: h, or x·W_K",
    "attn.hook_v": "values: h (R_V's columns are zero here), or x·W_V",
    "attn.hook_rel_scores": "position scores, zero for keys in the future",
    "attn.hook_attn_scores": "all scores, -∞ for keys in the future",
    "attn.hook_pattern": "attention A",
    "attn.hook_z": "what each head gathers, from values and value table",
    "attn.hook_result": "what each head writes to the stream",
}
SWITCHES = ("use_attn_in", "use_split_qkv_input", "use_attn_result")
"""Settings of TransformerLens without which some hook points do not fire."""


def small_models() -> dict[str, LensTransformer]:
    """One model of each architecture in which no two sizes are equal."""
    common = {"vocab_size": VOCAB, "length": LENGTH, "n_layers": 2, "n_heads": HEADS}
    return {
        "disentangled": DisentangledTransformer(
            DisentangledConfig(**common, d_rel=D_REL, d_mlp=D_MLP)
        ),
        "standard": StandardTransformer(
            StandardConfig(**common, d_model=D_MODEL, d_head=D_HEAD, d_mlp=D_MLP)
        ),
    }


def sizes_of(model: LensTransformer) -> dict[int, str]:
    """The name of every size."""
    names = {BATCH: "batch", LENGTH: "length", VOCAB: "q", HEADS: "head", D_MLP: "d_mlp"}
    names[model.cfg.d_model] = "d_model"
    if isinstance(model, DisentangledTransformer):
        d_in = model.attention[LAYER].d_in
        names |= {D_REL: "d_R", d_in: "d_in", d_in + D_REL: "d_in + d_R"}
    else:
        names[D_HEAD] = "d_head"
    return names


def general(name: str) -> str:
    """A name in any layer: "blocks.l.attn.W_A" of "blocks.1.attn.W_A"."""
    return name.replace(f"blocks.{LAYER}.", "blocks.l.")


def description(known: Mapping[str, str], name: str) -> str:
    return known[name.removeprefix("blocks.l.")]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def parameter_table(architecture: str, model: LensTransformer) -> str:
    """Name, general shape, shape in a trained model, and meaning of every parameter."""
    sizes = sizes_of(model)
    trained = load_checkpoint(EXAMPLES[architecture]).model.state_dict()
    rows = []
    for name, tensor in model.state_dict().items():
        if name.startswith("blocks.") and not name.startswith(f"blocks.{LAYER}."):
            continue
        shape = "[" + ", ".join(sizes[size] for size in tensor.shape) + "]"
        example = str(list(trained[name].shape)) if name in trained else "none"
        meaning = description(PARAMETERS, general(name))
        rows.append((f"`{general(name)}`", shape, example, meaning))
    example = f"layer 2 of `{EXAMPLES[architecture]}`"
    return table(("parameter", "shape", example, "what it is"), rows)


def hook_shapes(model: LensTransformer) -> dict[str, tuple[str, str]]:
    """For every hook point of the example layer, its shape and the switch that it needs."""
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    found: dict[str, tuple[str, str]] = {}
    for switch in ("", *SWITCHES):
        if switch:
            getattr(model, f"set_{switch}")(True)
        _, cache = model.run_with_cache(tokens)
        if switch:
            getattr(model, f"set_{switch}")(False)
        for name, value in cache.items():
            if name.startswith("blocks.") and not name.startswith(f"blocks.{LAYER}."):
                continue
            found.setdefault(general(name), (_activation(model, value.shape), switch))
    missing = {general(name) for name in model.hook_dict if ".0." not in name} - found.keys()
    if missing:
        raise ValueError(f"hook points: these never fired: {', '.join(sorted(missing))}")
    return found


def _activation(model: LensTransformer, shape: Sequence[int]) -> str:
    names = [sizes_of(model)[size] for size in shape]
    if names.count("length") == 2:
        names[names.index("length")] = "query"
        names[names.index("length")] = "key"
    return "[" + ", ".join("pos" if name == "length" else name for name in names) + "]"


def hook_table(models: Mapping[str, LensTransformer]) -> str:
    """Every hook point with its shape in both architectures."""
    shapes = {name: hook_shapes(model) for name, model in models.items()}
    rows = []
    for name in dict.fromkeys([*shapes["disentangled"], *shapes["standard"]]):
        cells = [shapes[architecture].get(name, ("none", ""))[0] for architecture in shapes]
        found = shapes["disentangled"].get(name) or shapes["standard"][name]
        switch = f"`set_{found[1]}(True)`" if found[1] else "nothing"
        rows.append((f"`{name}`", *cells, description(HOOKS, name), switch))
    header = ("hook point", "disentangled", "standard", "what it shows", "needs")
    return table(header, rows)


def stream_table() -> str:
    """The blocks of the trained disentangled model's final stream."""
    model = load_checkpoint(EXAMPLES["disentangled"]).model
    rows = []
    for name, columns in model.stream.items():
        rows.append((f"`{name}`", f"{columns.start} to {columns.stop - 1}", _origin(name)))
    return table(("block", "columns", "what it holds"), rows)


def _origin(name: str) -> str:
    if name == "token":
        return "the token itself, one-hot"
    layer, _, read = name.partition(".")
    number = layer.removeprefix("L")
    if read == "lag":
        return f"what layer {number} gathers from its value table R_V"
    return f"layer {number}'s average of `{read}`"


def construction_table() -> str:
    """The blocks of the constructed standard transformer."""
    task = load_checkpoint(EXAMPLES["standard"]).task
    model = one_step_standard(task.transition, task.order, 64, beta=10.0)
    rows = []
    for name, columns in model.stream.items():
        rows.append((f"`{name}`", f"{columns.start} to {columns.stop - 1}"))
    return table(("block", "columns"), rows)


def tables() -> dict[str, str]:
    """All tables by the name that the page gives them."""
    models = small_models()
    named = {f"parameters-{name}": parameter_table(name, model) for name, model in models.items()}
    named["hooks"] = hook_table(models)
    named["stream"] = stream_table()
    named["stream-construction"] = construction_table()
    return named


def updated(page: str) -> str:
    """The page with its tables as they should be."""
    current = tables()
    return MARKED.sub(lambda found: found[1] + current[found[2]] + found[3], page)


def main() -> None:
    """Rewrite the tables of the page."""
    PAGE.write_text(updated(PAGE.read_text()))


if __name__ == "__main__":
    main()
