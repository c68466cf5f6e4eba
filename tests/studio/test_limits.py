"""Every bound of the studio, and who may ask it. Nothing here is ever answered by silence."""

import asyncio
import base64
import contextlib
import json
import resource
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

import cutaway
from cutaway.model import Model
from cutaway.seeing.trace import search_trace
from cutaway.studio.limits import Limits
from cutaway.studio.studio import Studio
from cutaway.studio.work_queue import Deadline, HTTPRefusal, Stopped, WorkQueue
from tests.support.studio_models import SENTENCE
from tests.support.studio_server import Served, sentence, serving, wait_until
from tests.support.threads import at_once

SMALL = Limits(
    tokens=24, traces=3, trace_bytes=4_000_000, all_trace_bytes=6_000_000, numbers=3_000, numbers_as_text=300,
    body=5_000, waiting=1, working=1, seconds=30.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def bounded(models: dict[str, Model]) -> Iterator[Served]:
    with serving([models["en-fr"], models["gpt2"]], SMALL) as studio:
        yield studio


def ask(served: Served, **body: object) -> httpx.Response:
    return served.client.post("/api/run", json={"model": "en-fr", "text": "Hello.", **body})


def test_only_this_machine_by_its_own_name(served: Served) -> None:
    port = served.address.rpartition(":")[2]
    for host in (
        "evil.example",
        "evil.example:80",
        f"127.0.0.1.evil.example:{port}",
        "",
        "[",
        "192.168.0.1",
        "evil.example@127.0.0.1",
    ):
        assert "answers at 127.0.0.1" in sentence(served.client.get("/api/models", headers={"Host": host}), 403)
        assert "answers at 127.0.0.1" in sentence(served.client.get("/", headers={"Host": host}), 403)
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", "[::1]:9"):
        assert served.client.get("/api/models", headers={"Host": host}).status_code == 200


def test_only_its_own_page(served: Served) -> None:
    for origin in ("http://evil.example", "null", "http://localhost:1", served.address.replace("http", "https")):
        assert "may not ask" in sentence(served.client.get("/api/models", headers={"Origin": origin}), 403)
    assert served.client.get("/api/models", headers={"Origin": served.address}).status_code == 200


def test_headers_of_every_answer(served: Served) -> None:
    for path in ("/api/models", "/api/nothing", "/"):
        headers = served.client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


def test_bodies_are_json_and_short(bounded: Served) -> None:
    post = bounded.client.post
    assert "must be JSON" in sentence(post("/api/run", content=b"{}", headers={"Content-Type": "text/plain"}), 415)
    assert "longer than 5,000" in sentence(ask(bounded, text="a" * 6000), 413)
    many = (b" " * 1000 for _ in range(9))  # no length is told
    assert "longer than 5,000" in sentence(
        post("/api/run", content=many, headers={"Content-Type": "application/json"}), 413
    )
    broken = post("/api/run", content=b"{", headers={"Content-Type": "application/json"})
    assert sentence(broken, 422).startswith("the body is not JSON: ")
    for body in (b"[]", b"null", b'"a"', b"1e999", b"{" * 2000, b"\xff"):
        answer = post("/api/run", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), body
        assert list(answer.json()) == ["error"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"text": "word " * 30}, 413, "at most 24 are taken"),
        ({"target": "mot " * 30}, 413, "at most 24 are taken"),
        ({"text": None}, 400, "give text"),
        ({"text": 3}, 422, "text: "),
        ({"model": "nobody"}, 404, "no model 'nobody' here; this studio has en-fr, gpt2"),
        ({"model": "gpt2", "target": "x"}, 400, "no second input"),
        ({"pair": "x"}, 400, "reads one text"),
        ({"prefix": [10**6]}, 400, "outside this model's 8000"),
        ({"prefix": [-1]}, 422, "prefix.0"),
        ({"generate": {"beams": 17}}, 422, "generate.beams"),
        ({"generate": {"max_new_tokens": 10_000}}, 422, "generate.max_new_tokens"),
        ({"edits": [{"kind": "off", "what": "mask"}] * 65}, 422, "edits"),
        ({"edits": [{"kind": "zero", "value": "nowhere"}]}, 400, "no tap 'nowhere'"),
        ({"edits": [{"kind": "patch", "value": "*", "trace": "gone"}]}, 404, "no longer here"),
        ({"image": "aGk="}, 400, "en-fr reads text"),
        ({"target": "x", "prefix": [1]}, 400, "give one of them"),
        ({"edits": [{"kind": "scale", "value": "*.heads", "by": 1e38}]}, 400, "can't write: its numbers"),
        ({"edits": [{"kind": "scale", "value": "*.heads", "by": 1e40}]}, 400, "as float32 is"),
        ({"edits": [{"kind": "set", "value": "head.vocabulary.logits", "at": [0, 0, 0], "to": 1e39}]}, 400, "float32"),
        ({"colour": "red"}, 422, "colour"),
    ],
)
def test_what_is_asked_for_has_bounds(bounded: Served, body: dict, status: int, said: str) -> None:
    assert said in sentence(ask(bounded, **body), status)


def test_two_texts_are_counted_together(served: Served) -> None:
    most = served.studio.models["bert"].config.encoder.max_positions
    half = "the cat " * (most // 3)
    both = served.client.post("/api/run", json={"model": "bert", "text": half, "pair": half})
    assert "the two texts have" in sentence(both, 413)
    blank = served.client.post("/api/run", json={"model": "bert", "text": "the cat", "pair": "  "})
    assert "is blank" in sentence(blank, 400)


@pytest.mark.parametrize("more", [{"text": "x"}, {"target": "x"}, {"generate": {}}])
def test_a_model_that_sees_reads_images_only(served: Served, more: dict, picture: bytes, tmp_path: Path) -> None:
    """Above all, no text is taken for the path of one."""
    (tmp_path / "a.png").write_bytes(picture)
    image = base64.b64encode(picture).decode()
    post = served.client.post
    assert post("/api/run", json={"model": "vit", "image": image}).status_code == 200
    for asked in ({"text": str(tmp_path / "a.png")}, {"image": image, **more}):
        assert "reads an image and nothing else" in sentence(post("/api/run", json={"model": "vit", **asked}), 400)
    for none in ("%%", "é", "\u2028", "a"):
        assert "not base64" in sentence(post("/api/run", json={"model": "vit", "image": none}), 400)


def test_numbers_that_are_none_reach_the_page(served: Served) -> None:
    """Infinite and NaN, which JSON has no numbers for: as words, in answers, streams and files."""
    edits = [{"kind": "scale", "value": "encoder.blocks.0.self_attention.heads", "by": 3e38}]
    info = served.run("bert", text="the cat", edits=edits)
    assert info["places"][0]["top"][0]["p"] == "nan"
    page = served.client.get(f"/api/traces/{info['id']}/html").text
    data = page.partition('id="cutaway-data">')[2].partition("</script>")[0]
    json.loads(data, parse_constant=lambda said: pytest.fail(f"{said} is no JSON"))
    cold = served.client.post("/api/next", json={"model": "en-fr", "text": "The cat.", "temperature": 1e-300}).json()
    assert [each["p"] for each in cold["warped"]] == [1.0]


def test_a_fault_is_a_sentence_too(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Studio, "lens", lambda *_: 1 / 0)
    with serving([models["gpt2"]]) as studio:
        info = studio.run("gpt2", text="the cat")
        answer = studio.client.get(f"/api/traces/{info['id']}/lens")
    assert sentence(answer, 500).startswith("internal error at /api/traces/")


def test_values_are_sent_in_parts(bounded: Served) -> None:
    info = bounded.run("en-fr", text="Hello.", target="Bonjour.")
    path = f"/api/traces/{info['id']}/values/encoder.embedding.output"
    assert "ask for a slice" in sentence(bounded.client.get(path), 413)
    assert bounded.client.get(path, params={"at": "0,0"}).status_code == 200
    path = f"/api/traces/{info['id']}/values/head.vocabulary.logits"
    assert "ask for a slice" in sentence(bounded.client.get(path, params={"format": "binary"}), 413)


def test_old_traces_are_forgotten(bounded: Served) -> None:
    numbers = [bounded.run("en-fr", text="Hi.", target="a")["id"] for _ in range(5)]
    statuses = [bounded.client.get(f"/api/traces/{number}").status_code for number in numbers]
    assert statuses == [404, 404, 200, 200, 200]
    assert bounded.studio.traces.size <= SMALL.all_trace_bytes


def test_a_trace_that_is_too_large_is_not_kept(models: dict[str, Model]) -> None:
    with serving([models["en-fr"]], replace(SMALL, trace_bytes=100_000)) as studio:
        assert "give a shorter one" in sentence(ask(studio, target="Salut."), 413)
        assert studio.studio.traces.size == 0


def slowly(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Every step of a search takes this long."""
    step = search_trace.Sampling.step

    def late(search: search_trace.Sampling) -> None:
        time.sleep(seconds)
        step(search)

    monkeypatch.setattr(search_trace.Sampling, "step", late)


SLOW = {"text": "Hello.", "generate": {"beams": 1, "max_new_tokens": 24}}


def test_a_deadline(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    slowly(monkeypatch, 0.4)
    with serving([models["en-fr"]], replace(SMALL, seconds=0.5)) as studio:
        begin = time.monotonic()
        answer = ask(studio, **SLOW)
        assert "longer than 0.5 s" in sentence(answer, 503)
        assert answer.headers["retry-after"] == "1"
        assert time.monotonic() - begin < 3


def test_more_than_can_wait_are_told_to_come_again(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """One works, one waits, the third is refused; and when these are gone, the next is served."""
    slowly(monkeypatch, 0.1)
    with serving([models["en-fr"]], replace(SMALL, seconds=20.0)) as studio, ThreadPoolExecutor(3) as threads:

        def one() -> httpx.Response:
            return httpx.post(
                f"{studio.address}/api/run",
                json={"model": "en-fr", **SLOW},
                timeout=60,
                trust_env=False,
                headers=studio.headers,
            )

        answers = [threads.submit(one) for _ in range(3)]
        found = sorted((each.result() for each in answers), key=lambda answer: answer.status_code)
        assert [answer.status_code for answer in found] == [200, 200, 429]
        assert "try again soon" in sentence(found[2], 429)
        assert found[2].headers["retry-after"] == "1"
        assert ask(studio, target="Salut.").status_code == 200


def test_who_leaves_stops_the_work(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    slowly(monkeypatch, 0.1)
    checks: list[float] = []
    plain = Deadline.check

    def counted(ticket: Deadline) -> None:
        checks.append(time.monotonic())
        plain(ticket)

    monkeypatch.setattr(Deadline, "check", counted)
    with serving([models["en-fr"]], replace(SMALL, seconds=60.0)) as studio:
        body = json.dumps({"model": "en-fr", **SLOW}).encode()
        with socket.create_connection(("127.0.0.1", int(studio.address.rpartition(":")[2]))) as line:
            line.sendall(
                b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n" % (studio.token.encode(), len(body)) + body
            )
            wait_until(lambda: len(checks) > 2)
        left = time.monotonic()
        time.sleep(0.6)
        assert max(checks) < left + 0.5, "it went on for nobody"
        assert ask(studio, target="Salut.").status_code == 200


def test_who_leaves_a_stream_stops_it(models: dict[str, Model]) -> None:
    with serving([models["gpt2"]], replace(SMALL, seconds=60.0, tokens=256)) as studio:
        body = {"model": "gpt2", "text": "the cat", "max_new_tokens": 50}
        with studio.client.stream("POST", "/api/generate", json=body) as answer:
            assert next(answer.iter_lines()) == "event: token"
        answers = [ask(studio, model="gpt2", text="the").status_code for _ in range(3)]
        assert answers == [200] * 3


def test_the_desk_forgets_nobody() -> None:
    """Errors, late work and full queues each leave their place."""

    async def here() -> bool:
        return False

    async def all_of_it() -> None:
        desk = WorkQueue(SMALL)
        assert await desk.do(lambda _: 3, here) == 3
        with pytest.raises(ZeroDivisionError):
            await desk.do(lambda _: 1 // 0, here)
        assert desk.n_inside == 0
        desk.close()
        desk = WorkQueue(replace(SMALL, seconds=0.3))
        with pytest.raises(HTTPRefusal, match="longer than"):
            await desk.do(_until_stopped, here)
        with pytest.raises(HTTPRefusal, match="longer than"):
            async for _ in desk.stream(lambda ticket: iter(lambda: _until_stopped(ticket), None)):
                pass
        await asyncio.sleep(0.1)
        assert desk.n_inside == 0
        desk.close()

    asyncio.run(all_of_it())


def _until_stopped(ticket: Deadline) -> None:
    with contextlib.suppress(Stopped):
        while True:
            ticket.check()
            time.sleep(0.01)
    raise Stopped


def test_two_hundred_at_once(models: dict[str, Model]) -> None:
    """All are answered, or told to come again; none hangs, and memory stays where the bounds are."""
    limits = Limits(all_trace_bytes=50_000_000)
    with serving([models["en-fr"]], limits) as studio:
        ask(studio)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        statuses: list[int] = []
        start = threading.Barrier(200)

        def one() -> None:
            start.wait(timeout=60)
            body = {"model": "en-fr", "text": SENTENCE, "target": "L'animal était fatigué."}
            answer = httpx.post(
                f"{studio.address}/api/run", json=body, timeout=120, trust_env=False, headers=studio.headers
            )
            statuses.append(answer.status_code)

        at_once(*[one] * 200)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
        assert len(statuses) == 200
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) >= limits.working + limits.waiting
        assert studio.studio.traces.size <= limits.all_trace_bytes
        assert grown < 400, f"{grown:.0f} MB more: traces may take 50, 200 clients some of the rest"


def test_two_threads_do_not_mix(served: Served) -> None:
    """What one asks for while another changes the same network is what it gets alone."""
    plain = served.run("en-fr", text=SENTENCE, target="L'animal.")["places"]
    edits = [{"kind": "off", "what": "positions"}]
    changed = served.run("en-fr", text=SENTENCE, target="L'animal.", edits=edits)["places"]
    assert plain != changed

    def one(edited: bool) -> bool:
        body = {"model": "en-fr", "text": SENTENCE, "target": "L'animal.", "edits": edits if edited else []}
        answer = httpx.post(f"{served.address}/api/run", json=body, timeout=60, trust_env=False, headers=served.headers)
        return answer.json()["places"] == (changed if edited else plain)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(one, [i % 2 == 0 for i in range(16)]))


def test_the_page_that_is_not_built(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr("cutaway.studio.server.PAGE", tmp_path)
    with serving([models["gpt2"]]) as studio:
        assert "make web" in sentence(studio.client.get("/"), 503)


def test_versions_agree(served: Served) -> None:
    assert served.client.get("/api/openapi.json").json()["info"]["version"] == cutaway.__version__
