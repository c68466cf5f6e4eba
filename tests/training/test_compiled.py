"""torch.compile in a run: it learns what a plain run learns, and where it fails the run goes on and says why."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cutaway.training.run import train
from cutaway.training.watch import Watch
from tests.support import toy_runs as toy

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, while it traces
NOTHING_LEFT_TO_CHANCE = "model.dropout=0.0"  # compiled code draws what it drops otherwise


class Warned(Watch):
    def __init__(self) -> None:
        self.said: list[str] = []

    def warn(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def losses(data: toy.Corpus, out: Path, *settings: str) -> tuple[list[float], list[str]]:
    watch = Warned()
    outcome = train(toy.config(data, NOTHING_LEFT_TO_CHANCE, *settings), out, watch=watch)
    return [look["scores"]["loss"] for look in outcome.progress.validations], watch.said


def test_compiled_is_like_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured by torch.compile, without its slow code generator, and again when shapes change: the same code serves
    all lengths but 1, or alike on both sides. It adds in another order, of which ten steps of Adam make more."""
    data = toy.corpus(tmp_path / "data")
    plain, _ = losses(data, tmp_path / "plain")
    ran: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        ran.append(len(inputs))
        return torch._dynamo.lookup_backend("eager")(graph, inputs)

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    compiled, said = losses(data, tmp_path / "compiled", "machine.compile=true")
    assert 1 <= len(ran) <= 4
    assert said == []
    assert compiled == pytest.approx(plain, rel=1e-3)


def test_what_can_not_be_compiled_runs_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = toy.corpus(tmp_path / "data")
    plain, _ = losses(data, tmp_path / "plain")

    def broken(*_: Any) -> Any:
        raise RuntimeError("no C++ compiler was found\nand more of that")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=broken))
    compiled, said = losses(data, tmp_path / "compiled", "machine.compile=true")
    assert compiled == plain
    assert len(said) == 1
    assert said[0].startswith("torch.compile fails for this model here (backend='broken' raised:")
    assert said[0].endswith("; going on without it")
