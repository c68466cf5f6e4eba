"""Connections of clients that are slow, many, broken or hostile, on sockets of their own."""

import collections
import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from cutaway.model import Model
from cutaway.studio.limits import Limits
from tests.support.studio_server import Served, sentence, serving, wait_until

QUICK = Limits(
    connections=12, head_seconds=0.5, body_seconds=0.5, idle_seconds=0.6, exchange_seconds=1.5, body=50_000,
    linger_seconds=0.5, bodies=120_000, responses=3_000_000, seconds=20.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def quick(models: dict[str, Model]) -> Iterator[Served]:
    with serving([models["gpt2"], models["en-fr"]], QUICK) as studio:
        yield studio


class Line:
    """A connection, and what came through it."""

    def __init__(self, served: Served, sent: bytes = b"", small: bool = False) -> None:
        self.socket = socket.socket()
        if small:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(10)
        self.socket.connect(("127.0.0.1", served.port))
        self.socket.sendall(sent)

    def all(self) -> bytes:
        """All until the server closes; a reset is an error."""
        data = b""
        while part := self.socket.recv(65_536):
            data += part
        self.socket.close()
        return data

    def answer(self) -> bytes:
        """One answer, as long as it says it is; the connection stays open."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        length = re.search(rb"content-length: (\d+)", data)
        while length and len(data.partition(b"\r\n\r\n")[2]) < int(length[1]):
            data += self._more()
        return data

    def _more(self) -> bytes:
        part = self.socket.recv(65_536)
        assert part, "closed before the answer was whole"
        return part


@contextlib.contextmanager
def lines(served: Served, n: int, sent: bytes = b"") -> Iterator[list[Line]]:
    opened = [Line(served, sent) for _ in range(n)]
    try:
        yield opened
    finally:
        for line in opened:
            line.socket.close()


def head(served: Served, request: str = "POST /api/run", *more: str, token: str | None = None) -> bytes:
    told = [f"{request} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *more]
    return "\r\n".join([*told, f"Authorization: Bearer {token or served.token}", "", ""]).encode()


def refused(data: bytes, status: int, said: str) -> None:
    begin, _, body = data.partition(b"\r\n\r\n")
    assert begin.startswith(b"HTTP/1.1 %d " % status), data[:300]
    assert b"x-content-type-options: nosniff" in begin.lower()
    assert said in json.loads(body)["error"]


def test_a_slow_head_is_cut_off(quick: Served) -> None:
    begin = time.monotonic()
    refused(Line(quick, b"GET / HTTP/1.1\r\nHost: local").all(), 408, "the head of the request took longer than 0.5 s")
    assert Line(quick).all() == b"", "nothing was asked, so nothing is said"
    assert time.monotonic() - begin < 3


def test_a_head_that_drips_is_cut_off_too(quick: Served) -> None:
    begin = time.monotonic()

    def drip(line: Line) -> None:
        while time.monotonic() < begin + 5:
            line.socket.sendall(b"a: b\r\n")
            time.sleep(0.02)

    line = Line(quick, b"GET / HTTP/1.1\r\n")
    with line.socket, pytest.raises(OSError, match="reset|pipe"):
        drip(line)
    assert time.monotonic() - begin < 3


def test_a_slow_body_is_refused(quick: Served) -> None:
    data = Line(quick, head(quick, "POST /api/run", "Content-Length: 100", "Connection: close") + b"{").all()
    refused(data, 408, "the body took longer than 0.5 s")


def test_an_idle_connection_is_closed(quick: Served) -> None:
    line, begin = Line(quick, head(quick, "GET /api/models")), time.monotonic()
    assert line.all().startswith(b"HTTP/1.1 200")
    assert 0.4 < time.monotonic() - begin < 3


def test_many_idle_connections_do_not_keep_others_out(quick: Served) -> None:
    with lines(quick, 40), lines(quick, 40, b"GET / HTTP/1.1\r\nHost: localhost\r\n"):
        assert quick.client.get("/api/models").status_code == 200
        with httpx.Client(base_url=quick.address, trust_env=False, headers=quick.headers) as other:
            assert other.get("/api/models").status_code == 200


def test_who_has_no_token_does_not_keep_others_out(quick: Served) -> None:
    """However much of a request is sent without one: it is refused before it is read."""
    slow = head(quick, "POST /api/run", "Content-Length: 40000", token="wrong") + b"{" * 1000
    with lines(quick, 40, slow) as waiting:
        assert waiting[-1].answer().startswith(b"HTTP/1.1 401")
        assert quick.client.get("/api/models").status_code == 200


def test_a_thousand_connections(quick: Served) -> None:
    """No file is left over, and who asks next is served."""

    def one(i: int) -> None:
        with contextlib.suppress(OSError):
            Line(quick, b"" if i % 2 else b"GET / HTTP/1.1\r\n").socket.close()

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(one, range(1000)))
    assert quick.client.get("/api/models").status_code == 200
    wait_until(lambda: len(quick.runner.server_state.connections) <= QUICK.connections)


def test_a_slow_reader_is_cut_off_and_what_waits_for_it_is_bounded(quick: Served) -> None:
    """Four answers of 1.3 MB: two fit, the others are told to come again; nobody reads, so all is given up."""
    trace = quick.run("en-fr", text="The cat sat.", prefix=list(range(5, 45)))["id"]
    path = f"/api/traces/{trace}/values/head.vocabulary.logits?format=binary&at="
    size = len(quick.client.get(path).content)
    assert size > QUICK.responses / 3
    asked = head(quick, f"GET {path}")
    with contextlib.ExitStack() as stack:
        waiting = [Line(quick, asked, small=True) for _ in range(8)]
        for line in waiting:
            stack.callback(line.socket.close)
        wait_until(lambda: quick.guard.responses.n_bytes > size)
        assert quick.guard.responses.n_bytes <= QUICK.responses
        statuses = [line.socket.recv(12)[9:] for line in waiting]
        assert set(statuses) == {b"200", b"429"}
        wait_until(lambda: quick.guard.responses.n_bytes == 0, 5)
    assert len(quick.client.get(path).content) == size


def test_large_bodies_at_once_are_bounded(quick: Served) -> None:
    part = head(quick, "POST /api/run", "Content-Length: 45000") + b" " * 40_000
    with lines(quick, 6, part) as waiting:
        statuses = collections.Counter(line.answer()[9:12] for line in waiting)
    assert statuses == {b"408": 3, b"429": 3}
    assert quick.guard.bodies.n_bytes == 0


@pytest.mark.parametrize("closing", [True, False], ids=["close", "keep-alive"])
@pytest.mark.parametrize(
    ("line", "token", "status"),
    [
        ("POST /api/run", "wrong", 401), ("POST /api/run", None, 413), ("POST /api/nothing", "wrong", 401),
        ("DELETE /api/models", None, 413), ("GET /api/models", None, 413),
    ],
)  # fmt: skip
def test_a_refusal_is_heard_whatever_was_sent_with_it(
    line: str, token: str | None, status: int, closing: bool, quick: Served
) -> None:
    """The client writes 5 MB and only then listens: neither its writing nor its reading ends in a reset."""
    more = [f"Content-Length: {5_000_000}", *(["Connection: close"] if closing else [])]
    opened = Line(quick, head(quick, line, *more, token=token))
    opened.socket.sendall(b"x" * 5_000_000)
    refused(opened.all() if closing else opened.answer(), status, "")
    opened.socket.close()


def test_bodies_in_chunks(quick: Served) -> None:
    asked = head(quick, "POST /api/run", "Transfer-Encoding: chunked", "Connection: close")
    refused(Line(quick, asked + b"1\r\n{\r\n0\r\n\r\n").all(), 422, "not JSON")
    refused(Line(quick, asked + b"zz\r\n{}").all(), 400, "no HTTP/1.1")
    refused(Line(quick, asked + b"ffff\r\n" + b" " * 65535 + b"\r\n0\r\n\r\n").all(), 413, "longer than 50,000")
    refused(Line(quick, asked + b"2\r\n").all(), 408, "took longer")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 500, b"GET\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\na: b\rc: d\r\n\r\n", b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1e3\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\na: " + b"b" * 1_000_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=range(15),
)  # fmt: skip
def test_what_is_no_request_is_refused_in_order(sent: bytes, quick: Served) -> None:
    data = Line(quick, sent).all()
    refused(data, 400, "no HTTP/1.1 request")
    assert quick.client.get("/api/models").status_code == 200


def test_old_and_odd_clients(quick: Served) -> None:
    token = f"Authorization: Bearer {quick.token}\r\n".encode()
    refused(Line(quick, b"GET /api/models HTTP/1.0\r\n" + token + b"\r\n").all(), 403, "answers at 127.0.0.1")
    old = Line(quick, b"GET /api/models HTTP/1.0\r\nHost: localhost\r\n" + token + b"\r\n").all()
    assert old.startswith(b"HTTP/1.1 200")
    two = Line(quick, 2 * head(quick, "GET /api/models") + head(quick, "GET /api/nothing", "Connection: close")).all()
    assert re.findall(rb"HTTP/1.1 (\d+)", two) == [b"200", b"200", b"404"]
    upgrade = (
        "Upgrade: websocket",
        "Connection: Upgrade, close",
        "Sec-WebSocket-Key: YQ==",
        "Sec-WebSocket-Version: 13",
    )
    assert Line(quick, head(quick, "GET /api/generate", *upgrade)).all().startswith(b"HTTP/1.1 405")
    expect = ("POST /api/run", "Content-Length: 2", "Expect: 100-continue", "Connection: close")
    line = Line(quick, head(quick, *expect))
    assert line.answer().startswith(b"HTTP/1.1 100")
    line.socket.sendall(b"{}")
    refused(line.all(), 422, "model")
    refused(Line(quick, head(quick, *expect, token="wrong")).all(), 401, "open the address")


def test_no_header_is_injected(quick: Served) -> None:
    trace = quick.run("gpt2", text="the cat")["id"]
    evil, of = "%0d%0aX-Evil:%20yes", f"/api/traces/{trace}"
    for path in (f"/{evil}", f"/assets/{evil}", f"/assets/.{evil}/", f"{of}/values/a{evil}", f"{of}/html?view={evil}"):
        answer = quick.client.get(path)
        assert "x-evil" not in answer.headers, path
        assert answer.status_code < 500


def test_no_file_outside_of_the_page_is_served(quick: Served) -> None:
    for path in ("/assets/../../limits.py", "/assets/..%2f..%2flimits.py", "/assets/%2e%2e/index.html", "/assets/%00",
                 "/assets//etc/passwd", "/assets/..\\..\\limits.py", "/assets/" + "a" * 5000, "/assets/", "/assets",
                 "/index.html", "/offline.html", "/assets/....//....//limits.py", "//etc/passwd", "/."):  # fmt: skip
        data = Line(quick, head(quick, f"GET {path}", "Connection: close")).all()
        assert re.match(rb"HTTP/1.1 (404|307|400) ", data), (path, data[:200])


def test_what_is_read_back_to_the_page_is_never_cached(quick: Served) -> None:
    for path in ("/", "/api/models", "/api/nothing", "/api/openapi.json"):
        assert quick.client.get(path).headers["cache-control"] == "no-store"
    assert "server" not in quick.client.get("/").headers


def test_a_token_for_everything_but_the_page_itself(quick: Served) -> None:
    near = (f"Bearer {quick.token}x", f"Bearer {quick.token[:-1]}", quick.token, f"Basic {quick.token}")
    for given in (None, "", "Bearer", "Bearer wrong", "Bearer \udce9", *near):
        headers = [] if given is None else [(b"authorization", given.encode(errors="surrogateescape"))]
        with httpx.Client(base_url=quick.address, trust_env=False) as client:
            assert "open the address" in sentence(client.get("/api/models", headers=headers), 401)
            answer = client.post("/api/run", json={"model": "gpt2", "text": "the"}, headers=headers)
            assert "open the address" in sentence(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
            for path in ("/api/openapi.json", "/nothing", "/api", f"/api/models?token={quick.token}"):
                assert client.get(path, headers=headers).status_code == 401, path
            assert client.get("/", headers=headers).status_code == 200
    for given in (f"Bearer {quick.token}", f"bearer  {quick.token}"):
        assert httpx.get(f"{quick.address}/api/models", headers={"Authorization": given}, trust_env=False).is_success


def test_forms_of_other_sites_are_refused(quick: Served) -> None:
    """A page elsewhere may send these without asking first."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"):
        answer = httpx.post(f"{quick.address}/api/run", content=b"{}", headers={"Content-Type": kind}, trust_env=False)
        sentence(answer, 401)
        sentence(quick.client.post("/api/run", content=b"{}", headers={"Content-Type": kind}), 415)
    assert quick.client.options("/api/run", headers={"Origin": "http://evil.example"}).status_code == 403
