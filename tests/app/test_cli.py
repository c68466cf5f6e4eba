"""The command line as a user runs it."""

import json
import os
import subprocess
import sys

import pytest

import cutaway


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cutaway", *arguments],
        capture_output=True, encoding="utf-8", timeout=60, env=os.environ | environment,
    )  # fmt: skip


def processor_seconds(*arguments: str) -> float:
    """What a command costs, not counting the time it waits for other tests on these cores; the best of four."""
    seconds = []
    for _ in range(4):
        before = os.times()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=60)
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(seconds)


def test_version() -> None:
    assert run("--version").stdout == f"cutaway {cutaway.__version__}\n"


def test_help_is_quick_and_does_not_load_torch() -> None:
    assert processor_seconds("-m", "cutaway", "--help") < 0.3
    code = "import sys, cutaway.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_importing_cutaway_does_not_load_torch() -> None:
    code = "import sys, cutaway; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("command", ["notes", "quiz", "models"])
def test_every_command_has_help(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert command in done.stdout


def test_models_gives_published_sizes_soon_after_torch_is_there() -> None:
    assert processor_seconds("-m", "cutaway", "models") - processor_seconds("-c", "import torch") < 0.5
    parameters = {model["name"]: model["parameters"] for model in json.loads(run("models", "--json").stdout)}
    published = {
        "transformer-base": 63.1e6, "transformer-big": 214e6, "bert-base": 109.5e6, "distilbert-base": 66.4e6,
        "gpt2": 124.4e6, "t5-small": 60.5e6, "vit-base": 86.6e6, "llama-2-7b": 6.74e9,
    }  # fmt: skip
    for name, number in published.items():
        assert parameters[name] == pytest.approx(number, rel=2e-3), name


@pytest.mark.parametrize("width", ["80", "140"])
def test_models_table_fits_the_terminal(width: str) -> None:
    lines = run("models", COLUMNS=width).stdout.splitlines()
    assert max(map(len, lines)) <= int(width)
    row = next(line for line in lines if line.startswith("bert-base "))
    assert "109.5 M" in row, "a row is one line"


def test_one_model_part_by_part() -> None:
    out = run("models", "bert-base").stdout
    assert "109,482,240" in out
    assert "feed-forward   56,669,184" in out


def test_models_json_adds_up() -> None:
    for model in json.loads(run("models", "--json").stdout):
        assert sum(model["parameters_by_part"].values()) == model["parameters"]
        assert model["flops_per_token_training"] == 3 * model["flops_per_token_forward"]
        assert model["weight_bytes_float32"] == 4 * model["parameters"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "bert-bsae"], "no preset 'bert-bsae'; did you mean 'bert-base'?"),
        (["models", "--context", "0"], "Invalid value for '--context'"),
        (["model"], "No such command 'model'"),
        (["models", "--jsn"], "No such option"),
    ],
)
def test_mistakes_are_one_clear_message_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_reader_that_stops_early_is_no_error() -> None:
    reader = subprocess.run(
        f"{sys.executable} -m cutaway models | head -n 1", shell=True, capture_output=True, encoding="utf-8", timeout=60
    )  # fmt: skip
    assert reader.stderr == ""
    assert reader.stdout.startswith("model")


def test_a_terminal_without_unicode_still_works() -> None:
    done = run("models", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "bert-base" in done.stdout
