"""What the page can ask for: one method per question, from a request's JSON to a plain answer.

The methods know nothing about HTTP; `server` gives each its address. Malformed requests raise
`StateError`, and requests that a model cannot answer raise `ValueError`.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from mtdinterp import __version__
from mtdinterp.app.cone import cone, cone_maps
from mtdinterp.app.document import view_document
from mtdinterp.app.errors import NotFound, StateError
from mtdinterp.app.estimates import EstimatorTable
from mtdinterp.app.experiments import EXPERIMENTS
from mtdinterp.app.json_fields import Fields, anything, option_of, sequence_of
from mtdinterp.app.models import Registry
from mtdinterp.app.probing import ProbeRunner, known_probes, private_copy
from mtdinterp.app.python_code import python_code
from mtdinterp.app.scene import Memory, Scene, fresh_state, open_scene
from mtdinterp.app.state import (
    MOST_EDITS,
    MOST_TOKENS,
    SOURCES,
    EditState,
    parse_model,
    parse_sampling,
    parse_seed,
    parse_state,
)
from mtdinterp.app.sweeps import AIMS, Job, Sweeps
from mtdinterp.app.views import bar_colours, maps, view
from mtdinterp.app.words import HOOKS, WITH_BLOCKS, WITH_KEYS
from mtdinterp.checkpoint_files import ZOO
from mtdinterp.interventions.sweep import KINDS
from mtdinterp.pages.page import render
from mtdinterp.results import to_plain

MAPS = ("before", "after", "reference", "source", "cone")
"""The attention maps that the page can ask for."""
LONGEST_NUMBER = 9
"""The largest number of digits of a sweep's number."""
CANCEL_SECONDS = 10
"""How long to wait for a cancelled sweep to stop."""

Answer = TypeVar("Answer")


class Workbench:
    """The models that can be opened, recent runs and fits, and the current sweep."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.memory = Memory()
        self.sweeps = Sweeps()
        self.estimator_table = EstimatorTable()
        self.probes = ProbeRunner()
        self._lock = threading.Lock()

    def alone(self, compute: Callable[[Any], Answer], given: Any) -> Answer:
        """Compute one answer at a time: models carry hooks while they run."""
        with self._lock:
            return compute(given)

    def about(self) -> dict[str, Any]:
        """Everything that the page needs before it shows a view."""
        models = []
        for entry in self.registry.entries.values():
            in_zoo = entry.path.parent == ZOO.resolve()
            models.append({**vars(entry), "path": None, "zoo": in_zoo})
        experiments = {}
        for name, experiment in EXPERIMENTS.items():
            experiments[name] = {
                "title": experiment.title,
                "expect": experiment.expect,
                "needs_reference": experiment.needs_reference,
            }
        return {
            "version": __version__,
            "models": models,
            "first": self.registry.first,
            "looks": bar_colours(),
            "probes": [{"name": name, "label": label} for name, label in known_probes().items()],
            "hooks": HOOKS,
            "with_keys": WITH_KEYS,
            "with_blocks": WITH_BLOCKS,
            "sources": SOURCES,
            "sweeps": KINDS,
            "aims": AIMS,
            "most_tokens": MOST_TOKENS,
            "most_edits": MOST_EDITS,
            "experiments": experiments,
        }

    def fresh(self, given: Any) -> dict[str, Any]:
        """A first state for a model."""
        request = Fields("request", given, ("model", "seed"), ("model",))
        model = parse_model(request.get("model", anything))
        seed = parse_seed(request.get("seed", anything))
        return fresh_state(self.registry, model, seed).to_json()

    def complete(self, given: Any) -> dict[str, Any]:
        """A state with all its fields, from a link that may have only some of them.

        It is refused if its view would be refused.
        """
        scene = self._open(given)
        view(scene)
        return scene.state.to_json()

    def experiment(self, given: Any) -> dict[str, Any]:
        """A state with the edits of an experiment, and a sentence about their effect."""
        request = Fields("request", given, ("state", "name"), ("state", "name"))
        experiment = EXPERIMENTS[request.get("name", option_of(EXPERIMENTS))]
        before = self._open(request.get("state", anything))
        state = replace(before.state, edits=experiment.edits(before), selected=0)
        after = open_scene(self.registry, self.memory, state)
        return {"state": state.to_json(), "outcome": experiment.outcome(after)}

    def sample(self, given: Any) -> dict[str, Any]:
        """A new sequence of a model's task, with its mixture weights."""
        wanted = parse_sampling(given)
        name = wanted.model.name
        longest = self.registry.entry(name).length
        if wanted.length > longest:
            raise StateError(f"length: {name} takes at most {longest} tokens, got {wanted.length}")
        task = self.registry.checkpoint(name).task
        found = task.sample(1, wanted.length, wanted.seed, wanted.weights)
        return {"tokens": found.tokens[0].tolist(), "weights": found.weights[0].tolist()}

    def view(self, given: Any) -> Any:
        """All numbers of a state except the attention maps."""
        return to_plain(view(self._open(given)))

    def maps(self, given: Any) -> bytes:
        """Attention maps as little-endian float32, in the order asked for.

        Each map has the axes [layer, query, key].
        """
        request = Fields("request", given, ("state", "which"), ("state", "which"))
        which = request.get("which", sequence_of(option_of(MAPS), len(MAPS)))
        if not which:
            raise StateError(f"which: expected a list with entries from {', '.join(MAPS)}")
        scene = self._open(request.get("state", anything))
        parts = []
        for name in which:
            values = _map(scene, name).float().numpy()
            parts.append(values.astype("<f4").tobytes())
        return b"".join(parts)

    def cone(self, given: Any) -> Any:
        """The causal cone of the selected edit."""
        scene = self._open(given)
        return to_plain(cone(scene, _selected(scene)))

    def python(self, given: Any) -> dict[str, str]:
        """Python code that computes the numbers of a state."""
        scene = self._open(given)
        view(scene)  # refuses what cannot run, so that no failing code is handed out
        return {"code": self._code(scene)}

    def report(self, given: Any) -> str:
        """A state as an HTML document."""
        scene = self._open(given)
        return render(view_document(scene, self._code(scene)))

    def prepare_estimators(self, given: Any) -> Callable[[], Any]:
        """The table of estimators of a state, to be computed without holding up other requests."""
        scene = self._open(given)
        found = view(scene)
        return lambda: to_plain(self.estimator_table.rows(scene, found))

    def prepare_probe(self, given: Any) -> Callable[[], Any]:
        """A probe of a checkpoint, to be run without holding up other requests."""
        names = ("model", "name")
        request = Fields("request", given, names, names)
        name = request.get("name", option_of(known_probes()))
        model = parse_model(request.get("model", anything))
        checkpoint = private_copy(self.registry.checkpoint(model.name))
        return lambda: self.probes.answer(name, checkpoint)

    def start_sweep(self, given: Any) -> dict[str, Any]:
        """Start a patch sweep; the answer has its number."""
        names = ("state", "kind", "aim")
        request = Fields("request", given, names, names)
        kind = request.get("kind", option_of(KINDS))
        aim = request.get("aim", option_of(AIMS))
        scene = self._open(request.get("state", anything))
        return self.sweeps.start(scene, kind, aim).to_json()

    def sweep(self, number: str) -> dict[str, Any]:
        """The progress of a sweep, and its result once it is done."""
        return self._job(number).to_json()

    def cancel_sweep(self, number: str) -> dict[str, Any]:
        """Stop a sweep."""
        job = self._job(number)
        job.stop.set()
        job.finished.wait(CANCEL_SECONDS)
        return job.to_json()

    def _open(self, given: Any) -> Scene:
        return open_scene(self.registry, self.memory, parse_state(given))

    def _code(self, scene: Scene) -> str:
        return python_code(scene, loadable_name(self.registry, scene.state.model.name))

    def _job(self, number: str) -> Job:
        if not number.isdecimal() or len(number) > LONGEST_NUMBER:
            raise NotFound("There is no such sweep.")
        return self.sweeps.find(int(number))


def loadable_name(registry: Registry, name: str) -> str:
    """The argument of `load_checkpoint` for a model of the list."""
    path = registry.entry(name).path
    return path.name if path.parent == ZOO.resolve() else str(path)


def _map(scene: Scene, name: str) -> Tensor:
    if name == "cone":
        return cone_maps(scene, _selected(scene))
    return maps(scene, name)


def _selected(scene: Scene) -> EditState:
    selected = scene.state.selected
    if selected is None:
        raise StateError("selected: choose an edit to see its cone")
    return scene.state.edits[selected]
