"""Requests at random, near those that make sense: other values in place of good ones, bytes changed, other headers,
other
paths. Whatever is asked, the studio answers below 500, in JSON that anybody can read, and keeps the connection."""

import base64
import collections
import copy
import http.client
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tests.support.studio_server import Served

RAW = "raw JSON: "
"""Begins a string that is written as it is, for numbers that Python has no value for."""
NUMBERS = [
    0, 1, -1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 10**6, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63,
    2**64,
    -(2**63) - 1, 10**19, 10**20, 10**300, -(10**300), 10**309, 0.0, -0.0, 0.5, 1.0, 1 - 2**-53, 1e-9, 5e-324, 1e-308,
    1e38,
    3.5e38, 1e300, 1.7976931348623157e308, float("nan"), float("inf"), -float("inf"), f"{RAW}1e400", f"{RAW}-1E+999",
    f"{RAW}1e-999", f"{RAW}1{'0' * 5000}", f"{RAW}01", f"{RAW}.5", f"{RAW}1.", f"{RAW}0x10", f"{RAW}-0", f"{RAW}1_0",
]  # fmt: skip
TEXTS = [
    "", " ", "\n", "\x00", "a\x00b", "\x1b[31m", "\x7f", "\u2028", "\ufeff", "\ufffe", "\ud800", "a\udfff",
    "\udc00\ud800", "𝔘",
    "é" * 300, "e" + "\u0301" * 400, "\u202eabc", "a" * 199, "a" * 8000, "a" * 8001, "a" * 100_000, "the " * 300,
    "ß,🙂" * 500, "-inf",
    "nan", "true", "null", "1", "../../etc/passwd", "/dev/zero", "http://127.0.0.1/", "<script>", "</script>", "%00",
    "{{7*7}}",
    "*", "*.*", "**", "*" * 200, "*" * 201, "[", "[!" * 90, "[]", "?" * 50, "*.heads", "*.weights", "*.logits",
    "decoder", "*[!x]" * 40,
    "decoder.blocks.0.self_attention.weights", "decoder.blocks.0.output", "encoder.embedding.output",
    "head.vocabulary.logits",
    "zero", "scale", "set", "off", "patch", "replace", "mask", "scaling", "positions", "residual", "block", "gpt2",
    "bert", "vit",
    "en-fr", "GPT2", "trace", "aGk=", "%%", "iVBORw0KGgo=", "R0lGODlhAQABAAAAACw=",
]  # fmt: skip
OTHERS: list[Any] = [
    None, True, False, [], {}, [[]], [{}], {"": 0}, {"a": {"b": []}}, [0] * 300, ["a"] * 70, [None],
    {"__proto__": {}}, {"kind": "zero"},
    {"\ud800": 1}, {"a" * 300: 1}, f"{RAW}{'[' * 50}{']' * 50}", f"{RAW}{'[' * 5000}{']' * 5000}",
    f"{RAW}[{'0,' * 60_000}0]",
    f"{RAW}undefined", f"{RAW}'a'", f'{RAW}"\\x"', f'{RAW}"\\ud83d\\ude00"', f"{RAW}", f'{RAW}"a\nb"', f"{RAW}// a",
]  # fmt: skip
HEADERS = [
    {"Content-Type": "text/plain"}, {"Content-Type": ""}, {"Content-Type": "application/json; charset=utf-16"},
    {"Content-Type": "application/json;;;="}, {"Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Type": "multipart/form-data; boundary=x"}, {"Content-Type": "APPLICATION/JSON ; charset=UTF-8"},
    {"Content-Encoding": "gzip"}, {"Transfer-Encoding": "chunked"}, {"Content-Length": "0"}, {"Content-Length": "-1"},
    {"Content-Length": "99999999999999999999"}, {"Content-Length": "1, 2"}, {"Expect": "100-continue"},
    {"Expect": "200-ok"},
    {"Connection": "close"}, {"Connection": "Upgrade", "Upgrade": "websocket"}, {"Connection": "Upgrade",
    "Upgrade": "h2c"},
    {"Host": "evil.example"}, {"Host": ""}, {"Host": "localhost:1"}, {"Origin": "null"}, {"Origin": "http://localhost"},
    {"Authorization": ""}, {"Authorization": "Bearer x"}, {"Authorization": "Bearer " + "é" * 50},
    {"Range": "bytes=0-1"},
    {"Range": "bytes=99999999-,5-1"}, {"If-None-Match": "*"}, {"If-Modified-Since": "never"}, {"Accept": "image/png"},
    {"Accept-Encoding": "br;q=x"}, {"X-" + "a" * 500: "b" * 5000}, {"X-HTTP-Method-Override": "DELETE"},
    {"Forwarded": "host=evil"},
]  # fmt: skip
METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PROPFIND", "a"]
EDITS: list[dict[str, Any]] = [
    {"kind": "zero", "value": "decoder.blocks.0.self_attention.heads", "head": 1},
    {"kind": "scale", "value": "*.feedforward.output", "by": 0.5}, {"kind": "off", "what": "positions",
    "where": "decoder"},
    {"kind": "set", "value": "decoder.blocks.0.self_attention.weights", "at": [0, 1, 1, 0], "to": 0.5,
    "renormalise": True},
    {"kind": "set", "value": "decoder.blocks.0.self_attention.masked_scores", "at": [0, 1, 1, 0], "to": "-inf"},
    {"kind": "patch", "value": "decoder.blocks.0.output", "trace": "TRACE"},
]  # fmt: skip


@dataclass
class Asked:
    """One request. `body` is JSON, or bytes as they are."""

    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def content(self) -> bytes | None:
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return _written(self.body).encode(errors="surrogatepass")


def _written(value: Any) -> str:
    """JSON, with raw strings as they are."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    return value.removeprefix(RAW) if isinstance(value, str) and value.startswith(RAW) else json.dumps(value)


class Fuzzer:
    """A stream of requests to one studio, the same for the same seed, and what became of them."""

    def __init__(self, served: Served, seed: int, picture: bytes) -> None:
        self.served, self.chance = served, random.Random(seed)
        self.picture = base64.b64encode(picture).decode()
        self.notes = served.client.get("/api/notes").json()["examples"]
        self.statuses: collections.Counter[int] = collections.Counter()
        self.connection: http.client.HTTPConnection | None = None
        self._new_trace()

    def run(self, n: int) -> None:
        for i in range(n):
            if i % 200 == 0:
                self._new_trace()  # the studio forgets old ones
            self._ask(self._changed(self._good()))
        self._close()

    def _new_trace(self) -> None:
        info = self.served.run("gpt2", text="the cat sat")
        self.trace, self.values = info["id"], info["values"]

    def _good(self) -> Asked:
        """A request that makes sense."""
        chance, trace = self.chance, f"/api/traces/{self.trace}"
        value = chance.choice(self.values)
        at = ",".join(str(chance.randrange(n)) for n in value["shape"])
        text: dict[str, Any] = {"model": "gpt2", "text": "the cat sat"}
        note = chance.choice(self.notes)
        edits = [edit | ({"trace": self.trace} if "trace" in edit else {}) for edit in EDITS]
        writing = {"prefix": [5, 6], "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1}
        return chance.choice([
            Asked("POST", "/api/run", text | {"generate": {"max_new_tokens": 3, "beams": 2, "length_penalty": 0.5}}),
            Asked("POST", "/api/run", text | {"edits": chance.sample(edits, 2), "prefix": [7]}),
            Asked("POST", "/api/run", text | {"edits": chance.sample(edits, 1)}),
            Asked("POST", "/api/run", {"model": "bert", "text": "the cat", "pair": "sat"}),
            Asked("POST", "/api/run", {"model": "bahdanau", "text": "the cat", "target": "sat", "edits": []}),
            Asked("POST", "/api/run", {"model": "vit", "image": self.picture}),
            Asked("POST", "/api/next", text | writing | {"n": 5}),
            Asked("POST", "/api/beams", text | {"beams": 2, "max_new_tokens": 3, "length_penalty": 1.0, "prefix": [5]}),
            Asked("POST", "/api/generate", text | writing | {"max_new_tokens": 3, "sample": True, "seed": 1,
            "alternatives": 2}),
            Asked("POST", f"/api/notes/{note['number']}", {"inputs": note["inputs"]}),
            Asked("POST", "/api/notes/html", {"view": "#/notes", "other": {"number": note["number"],
            "inputs": note["inputs"]}}),
            Asked("GET", trace), Asked("GET", f"{trace}/lens"), Asked("GET", f"{trace}/rollout"), Asked("GET",
            f"{trace}/html"),
            Asked("GET", f"{trace}/explain/{value['name']}?at={at}"), Asked("GET",
            f"{trace}/values/{value['name']}?at={at}"),
            Asked("GET", f"{trace}/values/{value['name']}?format=binary"), Asked("GET", "/api/models"), Asked("GET",
            "/"),
            Asked("GET", "/api/notes"), Asked("GET", "/assets/none.js"),
        ])  # fmt: skip

    def _changed(self, asked: Asked) -> Asked:
        asked, chance = copy.deepcopy(asked), self.chance
        for _ in range(chance.choice([0, 1, 1, 1, 2, 4])):
            what = chance.random()
            if asked.body is not None and what < 0.75:
                asked.body = self._other_body(asked.body)
            elif what < 0.9:
                asked.path = self._other_path(asked.path)
            elif what < 0.98:
                asked.headers |= chance.choice(HEADERS)
            else:
                asked.method = chance.choice(METHODS)
        return asked

    def _other_body(self, body: Any) -> Any:
        chance = self.chance
        if isinstance(body, bytes) or chance.random() < 0.1:
            data = bytearray(body if isinstance(body, bytes) else _written(body).encode(errors="surrogatepass"))
            at = chance.randrange(len(data) + 1)
            data[at : at + chance.choice([0, 1, 5])] = chance.choice(
                [b"", b"\xff", b"\x00", b"{", b'"', b",", b"[" * 900, b"\xed\xa0\x80"]
            )
            return bytes(data)
        spots = list(_spots(body))
        if not spots or chance.random() < 0.05:
            return self._value()
        inside, key = chance.choice(spots)
        what = chance.random()
        if what < 0.8:
            inside[key] = self._value()
        elif what < 0.9:
            del inside[key]
        elif isinstance(inside, dict):
            inside[chance.choice([*TEXTS, "model", "text", "edits", "image", "pair"])] = self._value()
        else:
            inside *= chance.choice([2, 20, 300])
        return body

    def _value(self) -> Any:
        return copy.deepcopy(self.chance.choice(self.chance.choice([NUMBERS, NUMBERS, TEXTS, OTHERS])))

    def _other_path(self, path: str) -> str:
        """Another word, or another index."""
        place, mark, query = path.partition("?")
        chance = self.chance
        if mark and chance.random() < 0.7:
            found = chance.choice([
                *(str(number) for number in NUMBERS), *TEXTS, "0,0,0", ":", "0:", ":,:,:", "-1,-1",
                "0,:,1:99999999999999999999",
                "1:2:3", "9" * 199, "9" * 201, "٣,٣", ",,,,", " 1 ", "1e3", "--1", "0x1",
            ])  # fmt: skip
            name = chance.choice(["at", "format", "view", "a", "token"])
            return f"{place}?{chance.choice([f'{query}&', ''])}{name}={quote(found, errors='replace', safe='')[:9000]}"
        words = place.split("/")
        words[chance.randrange(1, len(words))] = quote(
            str(chance.choice([*TEXTS, *NUMBERS])), errors="replace", safe=""
        )[:9000]
        return "/".join(words) + mark + query

    def _ask(self, asked: Asked) -> None:
        content, headers = asked.content, {"Content-Type": "application/json", **self.served.headers, **asked.headers}
        lies = {
            "Content-Length",
            "Transfer-Encoding",
        } & asked.headers.keys()  # the connection says another length than it has
        if lies or asked.method in ("CONNECT", "TRACE") or asked.headers.get("Expect") or self.connection is None:
            self._close()
            self.connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=60)
        encoded = {name: value.encode("latin-1") for name, value in headers.items()}
        try:
            self.connection.request(asked.method, asked.path or "/", content, encoded)
            answer = self.connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise AssertionError(f"{error!r} for {_shown(asked)}") from error
        self._check(asked, answer, data)
        self.statuses[answer.status] += 1
        if lies or answer.will_close:
            self._close()

    def _check(self, asked: Asked, answer: http.client.HTTPResponse, data: bytes) -> None:
        said = f"{answer.status} {data[:300]!r} for {_shown(asked)}"
        assert answer.status < 500, said
        assert answer.headers["X-Content-Type-Options"] == "nosniff", said
        if answer.headers["Content-Type"] == "application/json" and asked.method != "HEAD":
            told = json.loads(data.decode(), parse_constant=lambda name: _fail(f"{name} in {said}"))
            if answer.status >= 400:
                assert list(told) == ["error"], said
                assert 0 < len(told["error"]) < 2000, said
                assert not set(told["error"]) & set("\n\r"), said
        elif answer.status >= 400:
            assert asked.method == "HEAD" or not data, said

    def _close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None


def _fail(said: str) -> None:
    raise AssertionError(said)


def _spots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON value that something stands in."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _spots(value[key])


def _shown(asked: Asked) -> str:
    return f"{asked.method} {asked.path[:200]} {asked.headers} {(asked.content or b'')[:600]!r}"
