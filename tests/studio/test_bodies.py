"""Bodies that are no question: every one gets a sentence, whatever stands in it."""

import contextlib
import json
from typing import Any

import httpx
import pytest

from cutaway.errors import CutawayError
from cutaway.seeing.interventions.edits import Edit
from cutaway.seeing.notes import notes
from tests.support.studio_server import Served, sentence

LONG = "1" + "0" * 300


def post(served: Served, content: bytes | str, path: str = "/api/run", **headers: str) -> httpx.Response:
    data = content.encode() if isinstance(content, str) else content
    return served.client.post(path, content=data, headers={"Content-Type": "application/json", **headers})


def edit(edit: str) -> str:
    return '{"model": "gpt2", "text": "the cat", "edits": [' + edit + "]}"


def numbers(inputs: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the numbers of a worked example stand."""
    if isinstance(inputs, dict | list):
        items = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
        return [found for key, value in items for found in numbers(value, (*place, key))]
    return [place] if not isinstance(inputs, str | bool) else []


def changed(inputs: Any, place: tuple[Any, ...], new: Any) -> Any:
    inputs = json.loads(json.dumps(inputs))
    inside = inputs
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = new
    return inputs


@pytest.mark.parametrize("number", [record["number"] for record in notes.data()["examples"]])
def test_no_number_of_a_worked_example_is_too_long_to_be_refused(number: int, served: Served) -> None:
    inputs = next(record["inputs"] for record in notes.data()["examples"] if record["number"] == number)
    for place in numbers(inputs):
        for new in (10**300, -(10**300), 10**400, 10**25, float("inf"), 5e-324, 1e308):
            with contextlib.suppress(CutawayError):
                notes.reworked(number, changed(inputs, place, new))
        asked = json.dumps({"inputs": changed(inputs, place, 10**300)})
        sentence(post(served, asked, f"/api/notes/{number}"), 422)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (edit(f'{{"kind": "scale", "value": "*.heads", "by": {LONG}}}'), "301 digits"),
        (edit('{"kind": "\\ud800"}'), "half of a surrogate pair"),
        (edit('{"kind": "zero", "value": "\\udfff"}'), "half of a surrogate pair"),
        (edit('{"kind": "zero", "\\ud800": 1}'), "half of a surrogate pair"),
        ('{"model": "gpt2", "text": "a", "\\ud800": 1}', "half of a surrogate pair"),
        ('{"model": "gpt2", "text": NaN}', "NaN is no number of JSON"),
        ('{"model": "gpt2", "text": "a", "prefix": [-Infinity]}', "-Infinity is no number of JSON"),
        ('{"model": "gpt2", "text": "a", "generate": {"length_penalty": 1e400}}', "1e400 is too large"),
        ("[" * 40 + "]" * 40, "deeper than"),
        ("[" * 30_000 + "]" * 30_000, "deeper than"),
        ('{"model": "gpt2", "edits": [' + "[]," * 60_000 + "[]]}", "more than 50,000 values"),
        ('{"model": "gpt2", "a\\nb": 1}', "a\\nb: extra inputs"),
        ("", "the body is empty"),
        ('{"model": "gpt2"', "the body is not JSON"),
        ("\ufeff{}", "the body is not JSON"),
    ],
)  # fmt: skip
def test_what_is_no_question_gets_a_sentence(body: str, said: str, served: Served) -> None:
    assert said in sentence(post(served, body), 422)


def test_bodies_are_utf8(served: Served) -> None:
    assert "not UTF-8" in sentence(post(served, b'{"model": "\xff"}'), 422)
    assert "not UTF-8" in sentence(post(served, '{"model": "gpt2"}'.encode("utf-16")), 422)
    for headers in ({"Content-Type": "application/json; charset=latin-1"}, {"Content-Encoding": "gzip"}):
        assert "UTF-8" in sentence(post(served, "{}", **headers), 415)
    told = post(served, '{"model": "gpt2", "text": "the cat"}', **{"Content-Type": 'application/json; charset="UTF-8"'})
    assert told.status_code == 200


def test_wrong_types_are_refused(served: Served) -> None:
    sentence(post(served, '{"inputs": 10}', "/api/notes/1"), 422)
    for value in ("null", "true", "3", '"a"', "[]", "{}", "[[1]]", '{"a": {}}', "0.5", "-1"):
        for name in ("model", "pair", "prefix", "generate", "edits"):
            answer = post(served, f'{{"model": "gpt2", "text": "the cat", "{name}": {value}}}')  # the last of two holds
            assert answer.status_code < 500, (name, value)
        for key in ("kind", "value", "by", "at", "to", "head", "what", "where", "trace"):
            answer = post(served, edit(f'{{"kind": "zero", "value": "*.heads", "{key}": {value}}}'))
            assert answer.status_code < 500, (key, value)


@pytest.mark.parametrize("kind", [{"kind": "scale", "by": 10**400}, {"kind": "set", "at": [0], "to": -(10**400)}])
def test_a_number_that_no_float_holds_is_an_error_of_the_edit(kind: dict[str, Any]) -> None:
    with pytest.raises(CutawayError, match=r"edit\.(by|to) is -?10+… \(int\); expected a number that a float holds"):
        Edit.from_json({"value": "*", **kind})
