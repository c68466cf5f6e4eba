"""Whatever the description allows may be asked, and much that it does not: nothing makes the studio fail."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from cutaway.model import Model
from cutaway.studio.limits import Limits
from tests.support.studio_server import Served, serving

OPERATIONS = [
    "GET /api/models", "POST /api/run", "GET /api/traces/{number}", "GET /api/traces/{number}/values/{name}",
    "GET /api/traces/{number}/explain/{name}", "GET /api/traces/{number}/lens", "GET /api/traces/{number}/rollout",
    "GET /api/traces/{number}/html", "POST /api/next", "POST /api/beams", "POST /api/generate", "GET /api/notes",
    "POST /api/notes/html", "POST /api/notes/{number}",
]  # fmt: skip


@pytest.fixture(scope="module")
def small(models: dict[str, Model]) -> Iterator[Served]:
    with serving([models["gpt2"], models["bert"]], Limits(seconds=20.0)) as studio:
        yield studio


def operations(served: Served) -> dict[str, schemathesis.schemas.APIOperation]:
    schema = schemathesis.openapi.from_url(f"{served.address}/api/openapi.json", headers=served.headers)
    found = [each.ok() for each in schema.get_all_operations()]
    return {f"{each.method.upper()} {each.path}": each for each in found}


def test_all_are_described(small: Served) -> None:
    assert list(operations(small)) == OPERATIONS


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_request_fails(name: str, small: Served) -> None:
    number = small.run("gpt2", text="the cat")["id"]
    operation = operations(small)[name]

    @given(case=operation.as_strategy())
    @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def ask(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = "gpt2"  # by chance it would never be one that is there
        if "{number}" in name and "traces" in name:
            case.path_parameters["number"] = number
        if "{name}" in name:
            case.path_parameters["name"] = "decoder.blocks.0.self_attention.weights"
        answer = case.call(timeout=60, headers=small.headers)
        assert answer.status_code < 500, answer.text
        assert answer.status_code < 400 or list(answer.json()) == ["error"]
        operation.validate_response(answer, case=case)

    ask()
