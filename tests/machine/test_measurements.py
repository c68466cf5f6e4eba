"""Measurements are kept by machine, made again when they can't be trusted, and disturb nothing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cutaway.machine import measurements
from cutaway.machine.measurements import Numbers, best_of, measured


class Counted:
    """A measurement that knows how often it was made."""

    def __init__(self, **numbers: float) -> None:
        self.numbers, self.n = numbers or {"x": 2.0}, 0

    def __call__(self) -> Numbers:
        self.n += 1
        return self.numbers


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measurements, "_known", {})
    return tmp_path / "cache" / "machine"


def again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another process would ask: nothing is known but what lies in the cache."""
    monkeypatch.setattr(measurements, "_known", {})


def test_it_is_made_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Counted(fast=3.0, slow=1.5)
    assert measured("thing", measure) == measured("thing", measure) == {"fast": 3.0, "slow": 1.5}
    again(monkeypatch)
    assert measured("thing", measure) == {"fast": 3.0, "slow": 1.5}
    assert measure.n == 1
    (file,) = cache.iterdir()
    kept = json.loads(file.read_text())
    assert kept["machine"]["torch"] == torch.__version__
    assert kept["measured"] == {"thing": {"fast": 3.0, "slow": 1.5}}


@pytest.mark.parametrize("change", ["threads", "torch", "processor"])
def test_another_machine_measures_again(cache: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    measure = Counted()
    measured("thing", measure)
    if change == "threads":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 17)
    elif change == "torch":
        monkeypatch.setattr(torch, "__version__", "9.9")
    else:
        monkeypatch.setattr(measurements.processor, "identity", lambda: ("another",))
    measured("thing", measure)
    assert measure.n == 2
    assert len(list(cache.iterdir())) == 2  # and the first one's stays


def _first(change: Callable[[dict[str, object]], object]) -> Callable[[Path], object]:
    def damage(file: Path) -> None:
        data = json.loads(file.read_text())
        change(data)
        file.write_text(json.dumps(data))

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_text(""),
    "cut": lambda file: file.write_text(file.read_text()[:-20]),
    "bytes": lambda file: file.write_bytes(b"\xff\xfe\x00"),
    "a list": lambda file: file.write_text("[]"),
    "huge": lambda file: file.write_text(" " * 200_000 + file.read_text()),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
    "of another machine": _first(lambda data: data["machine"].update(processor=["another"])),  # type: ignore[attr-defined]
    "negative": _first(lambda data: data["measured"].update(thing={"x": -1.0})),  # type: ignore[attr-defined]
    "text": _first(lambda data: data["measured"].update(thing={"x": "fast"})),  # type: ignore[attr-defined]
    "true": _first(lambda data: data["measured"].update(thing={"x": True})),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_can_not_be_trusted_is_measured_again(cache: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    measure = Counted()
    measured("thing", measure)
    (file,) = cache.iterdir()
    DAMAGES[damage](file)
    again(monkeypatch)
    assert measured("thing", measure) == {"x": 2.0}
    assert measure.n == 2


def test_a_cache_that_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(measurements, "_known", {})
    measure = Counted()
    assert measured("thing", measure) == measured("thing", measure) == {"x": 2.0}
    assert measure.n == 1


@pytest.mark.usefixtures("cache")
def test_the_caller_does_not_disturb_it() -> None:
    """Autocast, inference mode and fake tensors hold for one thread, and the measurement has its own."""
    seen = []

    def measure() -> Numbers:
        x = torch.ones(2, 2)
        seen.append(((x @ x).dtype, type(x), torch.is_inference_mode_enabled()))
        return {"x": 1.0}

    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16), FakeTensorMode():
        measured("thing", measure)
    assert seen == [(torch.float32, torch.Tensor, False)]


@pytest.mark.usefixtures("cache")
def test_measuring_disturbs_nothing() -> None:
    """Neither random numbers nor threads: what a program computes must not depend on whether it was measured."""
    from cutaway.cli.display.machine import measure_all

    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    measure_all()
    torch.testing.assert_close(torch.rand(4), expected, rtol=0, atol=0)
    assert torch.get_num_threads() == threads


@pytest.mark.usefixtures("cache")
def test_a_failure_is_the_callers() -> None:
    def measure() -> Numbers:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        measured("thing", measure)


def test_the_shortest_time_counts() -> None:
    clock = iter([0.0, 5.0, 10.0, 11.0, 20.0, 22.0, 30.0, 38.0, *(x for n in range(100) for x in (n, n + 50.0))])
    times = best_of({"a": lambda: None, "b": lambda: None}, seconds=0.0, clock=lambda: next(clock))
    assert times == {"a": 2.0, "b": 1.0}  # rounds: 5 and 1, 2 and 8
