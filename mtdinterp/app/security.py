"""What stands between the page and the rest of the world.

The server listens on this machine only, but any page in the same browser can send requests to it.
So: the Host header must name this machine (a foreign name that resolves to it is an attack by DNS),
a request that does something must come from our own page, and bodies are small JSON. Every answer
forbids the browser to load or send anything elsewhere.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi.responses import JSONResponse

MOST_BYTES = 64 * 1024
LOCAL = ("127.0.0.1", "localhost", "[::1]")

HEADERS = {
    # plotly.js writes its style sheet itself and makes pictures out of data: and blob: addresses.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' "
    "'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Guard:
    """ASGI middleware: refuses what is not ours, and signs every answer."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in LOCAL} | (set(LOCAL) if port == 80 else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})  # there are none here
            return

        async def signed(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = dict(message["headers"])
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.encode(), value.encode())
                        for name, value in HEADERS.items()
                        if name.encode() not in headers
                    ),
                ]
            await send(message)

        refused = self.refusal(scope)
        body: bytes | None = b""
        if refused is None and scope["method"] not in ("GET", "HEAD"):
            body = await _read(receive)
            refused = (
                (413, f"A request may have at most {MOST_BYTES} bytes.") if body is None else None
            )
        if refused is not None:
            status, sentence = refused
            await JSONResponse({"error": sentence}, status)(scope, receive, signed)
            return
        await self.app(scope, _replay(body or b"", receive), signed)

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and sentence if a request is refused by its headers."""
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        host = headers.get("host", "")
        if host.lower() not in self.hosts:
            return 403, "This server answers only to its own address on this machine."
        if scope["method"] in ("GET", "HEAD"):
            return None
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            return 403, "Requests from other pages are refused."
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "Requests from other pages are refused."
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            return 415, "A request must be JSON, with content-type application/json."
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > MOST_BYTES:
            return 413, f"A request may have at most {MOST_BYTES} bytes."
        return None


async def _read(receive: Receive) -> bytes | None:
    """The body, or None as soon as it is longer than allowed."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(parts)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BYTES:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """What was read, given again; afterwards the connection itself, which tells when the page is
    gone."""
    given = False

    async def again() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
