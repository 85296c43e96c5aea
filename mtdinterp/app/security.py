"""Protection of the workbench against other pages and programs.

The server listens on this machine only, but any page in the same browser can send requests to it.
Therefore the Host header must name this machine (a foreign name that resolves to it is a DNS
rebinding attack), a request that does something must come from our own page, and bodies must be
small JSON. The headers of every response forbid the browser to load from or send to any other
address.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from fastapi.responses import JSONResponse

MOST_BYTES = 64 * 1024
LOCAL = ("127.0.0.1", "localhost", "[::1]")
READING_METHODS = ("GET", "HEAD")
"""Methods that change nothing and have no body."""

HEADERS = {
    # plotly.js writes its own style sheet and makes pictures from data: and blob: addresses.
    "content-security-policy": "default-src 'none'; script-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Refusal = tuple[int, str]
"""A status and a sentence."""

FOREIGN_HOST: Refusal = (
    403,
    "This server only answers requests to its own address on this machine.",
)
FOREIGN_PAGE: Refusal = (403, "Requests from other pages are refused.")
NOT_JSON: Refusal = (415, "A request must be JSON, with content-type application/json.")
TOO_LARGE: Refusal = (413, f"A request may have at most {MOST_BYTES} bytes.")


class Guard:
    """ASGI middleware that refuses foreign requests and adds `HEADERS` to every response."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in LOCAL}
        if port == 80:
            self.hosts.update(LOCAL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})  # the workbench has none
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(message)
            await send(message)

        refused = self.refusal(scope)
        body: bytes | None = b""
        if refused is None and scope["method"] not in READING_METHODS:
            body = await _read(receive)
            if body is None:
                refused = TOO_LARGE
        if refused is not None:
            status, sentence = refused
            await JSONResponse({"error": sentence}, status)(scope, receive, send_guarded)
            return
        await self.app(scope, _replay(body or b"", receive), send_guarded)

    def refusal(self, scope: Scope) -> Refusal | None:
        """Why a request is refused because of its headers, or None if it is not."""
        headers = _decoded_headers(scope)
        host = headers.get("host", "").lower()
        if host not in self.hosts:
            return FOREIGN_HOST
        if scope["method"] in READING_METHODS:
            return None
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host}":
            return FOREIGN_PAGE
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return FOREIGN_PAGE
        content_type = headers.get("content-type", "").split(";")[0]
        if content_type.strip().lower() != "application/json":
            return NOT_JSON
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > MOST_BYTES:
            return TOO_LARGE
        return None


def _decoded_headers(scope: Scope) -> Mapping[str, str]:
    headers = {}
    for name, value in scope["headers"]:
        headers[name.decode("latin-1").lower()] = value.decode("latin-1")
    return headers


def _add_headers(message: Message) -> None:
    """Add `HEADERS` to the start of a response, except those that it already has."""
    present = {name for name, _ in message["headers"]}
    added = []
    for name, value in HEADERS.items():
        if name.encode() not in present:
            added.append((name.encode(), value.encode()))
    message["headers"] = [*message["headers"], *added]


async def _read(receive: Receive) -> bytes | None:
    """The body of a request, or None as soon as it is longer than allowed."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(parts)
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A channel that delivers a body that was already read, and then the original channel.

    The original channel tells when the page has disconnected.
    """
    delivered = False

    async def receive_again() -> Message:
        nonlocal delivered
        if delivered:
            return await receive()
        delivered = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again
