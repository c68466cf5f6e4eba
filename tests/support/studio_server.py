"""A studio at work in a thread, and a client that asks it."""

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from cutaway.model import Model
from cutaway.studio.connections import uvicorn_server
from cutaway.studio.guard import Guard
from cutaway.studio.limits import Limits
from cutaway.studio.server import server
from cutaway.studio.studio import Studio


@dataclass
class Served:
    studio: Studio
    address: str
    token: str
    client: httpx.Client
    guard: Guard
    runner: uvicorn.Server

    @property
    def page(self) -> str:
        """What `cutaway studio` prints and opens."""
        return f"{self.address}/?token={self.token}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def storage(self) -> dict[str, Any]:
        """Of a browser that was here before, for Playwright: it has the token."""
        return {"origins": [{"origin": self.address, "localStorage": [{"name": "cutaway-token", "value": self.token}]}]}

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def run(self, model: str, **asked: object) -> dict:
        """A trace that was made; anything else is a failure."""
        answer = self.client.post("/api/run", json={"model": model, **asked})
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextlib.contextmanager
def serving(models: Sequence[Model], limits: Limits | None = None) -> Iterator[Served]:
    studio = Studio(models, limits)
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    token = secrets.token_urlsafe(32)
    guard = server(studio, token)
    runner = uvicorn_server(guard)
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        deadline = time.monotonic() + 30
        while not runner.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=address, timeout=60, trust_env=False, headers=headers) as client:
            yield Served(studio, address, token, client, guard, runner)
    finally:
        runner.should_exit = True
        thread.join(timeout=20)
        listener.close()


def sentence(answer: httpx.Response, status: int) -> str:
    """The one sentence of a refusal."""
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert list(told) == ["error"]
    assert "\n" not in told["error"]
    return str(told["error"])


def wait_until(happened: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)
