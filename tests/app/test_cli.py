"""The command line as a user runs it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command

import cutaway
from cutaway.cli.main import app
from cutaway.cli.options import EngineOptions
from cutaway.cli.plot import plot, tick
from cutaway.models.presets import PRESETS
from tests.support import commands


def run(*arguments: str, **environment: str) -> commands.Done:
    return commands.run(arguments, environment=environment)


def within(limit: float, seconds: Callable[[], float]) -> bool:
    """Whether one of six measurements is: tests beside this one slow it down, nothing makes it faster than it is."""
    return any(seconds() < limit for _ in range(6))


def processor_seconds(*arguments: str) -> float:
    """What a command costs, not counting the time it waits for other tests on these cores."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=60)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_version() -> None:
    assert run("--version").out == f"cutaway {cutaway.__version__}\n"


def test_help_is_quick_and_does_not_load_torch() -> None:
    assert within(0.3, lambda: processor_seconds("-m", "cutaway", "--help"))
    code = "import sys, cutaway.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_importing_cutaway_does_not_load_torch() -> None:
    code = "import sys, cutaway; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_every_command_has_help_and_none_needs_torch() -> None:
    code = """
import sys
from typer.testing import CliRunner
from cutaway.cli.main import COMMANDS, app
names = [command.__name__ for commands in COMMANDS.values() for command in commands]
assert len(names) == 23
for name in names:
    done = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, name
    assert f"cutaway {name}" in done.output and "--help" in done.output, done.output
sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert within(0.3, lambda: processor_seconds("-m", "cutaway", "translate", "--help"))


def help_of(*words: str) -> set[str]:
    """The long options in the help of a command."""
    return set(re.findall(r"--[a-z-]+", run(*words, "--help", COLUMNS="200").out))


def test_the_help_of_a_task_leaves_out_what_other_tasks_take() -> None:
    pairs = {"--source", "--target", "--pairs", "--columns", "--valid-source", "--valid-target", "--valid-pairs"}
    text = {"--text", "--valid-text"}
    every = help_of("train")
    assert pairs | text | {"--out", "--preset", "--from", "--steps", "--set", "--write-config"} < every
    for task, others in (("translate", text), ("classify", text), ("complete", pairs)):
        assert help_of("train", task) == every - others
        assert help_of("train", "--seed", "3", task) == every - others
    shown = run("train", "--help", COLUMNS="100").out
    assert all(f"─ {title} ─" in shown for title in ("Data of translate and classify", "Data of complete", "Model"))


def test_models_gives_published_sizes_soon_after_torch_is_there() -> None:
    code = """
import sys, time, torch
from cutaway.cli.main import main
begin, sys.argv = time.process_time(), ["cutaway", "models"]
try:
    main()
finally:
    print(time.process_time() - begin, file=sys.stderr)
"""

    def seconds() -> float:
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
        return float(done.stderr)

    assert within(0.5, seconds)
    parameters = {model["name"]: model["parameters"] for model in json.loads(run("models", "--json").out)}
    published = {
        "transformer-base": 63.1e6, "transformer-big": 214e6, "bert-base": 109.5e6, "distilbert-base": 66.4e6,
        "gpt2": 124.4e6, "t5-small": 60.5e6, "vit-base": 86.6e6, "llama-2-7b": 6.74e9,
    }  # fmt: skip
    for name, number in published.items():
        assert parameters[name] == pytest.approx(number, rel=2e-3), name


@pytest.mark.parametrize("width", ["30", "40", "60", "80", "140"])
def test_models_table_fits_the_terminal(width: str) -> None:
    lines = run("models", COLUMNS=width).out.splitlines()
    assert max(map(len, lines)) <= int(width)
    row = next(line for line in lines if line.startswith("bert-base "))
    assert "109.5 M" in row, "a row is one line"
    names = [line.split()[0] for line in lines[1 : 1 + len(PRESETS)]]
    assert names == list(PRESETS), "no name is cut"
    assert "…" not in "\n".join(lines)
    for title, explained in (("FLOPs", "to process one token"), ("training", "3 × forward"), ("cache", "Cache in")):
        assert (title in lines[0].split()) == (explained in " ".join(lines)), "what is explained is shown"


def test_a_terminal_narrower_than_a_name_wraps_it_itself() -> None:
    assert "transformer-tiny" in run("models", COLUMNS="10").out


def test_an_image_has_its_own_context() -> None:
    vit, gpt2 = json.loads(run("models", "vit-base", "gpt2", "--json").out)
    assert (vit["context"], gpt2["context"]) == (197, 512)
    assert "with 512 in context (197 for images" in " ".join(run("models", COLUMNS="80").out.split())
    assert "with 197 in context, the places of an image" in " ".join(run("models", "vit-base").out.split())


def test_one_model_part_by_part() -> None:
    out = run("models", "bert-base").out
    assert "109,482,240" in out
    assert "\n\npart " in out, "a blank line between the two tables"
    assert "feed-forward   56,669,184" in out


def test_models_json_adds_up() -> None:
    for model in json.loads(run("models", "--json").out):
        assert sum(model["parameters_by_part"].values()) == model["parameters"]
        assert model["flops_per_token_training"] == 3 * model["flops_per_token_forward"]
        assert model["weight_bytes_float32"] == 4 * model["parameters"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "bert-bsae"], "no preset 'bert-bsae'; did you mean 'bert-base'?"),
        (["models", "BERT-base"], "no preset 'BERT-base'; did you mean 'bert-base'?"),
        (["models", "bert"], "no preset 'bert'; did you mean 'bert-base' or 'bert-large' or 'bert-tiny'?"),
        (["notes", "--jsn"], "No such option: --jsn"),
        (["models", "--context", "0"], "Invalid value for '--context'"),
        (["model"], "No such command 'model'"),
        (["models", "--jsn"], "No such option"),
        (["translate", "--num-beams", "3"], "No such option: --num-beams; cutaway calls it --beams (see "),
        (["translate", "--num_return_sequences", "3"], "cutaway calls it --n-best (see "),
        (["translate", "--max_tokens", "3"], "No such option: --max_tokens; cutaway calls it --max-tokens (see "),
        (["complete", "--max-new-tokens", "3"], "cutaway calls it --max-tokens (see "),
        (["complete", "--max-length", "3"], "--max-tokens, which counts only the tokens that are written (see "),
        (["complete", "--do-sample"], "does so with any of --temperature, --top-k"),
        (["fill", "--top-k", "3"], "cutaway calls it --top (see "),
        (["translate", "--batch-size", "3"], "texts are put into batches by their number of tokens"),
        (["train", "translate", "--batch-size", "3"], "it is a setting: --set batches.tokens=…"),
        (["train", "translate", "--lr", "3"], "it is a setting: --set optimizer.rate=…"),
        (["models", "--batch-size", "3"], "No such option: --batch-size (see "),
        (["translate", "Hi", "--device", "gpu"], "device='gpu' is no device; choose auto, cpu, cuda (of several GPUs"),
        (["see", "Hi", "--device", "cuda:99"], "device='cuda:99', but torch sees "),
        (["studio", "--no-browser", "--device", "tpu"], "device='tpu' is no device; choose auto, cpu"),
        (["translate", "Hi", "--dtype", "int4"], "Invalid value for '--dtype'"),
        (
            ["train", "translate", "--out", "x", "--device", "gpu"],
            "machine.device='gpu' is no device; choose auto",
        ),
    ],
)
def test_mistakes_are_one_clear_message_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1
    assert "Traceback" not in done.err
    assert done.out == ""


def test_settings_that_are_hinted_at_exist() -> None:
    from cutaway.cli.hints import SETTINGS
    from cutaway.training.config import TrainConfig

    for key in SETTINGS:
        section, _, name = key.partition(".")
        assert hasattr(getattr(TrainConfig(), section), name)


LOOKED_AT = """
import builtins, rlcompleter, sys
import cutaway
before = dir(cutaway)
assert "torch" not in sys.modules
assert rlcompleter.Completer({"cutaway": cutaway}).complete("cutaway.__vers", 0) == "cutaway.__version__"
assert "torch" not in sys.modules
assert rlcompleter.Completer({"cutaway": cutaway}).complete("cutaway.lo", 0).startswith("cutaway.load")
names = {}
exec("from cutaway import *", names)
after = dir(cutaway)
assert before == after, set(after) - set(before)
public = [name for name in before if not name.startswith("_")]
assert sorted({*names} - {"__builtins__"}) == sorted([*public, "__version__"])
assert {"__all__", "__doc__", "__file__", "__name__", "__path__", "__spec__", "__version__"} <= {*before}
print(*public)
"""


def test_the_package_shows_its_public_names() -> None:
    done = subprocess.run([sys.executable, "-c", LOOKED_AT], capture_output=True, text=True, timeout=60)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.split() == sorted(set(cutaway.__all__) - {"__version__"})


@pytest.mark.parametrize(
    "command",
    [
        "translate", "summarize", "complete", "chat", "fill", "classify", "embed", "search", "answer", "recognize",
        "evaluate", "compare", "see", "studio", "train", "resume",
    ],
)  # fmt: skip
def test_every_command_that_computes_takes_a_device(command: str) -> None:
    options = {name for each in get_command(app).commands[command].params for name in each.opts}
    assert "--device" in options
    assert ("--dtype" in options) == (command not in ("train", "resume"))


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda"])
def test_what_only_cpus_can_do_is_done_on_one_where_auto_may_choose(device: str) -> None:
    where = "cpu" if device == "auto" else device
    assert EngineOptions(device=device, engine="ctranslate2").chosen_device == where
    assert EngineOptions(device=device, precision="int8").chosen_device == where
    assert EngineOptions(device=device, engine="native", precision="float32").chosen_device == device


def test_a_reader_that_stops_early_is_no_error() -> None:
    writer = subprocess.Popen(
        [sys.executable, "-m", "cutaway", "notes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip
    writer.stdout.close()  # before it writes
    assert writer.stderr.read() == b""
    writer.stderr.close()
    assert writer.wait(timeout=60) == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes; one command is tested without")
@pytest.mark.parametrize("command", ["models", "models --json", "notes --json", "notes 6", "quiz --answers", "--help"])
def test_no_reader_of_any_command_is_no_error(command: str, tmp_path: Path) -> None:
    """Each of them, however short, finds nobody there."""
    os.mkfifo(tmp_path / "pipe")
    writer = commands.Command(command.split(), tmp_path / "log", out=tmp_path / "pipe")
    (tmp_path / "pipe").open("rb").close()
    done = writer.wait(60)
    assert (done.code, done.err) == (0, "")


@pytest.mark.skipif(
    not os.path.exists("/dev/full"),
    reason="/dev/full, the device that is always full, is Linux's; elsewhere no full disk can be had",
)
@pytest.mark.parametrize("command", ["models --json", "notes", "--version"])
def test_a_full_disk_is_told_in_one_line(command: str, tmp_path: Path) -> None:
    done = commands.run(command.split(), tmp_path / "log", out=Path("/dev/full"))
    assert done.code == 2
    assert done.err.startswith("Error: the output could not be written: No space left on device")
    assert len(done.err.splitlines()) == 1


def test_control_c_is_quiet_from_the_first_line_of_main() -> None:
    code = """
import sys
from unittest import mock
from cutaway.cli.main import main
with mock.patch("gc.set_threshold", side_effect=KeyboardInterrupt):
    main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=60)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_terminal_without_unicode_still_works() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "cutaway", "models"], capture_output=True, encoding="ascii", env=environment, timeout=60
    )  # fmt: skip
    assert done.returncode == 0
    assert "bert-base" in done.stdout


def test_the_ends_of_an_axis_are_read_at_a_glance() -> None:
    ends = [
        (7.95374, 14.5),
        (22.4762, 14.5),
        (34.5312, 34.5312),
        (0.0, 34.5312),
        (9.1234, 7.2),
        (1, 12344),
        (12345, 12344),
    ]
    assert [tick(*end) for end in ends] == ["8", "22.5", "34.5", "0", "9.12", "1", "12,345"]
    assert (tick(-1e-9, 3.0), tick(0.000123456, 0.0001), tick(5.0, 0.0)) == ("0", "0.000123", "5")
    lines = plot([[(7.95374, 1.0), (22.4762, 30.0)]], 20, 3, low=0.0)
    assert lines[0].startswith("30 ┤")
    assert lines[-1].split() == ["8", "22.5"]
