"""The page and its JSON: a thin layer over `views`, `cone`, `sweeps` and `python_code`.

Bad input is answered with a 4xx and one sentence. Models carry hooks while they run, so one request
computes at a time.
"""

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import plotly
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse, Response

from mtdinterp import __version__
from mtdinterp.app.cone import cone, cone_maps
from mtdinterp.app.document import view_document
from mtdinterp.app.experiments import EXPERIMENTS
from mtdinterp.app.models import Registry
from mtdinterp.app.python_code import python_code
from mtdinterp.app.scene import Memory, Scene, fresh_state, open_scene
from mtdinterp.app.security import Guard
from mtdinterp.app.state import (
    MOST_EDITS,
    MOST_TOKENS,
    SOURCES,
    EditState,
    ModelState,
    State,
    StateError,
    parse_model,
    parse_option,
    parse_request,
    parse_sampling,
    parse_seed,
    parse_state,
)
from mtdinterp.app.sweeps import AIMS, Sweeps
from mtdinterp.app.views import METHODS, maps, view
from mtdinterp.app.words import HOOKS, WITH_BLOCKS, WITH_KEYS
from mtdinterp.checkpoint_files import ZOO
from mtdinterp.interventions.sweep import KINDS
from mtdinterp.pages.page import render
from mtdinterp.results import to_plain
from mtdinterp.style import style_of

STATIC = {
    path.name: path.read_bytes()
    for path in (files("mtdinterp.app") / "static").iterdir()
    if path.name.endswith((".html", ".css", ".js", ".svg"))
}
"""All files that are ever served, read once: a request names one of these or nothing."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".js": "text/javascript; charset=utf-8",
}
MAPS = ("before", "after", "beside", "source", "cone")

log = logging.getLogger(__name__)


def create_app(registry: Registry, port: int) -> Guard:
    """The application for a server on this port of this machine."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    memory, sweeps, lock = Memory(), Sweeps(), threading.Lock()
    plotly_script = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()

    async def answer(request: Request, compute: Callable[[Any], Any]) -> Any:
        """What `compute` makes of the request's JSON, one at a time."""
        given = _json(await request.body())

        def alone() -> Any:
            with lock:
                return compute(given)

        return await run_in_threadpool(alone)

    def opened(given: Any) -> Scene:
        return open_scene(registry, memory, parse_state(given))

    @app.exception_handler(ValueError)
    async def refuse(request: Request, error: ValueError) -> JSONResponse:
        return JSONResponse(
            {"error": _sentence(error)}, 400 if isinstance(error, StateError) else 422
        )

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> JSONResponse:
        log.error("%s failed", request.url.path, exc_info=error)
        return JSONResponse(
            {"error": "This is a defect of the workbench; its terminal has the details."}, 500
        )

    @app.exception_handler(KeyError)
    async def missing(request: Request, error: KeyError) -> JSONResponse:
        return JSONResponse({"error": str(error.args[0])}, 404)

    @app.exception_handler(404)
    async def nothing(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"There is nothing at {request.url.path[:200]}."}, 404)

    @app.exception_handler(405)
    async def wrong_method(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse(
            {"error": f"{request.method[:20]} is not for {request.url.path[:200]}."}, 405
        )

    @app.get("/")
    def page() -> Response:
        return _file("index.html")

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        if name not in STATIC:
            raise KeyError("There is no such file.")
        return _file(name)

    @app.get("/plotly.js")
    def plotly_js() -> Response:
        return Response(
            plotly_script,
            media_type=TYPES[".js"],
            headers={"cache-control": "max-age=86400", "etag": f'"{plotly.__version__}"'},
        )

    @app.get("/api/about")
    def about() -> dict[str, Any]:
        """All that the page needs to know before it shows anything."""
        return {
            "version": __version__,
            "models": [
                {**vars(entry), "path": None, "zoo": entry.path.parent == ZOO.resolve()}
                for entry in registry.entries.values()
            ],
            "first": registry.first,
            "looks": {name: style_of(name).colour for name in ("model", *METHODS)},
            "methods": METHODS,
            "hooks": HOOKS,
            "with_keys": WITH_KEYS,
            "with_blocks": WITH_BLOCKS,
            "sources": SOURCES,
            "sweeps": KINDS,
            "aims": AIMS,
            "most_tokens": MOST_TOKENS,
            "most_edits": MOST_EDITS,
            "experiments": {
                name: {"title": entry.title, "expect": entry.expect}
                for name, entry in EXPERIMENTS.items()
            },
        }

    @app.post("/api/fresh")
    async def fresh(request: Request) -> JSONResponse:
        """A state to begin with for a model."""

        def begin(given: Any) -> dict[str, Any]:
            fields = parse_request(given, ("model", "seed"), ("model",))
            return fresh_state(
                registry, parse_model(fields["model"]), parse_seed(fields.get("seed"))
            ).to_json()

        return JSONResponse(await answer(request, begin))

    @app.post("/api/experiment")
    async def experiment(request: Request) -> JSONResponse:
        def prepare(given: Any) -> dict[str, Any]:
            fields = parse_request(given, ("state", "name"), ("state", "name"))
            name = parse_option("experiment", fields["name"], EXPERIMENTS)
            scene = opened(fields["state"])
            state = replace(scene.state, edits=EXPERIMENTS[name].edits(scene), selected=0)
            after = open_scene(registry, memory, state)
            return {"state": state.to_json(), "outcome": EXPERIMENTS[name].outcome(after)}

        return JSONResponse(await answer(request, prepare))

    @app.post("/api/sample")
    async def sample(request: Request) -> Any:
        def draw(given: Any) -> dict[str, Any]:
            model, length, weights, seed = parse_sampling(given)
            entry = registry.entry(model.name)
            if length > entry.length:
                raise StateError(
                    f"length: {model.name} takes at most {entry.length} tokens, got {length}"
                )
            found = registry.checkpoint(model.name).task.sample(1, length, seed, weights)
            return {"tokens": found.tokens[0].tolist(), "weights": found.weights[0].tolist()}

        return await answer(request, draw)

    @app.post("/api/state")
    async def normal(request: Request) -> JSONResponse:
        """A state with all its parts, of a link that may have only the needed ones; refused where
        its view is."""

        def complete(given: Any) -> dict[str, Any]:
            scene = opened(given)
            view(scene)
            return scene.state.to_json()

        return JSONResponse(await answer(request, complete))

    @app.post("/api/view")
    async def look(request: Request) -> JSONResponse:
        return JSONResponse(await answer(request, lambda given: to_plain(view(opened(given)))))

    @app.post("/api/maps")
    async def all_maps(request: Request) -> Response:
        """Attention as float32, one after the other as asked for, each [layer, query, key]."""

        def collect(given: Any) -> bytes:
            fields = parse_request(given, ("state", "which"), ("state", "which"))
            which = fields["which"]
            if not isinstance(which, list) or not 0 < len(which) <= len(MAPS):
                raise StateError(f"which: expected a list of {', '.join(MAPS)}")
            scene = opened(fields["state"])
            return b"".join(
                _map(scene, parse_option("which", name, MAPS))
                .float()
                .numpy()
                .astype("<f4")
                .tobytes()
                for name in which
            )

        return Response(await answer(request, collect), media_type="application/octet-stream")

    def _map(scene: Scene, name: str) -> Any:
        return cone_maps(scene, _selected(scene.state)) if name == "cone" else maps(scene, name)

    @app.post("/api/cone")
    async def reach(request: Request) -> JSONResponse:
        def compute(given: Any) -> Any:
            scene = opened(given)
            return to_plain(cone(scene, _selected(scene.state)))

        return JSONResponse(await answer(request, compute))

    @app.post("/api/python")
    async def code(request: Request) -> Any:
        def write(given: Any) -> dict[str, str]:
            scene = opened(given)
            view(scene)  # refuses what cannot be run, which code would fail on
            return {"code": python_code(scene, loadable(registry, scene.state.model))}

        return await answer(request, write)

    @app.post("/api/report")
    async def report(request: Request) -> Response:
        def write(given: Any) -> str:
            scene = opened(given)
            return render(
                view_document(scene, python_code(scene, loadable(registry, scene.state.model)))
            )

        return HTMLResponse(await answer(request, write))

    @app.post("/api/sweeps")
    async def start_sweep(request: Request) -> Any:
        def start(given: Any) -> Any:
            fields = parse_request(given, ("state", "kind", "aim"), ("state", "kind", "aim"))
            kind, aim = (
                parse_option("kind", fields["kind"], KINDS),
                parse_option("aim", fields["aim"], AIMS),
            )
            return sweeps.start(opened(fields["state"]), kind, aim).to_json()

        return await answer(request, start)

    @app.get("/api/sweeps/{number}")
    def ask_sweep(number: str) -> Any:
        return JSONResponse(sweeps.find(_number(number)).to_json())

    @app.post("/api/sweeps/{number}/cancel")
    def cancel_sweep(number: str) -> Any:
        job = sweeps.find(_number(number))
        job.stop.set()
        job.finished.wait(10)
        return JSONResponse(job.to_json())

    return Guard(app, port)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise StateError("The request is not JSON.") from None


def _sentence(error: ValueError) -> str:
    text = str(error)[:500]
    return text if text.endswith((".", "?")) else text + "."


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise KeyError("There is no such sweep.")
    return int(text)


def _selected(state: State) -> EditState:
    if state.selected is None:
        raise StateError("selected: choose an edit to see its cone")
    return state.edits[state.selected]


def loadable(registry: Registry, model: ModelState) -> str:
    """What `load_checkpoint` takes for a model of the list."""
    path = registry.entry(model.name).path
    return path.name if path.parent == ZOO.resolve() else str(path)


def _file(name: str) -> Response:
    return Response(
        STATIC[name], media_type=TYPES[Path(name).suffix], headers={"cache-control": "no-cache"}
    )
