"""Every family, head and option of bench/parity.py: the same numbers as Hugging Face, and the same bits back."""

from pathlib import Path

import pytest

from bench.parity import CASES, LIMIT, Case, try_case
from cutaway.checkpoints.families import FAMILIES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case, tmp_path: Path) -> None:
    outcome = try_case(case, tmp_path)
    assert outcome.error == ""
    assert max(outcome.difference.values()) <= LIMIT, outcome
    assert outcome.bit_equal
    assert outcome.reloaded == 0


def test_every_architecture_has_a_case() -> None:
    """Those left out are other names of one that is there, or its sisters in a family that differs by config alone."""
    tried = {case.model for case in CASES}
    names = {name for family in FAMILIES for name in family.architectures}
    sisters = {name for name in names if name.startswith(("Mistral", "Qwen2"))}
    assert names - tried - sisters == {"T5WithLMHeadModel"}
