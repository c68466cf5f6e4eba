"""Responses: sent in parts as the client reads them, and bounded in the bytes that wait to be read."""

from cutaway.studio.asgi import Message, Send, answer, with_headers
from cutaway.studio.limits import Limits

_PART = 65_536  # bytes; what a connection holds in its buffer at a time


class Responses:
    """The responses that are being sent, which share a bound on their bytes: a slow reader keeps its own in memory."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.n_bytes = 0

    def bounded(self, send: Send) -> Send:
        """`send` for one request. A response that finds no room becomes a 429 before anything of it is sent."""
        start: Message | None = None
        dropped = False

        async def sending(message: Message) -> None:
            nonlocal start, dropped
            if message["type"] == "http.response.start":
                start = message  # held back until its first bytes are known
                return
            if dropped:
                return
            if start is not None:
                size = len(message.get("body", b""))
                if self.n_bytes and self.n_bytes + size > self.limits.responses:
                    dropped = True
                    sentence = "too many large answers wait to be read; read them, or try again soon"
                    await answer(send, 429, sentence, {"Retry-After": "1"})
                    return
                headers = with_headers(start["headers"])
                begin, start = {**start, "headers": headers}, None
                await send(begin)
            await self._send_parts(send, message)

        return sending

    async def _send_parts(self, send: Send, message: Message) -> None:
        """`send` waits while the connection's buffer is full, so a part is only handed over when it is read."""
        body, more = message.get("body", b""), message.get("more_body", False)
        self.n_bytes += len(body)
        try:
            for i in range(0, max(1, len(body)), _PART):
                last = i + _PART >= len(body)
                await send({**message, "body": body[i : i + _PART], "more_body": more or not last})
        finally:
            self.n_bytes -= len(body)
