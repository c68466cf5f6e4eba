"""A studio at work in a thread, and a client that asks it."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import httpx
import uvicorn

from cutaway.model import Model
from cutaway.studio.limits import Limits
from cutaway.studio.server import server
from cutaway.studio.studio import Studio


@dataclass
class Served:
    studio: Studio
    address: str
    client: httpx.Client

    def run(self, model: str, **asked: object) -> dict:
        """A trace that was made; anything else is a failure."""
        answer = self.client.post("/api/run", json={"model": model, **asked})
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextlib.contextmanager
def serving(models: Sequence[Model], limits: Limits | None = None) -> Iterator[Served]:
    studio = Studio(models, limits)
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    runner = uvicorn.Server(uvicorn.Config(server(studio), log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        deadline = time.monotonic() + 30
        while not runner.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            yield Served(studio, address, client)
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
