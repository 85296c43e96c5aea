"""The workbench: requests to every address, with any state, headers and body; never a 5xx."""

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

from fuzzing.damage import damaged, edited, render
from fuzzing.materials import Materials
from fuzzing.outcomes import DEFECT, complaint
from mtdinterp.app import models
from mtdinterp.app.server import create_app

PORT = 8765


class Answered(Exception):
    """The sentence of an answer with status 4xx."""


REFUSALS = (Answered,)
_prepared: dict[str, Any] = {}


def prepare(materials: Materials) -> None:
    """Open the workbench with the tiny model alone; it must not start threads yet."""
    models.zoo_names = lambda: []
    registry = models.Registry([materials.home / "run"])
    registry.checkpoint("run")
    _prepared["app"] = create_app(registry, PORT)


def build(reader: str, case: Any, directory: Path, materials: Materials) -> None:
    """Make the body of the request."""
    body = edited(copy.deepcopy(BODIES.get(case["path"], STATE)), case.get("edits", []))
    _prepared["body"] = damaged(render(body), case.get("bytes", []))


def read(reader: str, case: Any, directory: Path, materials: Materials) -> str:
    """Send the request and judge the answer."""
    status, headers, body = asyncio.run(_answer(case))
    if status >= 500:
        return f"{DEFECT}status {status}: {body[:300]!r}"
    if b"content-security-policy" not in headers:
        return f"{DEFECT}an answer without the guard's headers, status {status}"
    if status >= 400:
        sentence = json.loads(body)["error"]
        if complaint(sentence):
            return f"{DEFECT}sentence: {complaint(sentence)}: {sentence[:300]!r}"
        raise Answered(f"{status}: {sentence}")
    return f"status {status}"


async def _answer(case: Any) -> tuple[int, dict[bytes, bytes], bytes]:
    """One request to the application, without a network."""
    body: bytes = _prepared["body"]
    headers = {
        "host": f"127.0.0.1:{PORT}",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **case.get("headers", {}),
    }
    encoded = []
    for name, value in headers.items():
        encoded.append((name.lower().encode("latin-1"), value.encode("latin-1", "replace")))
    path = case["path"]
    scope = {
        "type": case.get("type", "http"),
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": case.get("method", "POST"),
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogatepass"),
        "query_string": case.get("query", "").encode("utf-8", "surrogatepass"),
        "root_path": "",
        "headers": encoded,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", PORT),
    }
    sent: list[dict[str, Any]] = []
    parts = [body[: len(body) // 2], body[len(body) // 2 :]]

    async def receive() -> dict[str, Any]:
        if not parts:
            return {"type": "http.disconnect"}
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await _prepared["app"](scope, receive, send)
    starts = [message for message in sent if message["type"] == "http.response.start"]
    if not starts:
        return 400, {b"content-security-policy": b""}, b'{"error": "The connection was closed."}'
    content = b"".join(message.get("body", b"") for message in sent)
    return starts[0]["status"], dict(starts[0]["headers"]), content


STATE = {
    "version": 1,
    "model": {"name": "run", "role": "checkpoint", "beta": None, "delta": 100.0},
    "tokens": [0, 1, 2, 0, 1, 2],
    "weights": [0.5, 0.5],
    "source": [2, 1, 0, 2, 1, 0],
    "edits": [
        {
            "hook": "pattern",
            "source": {"kind": "mean", "value": None, "values": None, "layer": None},
            "layer": 0,
            "position": [5, 6],
            "key": None,
            "head": 0,
            "block": None,
            "on": True,
        }
    ],
    "position": -1,
    "block": None,
    "head": None,
    "selected": 0,
}
BODIES: dict[str, Any] = {
    "/api/fresh": {"model": STATE["model"], "seed": 7},
    "/api/experiment": {"state": STATE, "name": "steer"},
    "/api/sample": {"model": STATE["model"], "length": 6, "weights": [0.5, 0.5], "seed": 1},
    "/api/maps": {"state": STATE, "which": ["before", "after", "cone"]},
    "/api/probe": {"model": STATE["model"], "name": "recover_beta"},
    "/api/sweeps": {"state": STATE, "kind": "head", "aim": "away"},
}
"""A valid body for each address that does not take a state."""
