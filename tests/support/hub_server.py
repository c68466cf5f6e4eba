"""A small Hugging Face hub on this machine: the few answers that huggingface_hub needs, and a list of what it asked."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """`models`: name -> file -> content. The other fields make it misbehave."""

    models: dict[str, dict[str, bytes]]
    revisions: dict[str, str] = field(default_factory=lambda: {"main": COMMIT, COMMIT: COMMIT})
    listed: str = ""  # another commit than the files have
    gated: bool = False
    forbidden: str = ""  # a file that is refused
    status: int = 200
    delay: float = 0.0
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    @property
    def files_asked(self) -> set[str]:
        return {path.split("/resolve/")[1].partition("/")[2] for path in self.asked if "/resolve/" in path}


@contextmanager
def serving(models: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    hub = Hub(models)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        path = urlsplit(self.path).path.lstrip("/")
        if not path.startswith("api/models/") and "/resolve/" not in path:
            return self._answer(404)  # about huggingface_hub's own affairs
        self.hub.asked.append(unquote(path))
        time.sleep(self.hub.delay)
        if self.hub.status != 200:
            return self._answer(self.hub.status)
        if path.startswith("api/models/"):
            name, _, revision = path.removeprefix("api/models/").partition("/revision/")
            return self._model(name, unquote(revision) or "main")
        name, _, rest = path.partition("/resolve/")
        revision, _, file = rest.partition("/")
        return self._file(name, unquote(revision), unquote(file))

    do_HEAD = do_GET  # noqa: N815

    def _model(self, name: str, revision: str) -> None:
        if name not in self.hub.models:
            return self._answer(404, error="RepoNotFound")
        if revision not in self.hub.revisions:
            return self._answer(404, error="RevisionNotFound")
        files = [{"rfilename": file} for file in self.hub.models[name]]
        return self._answer(
            200, {"id": name, "sha": self.hub.listed or self.hub.revisions[revision], "siblings": files}
        )

    def _file(self, name: str, revision: str, file: str) -> None:
        if self.hub.gated:
            return self._answer(403, error="GatedRepo")
        if file == self.hub.forbidden:
            return self._answer(403)
        content = self.hub.models[name].get(file)
        if content is None:
            return self._answer(404, error="EntryNotFound")
        commit = self.hub.revisions[revision]
        return self._answer(200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": commit})

    def _answer(self, status: int, data: Any = b"", headers: dict[str, str] | None = None, error: str = "") -> None:
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if error:
            self.send_header("X-Error-Code", error)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass
