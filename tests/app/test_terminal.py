"""What files say reaches the terminal as letters: no escape sequence of theirs is ever obeyed."""

import ast
import io
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import cutaway
from cutaway.cli import boundary, pager, terminal
from cutaway.cli.main import main
from cutaway.cli.output import print_each
from cutaway.errors import CheckpointError
from cutaway.model import Model
from cutaway.models.config import Classifier
from tests.support import small_models as small

STEERING = "\x1b]0;owned\x07\x1b[2J\x9b1m\x7f\r\u2067"
SIGNS = ("\x1b]", "\x1b[2J", "\x9b", "\x07", "\x7f", "\r", "\u2067")
SOURCES = sorted((Path(cutaway.__file__).parent / "cli").rglob("*.py"))


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Commands on a terminal make the log say more."""
    log, last = logging.getLogger("cutaway"), logging.lastResort
    level, handlers = log.level, [*log.handlers]
    yield
    log.setLevel(level)
    log.handlers[:] = handlers
    if last is not None:
        last.setFormatter(None)


def shown_on(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Stdout and stderr from now on; a fixture would be too early, as pytest takes them when a test begins."""
    found = Terminal()
    monkeypatch.setattr(sys, "stdout", found)
    monkeypatch.setattr(sys, "stderr", found)
    return found


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    screen = shown_on(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["cutaway", *words])
    monkeypatch.setattr(boundary.gc, "set_threshold", lambda _: None)
    monkeypatch.setattr(boundary.atexit, "register", lambda _: None)
    with pytest.raises(SystemExit):
        main()
    text = screen.getvalue()
    assert not [sign for sign in SIGNS if sign in text], text
    return text


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "classifier"
    config = replace(small.headed("bert-tiny", small.tokenizer()).config, head=Classifier(n_classes=3, hidden="tanh"))
    Model(cutaway.build(config).eval(), small.tokenizer()).save(folder)
    keys = json.loads((folder / "config.json").read_text())
    keys["usage"] = {"labels": [f"{STEERING}label {i}\n0.9999\tforged" for i in range(3)]}
    (folder / "config.json").write_text(json.dumps(keys))
    return folder


@pytest.mark.parametrize(
    "words", [["classify", "a text", "--model"], ["classify", "a", "b", "--json", "--model"], ["info"]]
)
def test_labels(classifier: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    text = run(monkeypatch, *words, str(classifier))
    assert "label " in text
    if words[0] == "classify" and "--json" not in words:
        assert "\n0.9999" not in text, "a label is one line"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": STEERING},
        {"model_type": "bert", "architectures": [STEERING]},
        {"model_type": "bert", STEERING: 1, "hidden_size": STEERING},
        {"format": "cutaway", "kind": STEERING},
        {"format": "cutaway", STEERING: STEERING},
    ],
)
def test_errors(config: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    text = run(monkeypatch, "info", str(tmp_path))
    assert text.startswith("Error: ")
    assert text.count("\n") == 1


def test_file_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / f"a{STEERING}b"
    folder.mkdir()
    assert run(monkeypatch, "info", str(folder)).startswith("Error: ")


def test_an_error_shows_what_it_quotes() -> None:
    assert str(CheckpointError(f"no {STEERING}!\nError: all is well\u202e")) == (
        "no \\x1b]0;owned\\x07\\x1b[2J\\x9b1m\\x7f\\r\\u2067!\\nError: all is well\\u202e"
    )


def test_warnings_of_any_library(monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, "--version")
    screen = shown_on(monkeypatch)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging.getLogger("somebody"), "propagate", False)
    logging.getLogger("somebody").warning("a name: %s", STEERING)
    assert screen.getvalue().endswith("\n")
    assert not [sign for sign in SIGNS if sign in screen.getvalue()]


def test_tables_and_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that rich draws, which has escape sequences of its own."""
    from rich.table import Table

    screen = shown_on(monkeypatch)
    monkeypatch.setenv("TERM", "xterm")
    table = Table(STEERING)
    table.add_row(f"[bold]{STEERING}[/bold]")
    pager.Screen().print(table, STEERING)
    pager.Screen(stderr=True).print(STEERING, style="bold")
    print_each([STEERING], str)
    text = screen.getvalue()
    assert not [sign for sign in SIGNS if sign in text]
    assert "\x1b[1m" in text, "its own style stays"


def test_a_file_gets_what_a_model_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show(STEERING)
    assert capsys.readouterr().out == STEERING + "\n"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_nothing_is_printed_by_another_way(source: Path) -> None:
    """`print` and rich's own console know nothing of whose text it is."""
    if source.name in ("terminal.py", "pager.py"):
        return
    calls = [node.func for node in ast.walk(ast.parse(source.read_text("utf-8"))) if isinstance(node, ast.Call)]
    names = [call.id if isinstance(call, ast.Name) else getattr(call, "attr", "") for call in calls]
    plain = [call.id for call in calls if isinstance(call, ast.Name)]
    assert "print" not in plain
    assert "Console" not in names
