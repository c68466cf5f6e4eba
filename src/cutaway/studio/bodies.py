"""Request bodies: read within bounds of bytes and time, and JSON within bounds of values, depth and numbers."""

import asyncio
import json
import math
from typing import Any, NoReturn

from cutaway.studio.asgi import Message, Receive
from cutaway.studio.limits import Limits
from cutaway.studio.work_queue import HTTPRefusal


class Disconnected(Exception):  # noqa: N818
    """The client left before its body was whole."""


class Bodies:
    """The bodies of all requests at work, which share a bound on their bytes."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.n_bytes = 0

    async def read(self, receive: Receive) -> bytearray:
        """A whole body; `release` gives its bytes back."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    part = message.get("body", b"")
                    self._check_size(len(body) + len(part), len(part))
                    self.n_bytes += len(part)
                    body += part
                    if not message.get("more_body", False):
                        return body
        except TimeoutError:
            self.release(body)
            raise HTTPRefusal(408, f"the body took longer than {self.limits.body_seconds:g} s to arrive") from None
        except BaseException:
            self.release(body)
            raise

    def release(self, body: bytearray) -> None:
        self.n_bytes -= len(body)

    def _check_size(self, size: int, more: int) -> None:
        if size > self.limits.body:
            raise too_long(self.limits)
        if self.n_bytes + more > self.limits.bodies:
            raise HTTPRefusal(429, "too many large requests are being answered already; try again soon", retry_after=1)


def too_long(limits: Limits) -> HTTPRefusal:
    return HTTPRefusal(413, f"the body is longer than {limits.body:,} bytes")


def replayed(body: bytearray, receive: Receive) -> Receive:
    """What receives a body that was read already, and afterwards whether the client is still there."""
    given = False

    async def once() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    return once


def check_json(body: bytearray, limits: Limits) -> None:
    """Refuses what is no JSON, and JSON that Python reads but others don't: NaN, 1e400, halves of surrogate pairs."""
    if not body.strip():
        raise _invalid("the body is empty; expected JSON")
    if sum(map(body.count, (b",", b"[", b"{"))) > limits.body_values:
        raise _invalid(f"the body has more than {limits.body_values:,} values")
    try:
        data = json.loads(body.decode(), parse_constant=_constant, parse_int=_whole, parse_float=_real)
    except UnicodeDecodeError:
        raise _invalid("the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"the body is not JSON: {error.msg}") from None
    except RecursionError:
        raise _invalid(f"the body is nested deeper than {limits.body_depth} levels") from None
    _check_values(data, limits.body_depth)


def _check_values(data: Any, depth: int) -> None:
    """Level by level, so that no depth is too much for it."""
    level = [data]
    for _ in range(depth + 1):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.keys()
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str) and not value.isascii():
                _check_text(value)
        if not below:
            return
        level = below
    raise _invalid(f"the body is nested deeper than {depth} levels")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _invalid(f"\\u{ord(text[error.start]):04x} in the body is half of a surrogate pair, not text") from None


def _constant(name: str) -> NoReturn:
    raise _invalid(f"{name} is no number of JSON")


def _whole(digits: str) -> int:
    if len(digits) > 20:  # more than any of 64 bits has
        raise _invalid(f"a number of {len(digits.lstrip('-'))} digits is too large")
    return int(digits)


def _real(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _invalid(f"{digits[:40]} is too large for a number")
    return number


def _invalid(sentence: str) -> HTTPRefusal:
    return HTTPRefusal(422, sentence)
