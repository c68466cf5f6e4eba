"""Connections: uvicorn's, bounded in number and time, and closed so that a client always hears its answer."""

import asyncio
import http
import socket
from contextlib import suppress
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cutaway.studio.asgi import RAW_HEADERS, sentence_body
from cutaway.studio.guard import TRUSTED, Guard
from cutaway.studio.limits import Limits


def uvicorn_server(app: Guard) -> uvicorn.Server:
    """A server for the application, with its limits on connections. It speaks HTTP/1.1 only, and no WebSocket."""
    config = uvicorn.Config(
        app, http=partial(Connection, app.limits), ws="none", log_level="error", access_log=False,  # type: ignore[arg-type]  # uvicorn only calls it
        proxy_headers=False, server_header=False, backlog=256,
        timeout_keep_alive=int(app.limits.idle_seconds) + 1, timeout_graceful_shutdown=2,
    )  # fmt: skip
    return uvicorn.Server(config)


class Connection(H11Protocol):
    """One connection. A client that is too slow, in asking or in reading, is cut off."""

    def __init__(self, limits: Limits, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.limits = limits
        self.timer: asyncio.TimerHandle | None = None
        self.last_active = 0.0
        self.waits_for_head = True
        self.closing = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_ClosedInOrder(transport, self))  # type: ignore[arg-type]
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.limits.send_buffer)
        self._cut_after(self.limits.head_seconds)
        if len(self.connections) > self.limits.connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        if self.at_rest and not self.waits_for_head:
            self.waits_for_head = True
            self._cut_after(self.limits.head_seconds)
        super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self.waits_for_head = False
            self._cut_after(self.limits.exchange_seconds)

    def on_response_complete(self) -> None:
        before = self.cycle
        super().on_response_complete()
        if self.cycle is before and not self.closing:
            is_read = self.conn.their_state is not h11.SEND_BODY
            self._cut_after(self.limits.idle_seconds if is_read else self.limits.linger_seconds)

    @property
    def at_rest(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_at_work(self) -> bool:
        """On a request that came with the token."""
        return not self.at_rest and TRUSTED in self.cycle.scope.get("state", {})

    def _make_room(self) -> None:
        """In the place of the connection that has been without work for longest."""
        others = [each for each in self.connections if isinstance(each, Connection) and each is not self]
        idle = [each for each in others if not each.is_at_work]
        if idle:
            min(idle, key=lambda each: each.last_active).transport.abort()
        if len(others) - len(idle) >= self.limits.connections:
            self._refuse(503, f"{self.limits.connections} connections are at work already; try again soon")

    def _cut_after(self, seconds: float) -> None:
        self.last_active = self.loop.time()
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(seconds, self._cut)

    def _cut(self) -> None:
        """Time is up."""
        if self.waits_for_head and not self.closing and self.conn.trailing_data[0]:
            self._refuse(408, f"the head of the request took longer than {self.limits.head_seconds:g} s to arrive")
        else:
            self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        super().shutdown()
        if self.at_rest:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP/1.1 request")

    def _refuse(self, status: int, sentence: str) -> None:
        """An answer to what is no whole request, if none is under way."""
        if self.cycle is not None and not self.at_rest:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = sentence_body(sentence)
            length = str(len(body)).encode()
            headers = [
                (b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close"),
            ]  # fmt: skip
            reason = http.HTTPStatus(status).phrase.encode()
            head = h11.Response(status_code=status, headers=[*headers, *RAW_HEADERS], reason=reason)
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _ClosedInOrder:
    """A transport whose `close` first ends the answer, then reads what the client still sends for a while. Closed at
    once, unread bytes would make the system reset the connection, and the client might never see the answer."""

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport, self._connection = transport, connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._connection.closing or self._transport.is_closing()

    def close(self) -> None:
        if self._transport.is_closing():
            return
        self._connection.closing = True
        self._connection._cut_after(self._connection.limits.linger_seconds)
        with suppress(OSError):  # the client has gone
            self._transport.write_eof()
        self._transport.resume_reading()
