"""A state as Python: code that recomputes the numbers on the page with calls of the library."""

from mtdinterp.app.scene import MEAN_OVER, MEAN_SEED, Scene
from mtdinterp.app.state import EditState, Range
from mtdinterp.construction import two_step_delta

IMPORTED_FOR = {
    "sequence": "FromRun",
    "reference": "FromRun",
    "mean": "MeanOver",
    "share": "Share",
    "weights": "steering_edit",
}
"""The name that the code imports for a kind of source, for kinds that need one."""


def python_code(scene: Scene, checkpoint: str) -> str:
    """A complete program whose last line prints the numbers as JSON.

    Args:
        scene: the scene to recompute.
        checkpoint: the argument of `load_checkpoint`.

    Returns:
        The code.
    """
    edits = [edit for edit in scene.state.edits if edit.on]
    kinds = {edit.source.kind for edit in edits}
    construction = _construction_call(scene)
    lines = [
        *_import_lines(construction.split("(")[0], kinds),
        "",
        *_setup_lines(scene, checkpoint, construction, kinds),
        "",
        *_patch_lines(scene, edits),
        "",
        *_estimate_lines(scene),
        *_number_lines(scene),
    ]
    return "\n".join(lines) + "\n"


def _import_lines(builder: str, kinds: set[str]) -> list[str]:
    names = {"patch"}
    if kinds - {"weights"}:
        names.add("Edit")
    names.update(name for kind, name in IMPORTED_FOR.items() if kind in kinds)
    return [
        "import json",
        "",
        "import torch",
        "",
        "from mtdinterp import load_checkpoint",
        f"from mtdinterp.construction import {builder}",
        "from mtdinterp.estimators import exact_posterior_mean, mean_responsibilities",
        "from mtdinterp.estimators import predict_next",
        f"from mtdinterp.interventions import {', '.join(sorted(names))}",
        "from mtdinterp.metrics import clip_to_distribution, kl_divergence",
    ]


def _setup_lines(scene: Scene, checkpoint: str, construction: str, kinds: set[str]) -> list[str]:
    """Lines that define the task, the sequences, the model and its reference."""
    state = scene.state
    lines = [
        f"checkpoint = load_checkpoint({checkpoint!r})",
        "task = checkpoint.task",
        f"tokens = torch.tensor([{list(state.tokens)}])",
    ]
    if "sequence" in kinds:
        lines.append(f"source = torch.tensor([{list(state.source or ())}])")
    if "mean" in kinds:
        lines.append(f"many = task.sample({MEAN_OVER}, {scene.length}, seed={MEAN_SEED}).tokens")
    lines.append(f"construction = {construction}")
    if state.model.role == "construction":
        lines.append("model, reference = construction, checkpoint.model")
    else:
        lines.append("model, reference = checkpoint.model, construction")
    return lines


def _patch_lines(scene: Scene, edits: list[EditState]) -> list[str]:
    """Lines that run the model with its edits."""
    lines = ["edits = []"]
    if edits:
        lines = ["edits = ["]
        lines += [f"    {_edit_call(scene, edit)}," for edit in edits]
        lines.append("]")
    lines.append("found = patch(model, tokens, edits)")
    return lines


def _estimate_lines(scene: Scene) -> list[str]:
    """Lines that define the weights of the estimators."""
    truth = scene.state.weights
    beta = scene.beta
    lines = [
        f"gamma = mean_responsibilities(task.transition, tokens, task.order)  # Γ; β = {beta:.4g}",
        "weights = {",
        f"    'one_step': ({beta!r} * gamma).softmax(-1),",
        "    'exact_bayes': exact_posterior_mean(",
        "        task.transition, tokens, task.order, task.concentration",
        "    ),",
        "}",
    ]
    if truth is not None:
        lines.append(f"weights['truth'] = torch.tensor([{list(truth)}], dtype=torch.float64)")
    return lines


def _number_lines(scene: Scene) -> list[str]:
    """Lines that collect and print the numbers."""
    judge = "exact_bayes" if scene.state.weights is None else "truth"
    return [
        "predictions = {}",
        "for name, estimate in weights.items():",
        "    predictions[name] = predict_next(task.transition, tokens, estimate)",
        "unpatched = patch(reference, tokens, [])",
        "runs = {",
        "    'before': (found.before, found.weights_before),",
        "    'after': (found.after, found.weights_after),",
        "    'construction': (unpatched.before, unpatched.weights_before),",
        "}",
        "for name, (outputs, attention) in runs.items():",
        "    predictions[name] = clip_to_distribution(outputs)[0]",
        "    by_offset = attention.double().mean(1)",
        "    weights[name] = by_offset[:, : task.order]  # the lags of the next token",
        f"judge = predictions['{judge}']",
        "kl = {name: kl_divergence(judge, rows).item() for name, rows in predictions.items()}",
        "numbers = {",
        "    'weights': {name: rows[0].tolist() for name, rows in weights.items()},",
        "    'predictions': {name: rows[0].tolist() for name, rows in predictions.items()},",
        "    'kl': kl,",
        "    'change': found.kl.item(),  # KL(before ‖ after)",
        "}",
        "print(json.dumps(numbers, indent=1))",
    ]


def _construction_call(scene: Scene) -> str:
    """The call that builds the construction of a scene."""
    problem = f"task.transition, task.order, {scene.length}"
    delta = scene.state.model.delta
    constants = scene.constants.two_step
    if constants is not None:
        numbers = ", ".join(map(repr, constants))
        return f"two_step({problem}, {numbers}, delta={two_step_delta(constants, delta)!r})"
    standard = "standard" in (scene.model.config.architecture, scene.reference.config.architecture)
    builder = "one_step_standard" if standard else "one_step"
    return f"{builder}({problem}, {scene.beta!r}, delta={delta!r})"


def _edit_call(scene: Scene, edit: EditState) -> str:
    """The call that makes an edit."""
    source = edit.source
    if source.kind == "weights":
        weights = list(source.values or ())
        if edit.layer is None:
            return f"steering_edit({weights})"
        return f"steering_edit({weights}, layer={edit.layer})"
    arguments = [repr(edit.hook), _source_call(scene, edit)]
    options = {
        "layer": edit.layer,
        "position": _index(edit.position),
        "key": None if source.kind == "share" else _index(edit.key),
        "head": edit.head,
        "block": None if edit.block is None else repr(edit.block),
    }
    arguments += [f"{name}={value}" for name, value in options.items() if value is not None]
    return f"Edit({', '.join(arguments)})"


def _source_call(scene: Scene, edit: EditState) -> str:
    """The expression for what an edit puts in its place."""
    source = edit.source
    if source.kind == "sequence":
        return _from_run("source", source.layer, source.position)
    if source.kind == "reference":
        return _from_run("tokens, reference", scene.reference_layer(edit), source.position)
    return {
        "zero": "'zero'",
        "mean": "MeanOver(many)",
        "number": repr(source.value),
        "values": f"torch.tensor({list(source.values or ())}, dtype=torch.float64)",
        "share": f"Share({source.value!r}, keys={_index(edit.key)})",
    }[source.kind]


def _from_run(run: str, layer: int | None, position: int | None) -> str:
    arguments = [run]
    if layer is not None:
        arguments.append(f"layer={layer}")
    if position is not None:
        arguments.append(f"position={position}")
    return f"FromRun({', '.join(arguments)})"


def _index(places: Range | None) -> str | None:
    """A range as an index: one position as its number, several as a slice."""
    if places is None:
        return None
    start, stop = places
    return str(start) if stop == start + 1 else f"slice({start}, {stop})"
