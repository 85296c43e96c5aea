"""The web server: an address for each question of `workbench`, and a status for each error."""

import json
import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse, Response

from mtdinterp.app.errors import NotFound, StateError
from mtdinterp.app.models import Registry
from mtdinterp.app.security import Guard
from mtdinterp.app.static_files import add_static_routes
from mtdinterp.app.workbench import Workbench
from mtdinterp.formatting import printable

LONGEST_ERROR = 500
LONGEST_PATH = 200
LONGEST_METHOD = 20
"""The number of characters that an error message shows."""

log = logging.getLogger(__name__)


def create_app(registry: Registry, port: int) -> Guard:
    """The web application for a server on this port of this machine."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    workbench = Workbench(registry)
    _add_error_handlers(app)
    add_static_routes(app)
    _add_questions(app, workbench)
    _add_sweep_routes(app, workbench)
    return Guard(app, port)


def _add_questions(app: FastAPI, workbench: Workbench) -> None:
    """Addresses that take a JSON body and compute an answer, one at a time."""

    @app.get("/api/about")
    def about() -> JSONResponse:
        return JSONResponse(workbench.about())

    questions: dict[str, Callable[[Any], Any]] = {
        "/api/fresh": workbench.fresh,
        "/api/experiment": workbench.experiment,
        "/api/sample": workbench.sample,
        "/api/state": workbench.complete,
        "/api/view": workbench.view,
        "/api/cone": workbench.cone,
        "/api/python": workbench.python,
        "/api/sweeps": workbench.start_sweep,
    }
    for path, compute in questions.items():
        _add_question(app, workbench, path, compute, JSONResponse)
    _add_question(app, workbench, "/api/maps", workbench.maps, _binary)
    _add_question(app, workbench, "/api/report", workbench.report, HTMLResponse)
    _add_slow_question(app, workbench, "/api/estimators", workbench.prepare_estimators)
    _add_slow_question(app, workbench, "/api/probe", workbench.prepare_probe)


def _add_question(
    app: FastAPI,
    workbench: Workbench,
    path: str,
    compute: Callable[[Any], Any],
    respond: Callable[[Any], Response],
) -> None:
    """Answer POST requests at one address.

    Args:
        app: the application to extend.
        workbench: gives requests their turn.
        path: the address.
        compute: makes the answer from the request's JSON.
        respond: makes a response from the answer.
    """

    @app.post(path)
    async def answer(request: Request) -> Response:
        given = _parsed(await request.body())
        return respond(await run_in_threadpool(workbench.alone, compute, given))


def _add_slow_question(
    app: FastAPI,
    workbench: Workbench,
    path: str,
    prepare: Callable[[Any], Callable[[], Any]],
) -> None:
    """Answer POST requests at one address without holding up other requests.

    Args:
        app: the application to extend.
        workbench: gives requests their turn.
        path: the address.
        prepare: checks the request's JSON in its turn; the function that it returns computes the
            answer afterwards.
    """

    @app.post(path)
    async def answer(request: Request) -> Response:
        given = _parsed(await request.body())
        compute = await run_in_threadpool(workbench.alone, prepare, given)
        return JSONResponse(await run_in_threadpool(compute))


def _add_sweep_routes(app: FastAPI, workbench: Workbench) -> None:
    """Addresses of a running sweep, which answer while something else is computed."""

    @app.get("/api/sweeps/{number}")
    def progress(number: str) -> JSONResponse:
        return JSONResponse(workbench.sweep(number))

    @app.post("/api/sweeps/{number}/cancel")
    def cancel(number: str) -> JSONResponse:
        return JSONResponse(workbench.cancel_sweep(number))


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every error with a status and one sentence."""

    @app.exception_handler(StateError)
    async def malformed(request: Request, error: StateError) -> JSONResponse:
        return _refusal(_sentence(error), 400)

    @app.exception_handler(ValueError)
    async def unanswerable(request: Request, error: ValueError) -> JSONResponse:
        return _refusal(_sentence(error), 422)

    @app.exception_handler(NotFound)
    async def missing(request: Request, error: NotFound) -> JSONResponse:
        return _refusal(_sentence(error), 404)

    @app.exception_handler(404)
    async def unknown_path(request: Request, error: Exception) -> JSONResponse:
        return _refusal(f"There is nothing at {_path(request)}.", 404)

    @app.exception_handler(405)
    async def wrong_method(request: Request, error: Exception) -> JSONResponse:
        method = printable(request.method[:LONGEST_METHOD])
        return _refusal(f"{_path(request)} does not accept {method}.", 405)

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> JSONResponse:
        log.error("%s failed", request.url.path, exc_info=error)
        return _refusal("This is a bug in the workbench; see the terminal for details.", 500)


def _path(request: Request) -> str:
    """The path of a request, for an error message."""
    # Not by `request.url`, which also decodes the query and fails if that is not UTF-8.
    return printable(request.scope["path"][:LONGEST_PATH])


def _refusal(sentence: str, status: int) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)


def _sentence(error: Exception) -> str:
    text = printable(str(error)[:LONGEST_ERROR])
    return text if text.endswith((".", "?")) else text + "."


def _binary(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream")


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise StateError("The request is not JSON.") from None
