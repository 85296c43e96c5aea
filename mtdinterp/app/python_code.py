"""A state as Python: code of the library's own calls that gives the numbers on the screen."""

from collections.abc import Sequence

from mtdinterp.app.scene import MEAN_OVER, MEAN_SEED, Scene
from mtdinterp.app.state import EditState, Range
from mtdinterp.construction import two_step_delta


def python_code(scene: Scene, checkpoint: str) -> str:
    """Runnable as it is; `checkpoint` is what `load_checkpoint` takes. The last line prints the
    numbers as JSON."""
    state = scene.state
    edits = [edit for edit in state.edits if edit.on]
    kinds = {edit.source.kind for edit in edits}
    names = {"Edit"} if any(edit.source.kind != "weights" for edit in edits) else set()
    names |= {"patch"} | {
        name
        for kind, name in (
            ("sequence", "FromRun"),
            ("reference", "FromRun"),
            ("mean", "MeanOver"),
            ("share", "Share"),
            ("weights", "steering_edit"),
        )
        if kind in kinds
    }
    build = _builder(scene)
    construction = state.model.role == "construction"
    lines = [
        "import json",
        "",
        "import torch",
        "",
        "from mtdinterp import load_checkpoint",
        f"from mtdinterp.construction import {build.split('(')[0]}",
        "from mtdinterp.estimators import exact_posterior_mean, mean_responsibilities, "
        "predict_next",
        f"from mtdinterp.interventions import {', '.join(sorted(names))}",
        "from mtdinterp.metrics import clip_to_distribution, kl_divergence",
        "",
        f"checkpoint = load_checkpoint({checkpoint!r})",
        "task = checkpoint.task",
        f"tokens = torch.tensor([{list(state.tokens)}])",
    ]
    if "sequence" in kinds:
        lines.append(f"source = torch.tensor([{list(state.source or ())}])")
    if "mean" in kinds:
        lines.append(f"many = task.sample({MEAN_OVER}, {scene.length}, seed={MEAN_SEED}).tokens")
    lines += [
        f"construction = {build}",
        "model, beside = "
        f"{'construction, checkpoint.model' if construction else 'checkpoint.model, construction'}",
        "",
        *(
            ["edits = []"]
            if not edits
            else ["edits = [", *(f"    {_edit(scene, edit)}," for edit in edits), "]"]
        ),
        "found = patch(model, tokens, edits)",
        "",
        "gamma = mean_responsibilities(task.transition, tokens, task.order)  # Γ, and β = "
        f"{scene.beta:.4g}",
        f"weights = {{'one_step': ({scene.beta!r} * gamma).softmax(-1),",
        "           'exact_bayes': exact_posterior_mean(task.transition, tokens, task.order, "
        "task.concentration)}",
    ]
    if state.weights is not None:
        lines.append(
            f"weights['truth'] = torch.tensor([{list(state.weights)}], dtype=torch.float64)"
        )
    lines += [
        "predictions = {name: predict_next(task.transition, tokens, found) for name, found in "
        "weights.items()}",
        "runs = {'before': (found.before, found.weights_before), 'after': (found.after, "
        "found.weights_after)}",
        "plain = patch(beside, tokens, [])",
        "runs['construction'] = (plain.before, plain.weights_before)",
        "for name, (outputs, attention) in runs.items():",
        "    predictions[name] = clip_to_distribution(outputs)[0]",
        "    weights[name] = attention.double().mean(1)[:, : task.order]  # the lags of the next "
        "token",
        f"judge = predictions['{'exact_bayes' if state.weights is None else 'truth'}']",
        "numbers = {",
        "    'weights': {name: rows[0].tolist() for name, rows in weights.items()},",
        "    'predictions': {name: rows[0].tolist() for name, rows in predictions.items()},",
        "    'kl': {name: kl_divergence(judge, rows).item() for name, rows in "
        "predictions.items()},",
        "    'change': found.kl.item(),  # KL(before ‖ after)",
        "}",
        "print(json.dumps(numbers, indent=1))",
    ]
    return "\n".join(lines) + "\n"


def _builder(scene: Scene) -> str:
    problem, delta = f"task.transition, task.order, {scene.length}", scene.state.model.delta
    constants = scene.constants.two_step
    if constants is not None:
        return (
            f"two_step({problem}, {', '.join(map(repr, constants))}, "
            f"delta={two_step_delta(constants, delta)!r})"
        )
    standard = "standard" in (scene.model.config.architecture, scene.reference.config.architecture)
    return (
        f"{'one_step_standard' if standard else 'one_step'}({problem}, {scene.beta!r}, "
        f"delta={delta!r})"
    )


def _edit(scene: Scene, edit: EditState) -> str:
    source = edit.source
    if source.kind == "weights":
        at = "" if edit.layer is None else f", layer={edit.layer}"
        return f"steering_edit({list(source.values or ())}{at})"
    layer = scene.layer_beside(edit) if source.kind == "reference" else source.layer
    where = [
        f"{name}={value}"
        for name, value in (("layer", layer), ("position", source.position))
        if value is not None
    ]
    words = {
        "zero": "'zero'",
        "mean": "MeanOver(many)",
        "sequence": f"FromRun({', '.join(['source', *where])})",
        "reference": f"FromRun({', '.join(['tokens', 'beside', *where])})",
        "number": repr(source.value),
        "values": f"torch.tensor({list(source.values or ())}, dtype=torch.float64)",
        "share": f"Share({source.value!r}, keys={_index(edit.key)})",
    }[source.kind]
    arguments = [repr(edit.hook), words]
    places: Sequence[tuple[str, object]] = (
        ("layer", edit.layer),
        ("position", _index(edit.position)),
        ("key", None if source.kind == "share" else _index(edit.key)),
        ("head", edit.head),
        ("block", None if edit.block is None else repr(edit.block)),
    )
    arguments += [f"{name}={value}" for name, value in places if value is not None]
    return f"Edit({', '.join(arguments)})"


def _index(places: Range | None) -> str | None:
    if places is None:
        return None
    return str(places[0]) if places[1] == places[0] + 1 else f"slice({places[0]}, {places[1]})"
