"""A few hundred of the requests at random that `make proof` sends by the ten thousand."""

from collections.abc import Iterator

import pytest

from cutaway.model import Model
from cutaway.studio.limits import Limits
from tests.support.api_fuzzer import Fuzzer
from tests.support.studio_server import Served, serving

FUZZED = ("gpt2", "bert", "bahdanau", "vit")
BOUNDS = Limits(traces=8, all_trace_bytes=50_000_000, body_seconds=0.2)  # some promise a body that never comes


@pytest.fixture(scope="module")
def fuzzed(models: dict[str, Model]) -> Iterator[Served]:
    with serving([models[name] for name in FUZZED], BOUNDS) as studio:
        yield studio


def test_requests_at_random(fuzzed: Served, picture: bytes) -> None:
    fuzzer = Fuzzer(fuzzed, 1, picture)
    fuzzer.run(200)
    assert fuzzer.statuses[200] > 25
    assert fuzzer.statuses[422] > 25
    assert fuzzer.statuses[400] > 3
