"""ASGI's types, and an answer of one sentence, which all that stands before the application gives."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Of every answer."""

RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def sentence_body(sentence: str) -> bytes:
    """{"error": …} on one line; half of a surrogate pair, which UTF-8 lacks, becomes a question mark."""
    line = sentence.replace("\n", "\\n").replace("\r", "\\r")
    return json.dumps({"error": line}, ensure_ascii=False).encode(errors="replace")


def with_headers(given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of an answer and the studio's own, which a route can't weaken."""
    own = {name for name, _ in RAW_HEADERS}
    return [*(header for header in given if header[0].lower() not in own), *RAW_HEADERS]


async def answer(send: Send, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
    body = sentence_body(sentence)
    given = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": with_headers(raw)})
    await send({"type": "http.response.body", "body": body})
