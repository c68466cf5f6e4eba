"""`cutaway machine`, as a bug report begins with it; and commands that have no need to measure."""

import json
from pathlib import Path

import pytest
import torch

from tests.support import commands


def test_it_shows_the_machine(tmp_path: Path) -> None:
    done = commands.run(["machine"], tmp_path / "log")
    assert done.code == 0, done.err
    for word in ("processor", "float32", "int8", "memory", "kernels", "GFLOP/s", "What follows", "engine", "1.3 ×"):
        assert word in done.out


def test_it_tells_other_programs(tmp_path: Path) -> None:
    done = commands.run(["machine", "--json"], tmp_path / "log")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["versions"]["torch"] == torch.__version__
    assert found["measured"]["products"]["float32"] > 1e8  # 0.1 GFLOP/s: any machine does more
    assert found["choices"]["training, small models"]["chosen"] in ("float32", "bfloat16")
    assert (found["kernels"] is None) == (found["kernels_missing"] is not None)


def test_it_measures_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    kept = []
    for words in (["machine"], ["machine"], ["machine", "--again"]):
        done = commands.run([*words, "--json"], tmp_path / "log", environment={"CUTAWAY_CACHE": str(cache)})
        assert done.code == 0, done.err
        kept.append(json.loads(done.out)["measured"])
    assert kept[0] == kept[1] != kept[2]


@pytest.mark.parametrize("words", [["machine"], ["models", "bert-tiny"]])
def test_slips_are_named(tmp_path: Path, words: list[str]) -> None:
    done = commands.run(words, tmp_path / "log", environment={"CUTAWAY_PRECISON": "float32"})
    assert done.code == 0
    assert done.err.startswith("Warning: cutaway reads no CUTAWAY_PRECISON (known: CUTAWAY_PRECISION, ")


@pytest.mark.parametrize(
    ("name", "value"), [("CUTAWAY_PRECISION", "half"), ("CUTAWAY_KERNELS", "sse9"), ("CUTAWAY_THREADS", "many")]
)
def test_a_forced_choice_that_is_none_is_one_sentence(tmp_path: Path, name: str, value: str) -> None:
    done = commands.run(["machine"], tmp_path / "log", environment={name: value})
    assert done.code == 2
    assert done.err.startswith(f"Error: {name}={value!r} is no ")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("words", [["--help"], ["info", "en-fr"], ["models", "gpt2"]])
def test_nothing_is_measured_without_need(tmp_path: Path, words: list[str]) -> None:
    done = commands.run(words, tmp_path / "log", environment={"CUTAWAY_CACHE": str(tmp_path / "cache")})
    assert done.code == 0, done.err
    assert not (tmp_path / "cache" / "machine").exists()
