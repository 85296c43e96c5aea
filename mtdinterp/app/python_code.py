"""A state as Python: code that recomputes the numbers on the page with calls of the library."""

from mtdinterp.app.scene import MEAN_OVER, MEAN_SEED, Scene
from mtdinterp.app.state import EditState, Range
from mtdinterp.app.views import BARS, estimated_weights, head_weights

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
    lines = [
        *_import_lines(scene, kinds),
        "",
        *_setup_lines(scene, checkpoint, kinds),
        "",
        *_patch_lines(scene, edits),
        "",
        *_estimate_lines(scene),
        *_number_lines(scene),
    ]
    return "\n".join(lines) + "\n"


def _import_lines(scene: Scene, kinds: set[str]) -> list[str]:
    names = {"patch"}
    if kinds - {"weights"}:
        names.add("Edit")
    names.update(name for kind, name in IMPORTED_FOR.items() if kind in kinds)
    lines = ["import json", "", "import torch", "", "from mtdinterp import load_checkpoint"]
    registries = "ESTIMATORS" if scene.reference is None else "ESTIMATORS, IMPLEMENTATIONS"
    return [
        *lines,
        f"from mtdinterp.interventions import {', '.join(sorted(names))}",
        "from mtdinterp.metrics import to_distribution, kl_divergence",
        f"from mtdinterp.registry import {registries}",
    ]


def _setup_lines(scene: Scene, checkpoint: str, kinds: set[str]) -> list[str]:
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
    return lines + _model_lines(scene)


def _model_lines(scene: Scene) -> list[str]:
    """Lines that define the model and, if one is known, its reference."""
    if scene.reference is None:
        return ["model = checkpoint.model"]
    explanation = scene.reading.explanation
    constants = dict(explanation.constants)
    options = ""
    if scene.reading.adjustable:
        constants["beta"] = scene.beta
        options = f", delta={scene.state.model.delta!r}"
    pair = "checkpoint.model, construction"
    if scene.state.model.role == "construction":
        pair = "construction, checkpoint.model"
    assert explanation.implementation is not None  # it made the reference
    name = explanation.implementation.name
    return [
        f"implementation = IMPLEMENTATIONS[{name!r}]",
        f"constants = {constants!r}",
        f"construction = implementation.construct(task, {scene.length}, constants{options})",
        f"model, reference = {pair}",
    ]


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
    _, missing = estimated_weights(scene)
    lines = ["evidence = task.evidence(tokens)", "weights = {}"]
    for name in BARS:
        if name in missing:
            continue
        arguments = ["evidence"]
        arguments += [f"{key}={value!r}" for key, value in scene.bar_constants(name).items()]
        call = f"ESTIMATORS[{name!r}].weights({', '.join(arguments)})"
        lines.append(f"weights[{name!r}] = {call}")
    if truth is not None:
        lines.append(f"weights['truth'] = torch.tensor([{list(truth)}], dtype=torch.float64)")
    return lines


def _number_lines(scene: Scene) -> list[str]:
    """Lines that collect and print the numbers."""
    estimates, _ = estimated_weights(scene)
    judge = next(iter(estimates))
    return [
        "predictions = {name: evidence.predict(rows) for name, rows in weights.items()}",
        *_run_lines(scene),
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


def _run_lines(scene: Scene) -> list[str]:
    """Lines that read the weights and predictions of the runs."""
    lines = [
        "runs = {",
        "    'before': (found.before, found.weights_before),",
        "    'after': (found.after, found.weights_after),",
        "}",
    ]
    if scene.reference is not None:
        lines += [
            "unpatched = patch(reference, tokens, [])",
            "runs['construction'] = (unpatched.before, unpatched.weights_before)",
        ]
    lines += [
        "offsets = list(task.read_offsets)  # where the last query reads each lag",
        "for name, (outputs, attention) in runs.items():",
        "    predictions[name] = to_distribution(outputs)",
        "    weights[name] = attention.double().mean(1)[:, offsets]  # mean over heads",
    ]
    for head, name in enumerate(head_weights(scene)):
        lines.append(f"weights[{name!r}] = found.weights_after.double()[:, {head}, offsets]")
    return lines


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
    """The expression for the value that an edit writes."""
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
