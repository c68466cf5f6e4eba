"""Who may ask, and how much: checked before anything else looks at a request."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from cutaway.studio.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

HERE = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class Guard:
    """Only this machine may ask, by a name of this machine (or a page elsewhere could, through a name of its own that
    leads here), and only the studio's own page; a body is JSON and not too long."""

    def __init__(self, app: App, limits: Limits) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refused(scope["method"], headers)
        if refused is not None:
            await _answer(send, *refused)
            return
        await self.app(scope, *self._bounded(receive, send))

    def _bounded(self, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """What is read is counted; past the limit it breaks off, and whatever the app makes of that, 413 is said."""
        n_read, too_long, begun = 0, False, False

        async def counted() -> Message:
            nonlocal n_read, too_long
            message = await receive()
            n_read += len(message.get("body", b""))
            if n_read > self.limits.body:
                too_long = True
                return {"type": "http.disconnect"}
            return message

        async def guarded(message: Message) -> None:
            nonlocal begun
            if too_long:
                if not begun:
                    begun = True
                    await _answer(send, *self._too_long())
                return
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        return counted, guarded

    def _refused(self, method: str, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if "@" in host or _hostname(f"http://{host}") not in HERE:
            return 403, f"this studio answers at 127.0.0.1 and localhost only, not at {host[:100]!r}"
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return 403, f"pages of {origin[:100]!r} may not ask this studio"
        if method in ("POST", "PUT", "PATCH"):
            if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
                return 415, "the body must be JSON: Content-Type: application/json"
            length = headers.get("content-length")
            if length is not None and (not length.isdecimal() or int(length) > self.limits.body):
                return self._too_long()
        return None

    def _too_long(self) -> tuple[int, str]:
        return 413, f"the body is longer than {self.limits.body:,} bytes"


def _hostname(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


async def _answer(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
