"""50,000 requests to the studio, half by schemathesis from its description, half by our own fuzzer: none fails.

No answer is a 5xx, no connection is reset, and memory stays where it was after the first thousands.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings

from cutaway.model import Model
from tests.studio.conftest import models, picture  # noqa: F401  # fixtures
from tests.studio.test_fuzz import BOUNDS, FUZZED
from tests.studio.test_openapi import OPERATIONS, operations
from tests.support.api_fuzzer import Fuzzer
from tests.support.studio_server import Served, serving

SEED = 20_240
OURS, EACH = 26_000, 2_050  # requests; of each of the 12 operations that take something
ROOM = 300  # MB; what is kept may take 50, torch's allocator and Python's some of the rest

counts: Counter[int] = Counter()


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    return say


@pytest.fixture(scope="module")
def served(models: dict[str, Model]) -> Iterator[Served]:  # noqa: F811
    with serving([models[name] for name in FUZZED], BOUNDS) as studio:
        yield studio


def megabytes() -> int:
    """What this process, and the studio in it, has now."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) // 1000


def test_values_at_random(served: Served, picture: bytes, say: Any) -> None:  # noqa: F811
    fuzzer = Fuzzer(served, SEED, picture)
    fuzzer.run(OURS // 10)
    before = megabytes()
    for _ in range(9):
        fuzzer.run(OURS // 10)
        say(f"  {fuzzer.statuses.total():,} requests, {megabytes()} MB, {dict(fuzzer.statuses)}")
        assert megabytes() - before < ROOM
    counts.update(fuzzer.statuses)


@pytest.mark.parametrize("name", OPERATIONS)
def test_shapes_at_random(name: str, served: Served, say: Any) -> None:
    operation, statuses = operations(served)[name], Counter[int]()
    number, before = served.run("gpt2", text="the cat")["id"], megabytes()

    @seed(SEED)
    @given(case=operation.as_strategy())
    @settings(max_examples=EACH, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def ask(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = FUZZED[statuses.total() % len(FUZZED)]
        if "traces" in name:
            case.path_parameters["number"] = number
        if "{name}" in name:
            case.path_parameters["name"] = "decoder.blocks.0.self_attention.weights"
        answer = case.call(timeout=60, headers=served.headers)
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, answer.text
        assert answer.status_code < 400 or list(answer.json()) == ["error"]

    ask()
    counts.update(statuses)
    say(f"  {name}: {statuses.total():,} requests, {megabytes()} MB, {dict(statuses)}")
    assert megabytes() - before < ROOM


def test_they_were_fifty_thousand(say: Any) -> None:
    say(f"  {counts.total():,} requests: {dict(counts)}")
    assert counts.total() >= 50_000
