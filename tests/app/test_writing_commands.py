"""`cutaway translate`, `summarize`, `complete` and `chat` as a person runs them, on tiny models that are made here."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from cutaway.cli.terminal import strip_control
from cutaway.model import Model
from cutaway.models.usage import Usage
from cutaway.tasks.writer import Writer
from tests.support import small_models as small
from tests.support.commands import Done


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for each kind of model that writes."""
    root = tmp_path_factory.mktemp("models")
    usage = Usage(start=2, end=(3,), pad=0, never=(0, 1, 2, 4), max_length=9)
    small.model("transformer-tiny", usage=usage).save(root / "translator")
    small.t5(root / "t5")
    endless = Usage(start=2, never=(0, 1, 2, 3, 4))
    small.model("llama-15m", positions=100_000, usage=endless).save(root / "llama")
    small.model("gpt2", positions=32).save(root / "gpt2")
    small.chatty(positions=400).save(root / "chatty")
    small.chatty(positions=100_000, never=(0, 1, 2, 3, 4, 5)).save(root / "talker")  # it never ends an answer
    return root


Write = Callable[..., Done]


@pytest.fixture
def write(models: Path, run: Callable[..., Done]) -> Write:
    """A task, the name of one of the models, and options."""

    def command(text: str, *arguments: object, stdin: bytes = b"") -> Done:
        name, model, *options = text.split()
        return run(name, "--model", models / model, *options, *arguments, stdin=stdin)

    return command


def start(models: Path, text: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    name, model, *more = text.split()
    command = [sys.executable, "-m", "cutaway", name, "--model", str(models / model), *more, *arguments]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes | options)


# translate and summarize


def test_arguments_and_a_pipe_give_the_same_lines(write: Write) -> None:
    by_argument = write("translate translator", "The cat", "", "A dog").lines
    assert len(by_argument) == 3
    assert by_argument[0]
    assert by_argument[1] == ""
    assert write("translate translator", stdin=b"The cat\n\nA dog\n").lines == by_argument
    assert write("translate translator", stdin=b"The cat\r\n\r\nA dog").lines == by_argument
    assert write("translate translator", stdin=b"").lines == []


def test_json_is_one_object_a_line(write: Write) -> None:
    plain = write("translate translator --max-tokens 5", "The cat", "").lines
    first, second = write("translate translator --max-tokens 5 --json", "The cat", "").records
    assert first.keys() == {"input", "text", "score", "ended"}
    assert (first["input"], first["text"].split()) == ("The cat", plain[0].split())
    assert first["score"] < 0
    assert second == {"input": "", "text": "", "score": 0.0, "ended": "end"}
    (record,) = write("translate translator --max-tokens 5 --json --n-best 3", "The cat").records
    assert len(record["others"]) == 2
    assert record["others"][0]["score"] <= record["score"]


def test_n_best_keeps_the_lines_in_step(write: Write) -> None:
    lines = write("translate translator --beams 4 --n-best 3 --max-tokens 5", "The cat", "", "A dog").lines
    assert len(lines) == 9
    assert lines[3:6] == ["", "", ""]


def test_summarize_and_languages_of_t5(write: Write) -> None:
    assert len(write("summarize t5", "the cat sat on the mat", "").lines) == 2
    assert len(write("translate t5 --target fr", stdin=b"the cat\nthe dog\n").lines) == 2
    done = write("translate t5", "the cat")
    assert (done.code, done.out) == (2, "")
    assert "translates several ways (en to de, en to fr); say which with source and target" in done.err


def test_sampling_by_its_options_and_again_by_its_seed(write: Write) -> None:
    texts = [write(f"complete gpt2 --seed {seed} --top-k 50 --max-tokens 9", "The").out for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    lines = "\n".join(["The cat"] * 5).encode()
    assert len(set(write("translate translator --seed 3 --temperature 2", stdin=lines).lines)) > 1
    again = [write("translate translator --seed 3 --temperature 2", stdin=lines).lines for _ in range(2)]
    assert again[0] == again[1]


# bad input

BAD = [
    ("translate translator", b"ok\nbad \xff\xfe\n", "line 2 of stdin is not UTF-8"),
    ("translate translator", b"ok\nnul \0 byte\n", "line 2 of stdin has a NUL byte"),
    ("translate translator", b"x" * 1_000_000, "the text has 1,000,0"),
    ("summarize t5", b"the cat " * 3000, "takes at most 2,048"),
    ("complete gpt2 --json", b"The cat " * 1000, "takes at most 32"),
    ("complete gpt2", b"The cat " * 40, "takes at most 32; shorten it"),
    ("complete gpt2", b"bad \xff\n", "line 1 of stdin is not UTF-8"),
    ("chat chatty", b"x y z " * 100, "takes at most 400"),
    ("chat chatty", b"bad \xff\n", "line 1 of stdin is not UTF-8"),
    ("chat chatty", b"/rest\n", "there is no command /rest; /reset begins anew"),
    ("translate translator --beams 5000", b"cat\n", "beams=5000 is too wide for a vocabulary of"),
    ("translate translator --beams 2 --n-best 3", b"cat\n", "n_best=3 texts are more than beams=2 keep"),
    ("translate translator --beams 3 --seed 1", b"cat\n", "sample=True draws texts, beams=3"),
    ("translate translator --temperature -1", b"cat\n", "temperature=-1.0 must be above 0"),
    ("translate translator --top-p 1.5", b"cat\n", "top_p=1.5 must be above 0 and at most 1"),
    ("translate translator --target fr", b"cat\n", "leave out target='fr'"),
    ("translate gpt2", b"cat\n", "gpt2 is a decoder with a language-model head; translate needs an encoder-decoder"),
    ("summarize gpt2", b"cat\n", "summarize needs an encoder-decoder"),
    ("complete translator", b"cat\n", "complete needs a decoder-only language model, like openai-community/gpt2"),
    ("chat gpt2", b"cat\n", "gpt2 has no chat template; chat needs a decoder-only language model with a chat template"),
    ("translate translator --engine fast", b"cat\n", "Invalid value for '--engine'"),
    ("translate translator --max-tokens 0", b"cat\n", "Invalid value for '--max-tokens'"),
    ("translate nowhere", b"cat\n", "nowhere"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "stdin", "message"), BAD, ids=lambda value: str(value)[:40])
def test_bad_input_is_one_sentence_and_exit_code_2(write: Write, command: str, stdin: bytes, message: str) -> None:
    done = write(command, stdin=stdin)
    assert done.code == 2
    assert message in done.err
    assert done.err.startswith("Error: ")
    assert len(done.err.splitlines()) == 1


def test_what_came_before_a_bad_line_is_written(write: Write) -> None:
    done = write("translate translator", stdin=b"The cat\nA dog\nnot \xff UTF-8\nmore\n")
    assert done.code == 2
    assert done.out.splitlines() == write("translate translator", "The cat", "A dog").lines


def test_an_argument_that_is_no_text(write: Write) -> None:
    done = write("translate translator", os.fsdecode(b"bad \xff"))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Error: character 4 of the text is a lone surrogate")


# complete


def test_complete_shows_the_beginning_and_what_follows(write: Write) -> None:
    record = write("complete gpt2 --max-tokens 6 --json", "The cat").records[0]
    assert write("complete gpt2 --max-tokens 6", "The cat").out == f"The cat{record['text']}\n"
    two = write("complete gpt2 --max-tokens 6", stdin=b"The cat\nThe cat\n").out
    assert two == f"The cat{record['text']}\n" * 2
    assert write("complete gpt2 --max-tokens 6", "").out.endswith("\n")  # from nothing: the start token


def read_some(stream: IO[bytes] | None, least: int) -> bytes:
    assert stream is not None
    found = b""
    while len(found) < least:
        piece = os.read(stream.fileno(), 4096)
        assert piece, found
        found += piece
    return found


def test_complete_streams_and_control_c_ends_it_cleanly(models: Path) -> None:
    writer = start(models, "complete llama --max-tokens 90000", "The cat")
    read_some(writer.stdout, len("The cat") + 20)  # more than the prompt while it is still at work
    assert writer.poll() is None
    writer.send_signal(signal.SIGINT)
    out, err = writer.communicate(timeout=60)
    assert writer.returncode == 130
    assert out.endswith(b"\n")
    assert err.strip() == b""


def test_a_reader_that_stops_early_ends_a_stream_silently(models: Path) -> None:
    writer = start(models, "complete llama --max-tokens 90000", "The cat")
    read_some(writer.stdout, 30)
    assert writer.stdout is not None
    writer.stdout.close()
    assert writer.stderr is not None
    assert writer.stderr.read() == b""
    writer.stderr.close()
    assert writer.wait(timeout=60) == 0


def test_a_slow_pipe_is_answered_line_by_line(models: Path) -> None:
    talk = start(models, "translate translator", stdin=subprocess.PIPE)
    assert talk.stdin is not None
    for _ in range(3):
        talk.stdin.write(b"The cat\n")
        talk.stdin.flush()
        read_some(talk.stdout, 1)
        time.sleep(0.15)
    _, err = talk.communicate(timeout=60)
    assert (talk.returncode, err) == (0, b"")


# chat


def test_each_line_of_a_pipe_is_a_turn(write: Write) -> None:
    turns = write("chat chatty --max-tokens 6 --json --system brief", stdin=b"Hello\n\nAnd then?\n").records
    assert [turn["user"] for turn in turns] == ["Hello", "And then?"]
    assert all(turn["assistant"] for turn in turns)
    assert turns[1]["forgotten"] == 0
    plain = write("chat chatty --max-tokens 6 --system brief", stdin=b"Hello\n").out
    assert plain == turns[0]["assistant"] + "\n"


def test_commands_of_a_conversation(write: Write) -> None:
    def answers(stdin: bytes) -> list[str]:
        return [turn["assistant"] for turn in write("chat chatty --max-tokens 6 --json", stdin=stdin).records]

    first = answers(b"Hello\nHello\n")[0]
    assert answers(b"Hello\n/reset\nHello\n") == [first, first]
    assert answers(b"/system Be brief and kind\nHello\n") != [first]
    assert answers(b"Hello\n/quit\nHello\n") == [first]
    assert len(answers(b"/etc/hosts is a file\n")) == 1


def test_what_is_forgotten_is_told_on_stderr(write: Write) -> None:
    done = write("chat chatty --max-tokens 90", stdin=b"Hello, tell me more and more and more\n" * 5)
    assert done.code == 0
    assert "messages are left out" in done.err


def test_a_model_does_not_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    steering = "a\x1b[2Jb\tc\nd\x9b1mé"
    assert strip_control(steering) == steering
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert strip_control(steering) == "a\ufffd[2Jb\tc\nd\ufffd1mé"


class Terminal:
    """A conversation on a pseudo-terminal."""

    def __init__(self, models: Path, text: str) -> None:
        self.master, slave = pty.openpty()
        self.process = start(models, text, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        limit = time.monotonic() + 60
        while text not in self.seen:
            assert time.monotonic() < limit, self.seen
            self.read()

    def read(self) -> None:
        self.seen += os.read(self.master, 4096).decode(errors="replace")

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self.master, text.encode())

    def end(self) -> int:
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.master)


def test_a_conversation_on_a_terminal(models: Path) -> None:
    talk = Terminal(models, "chat chatty --max-tokens 8")
    talk.wait_for("> ")
    assert re.search(r"chatty: \w+, \w+", talk.seen)
    assert "/reset begins anew" in talk.seen
    talk.type("Hello\n")
    talk.wait_for("> ")
    talk.type("/nonsense\n")
    talk.wait_for("there is no command /nonsense")
    talk.wait_for("> ")
    talk.type("\x04")
    assert talk.end() == 0


def test_control_c_stops_the_answer_and_a_second_one_leaves(models: Path) -> None:
    talk = Terminal(models, "chat talker --max-tokens 90000")
    talk.wait_for("> ")
    talk.type("Hello\n")
    talk.wait_for("Hello\r\n")
    while len(talk.seen) < 30:
        talk.read()
    talk.process.send_signal(signal.SIGINT)
    talk.wait_for("\n> ")
    time.sleep(0.5)  # readline hears no signal between its prompt and its first look at the keyboard
    talk.process.send_signal(signal.SIGINT)
    assert talk.end() == 130
    assert "Traceback" not in talk.seen


@pytest.mark.parametrize(
    ("pieces", "shown", "said"),
    [
        (["\n"] * 40, "The cat", "wrote nothing but 40 line breaks"),
        ([" sat", ".", *(["\n \n"] * 20)], "The cat sat.", "ended in 40 line breaks"),
        ([" sat.", "\n\n", "\nIt", " slept. ", "\n"], "The cat sat.\n\n\nIt slept. ", None),
        ([], "The cat", None),
    ],
)
def test_empty_lines_at_the_end_are_not_printed(
    write: Write, monkeypatch: pytest.MonkeyPatch, pieces: list[str], shown: str, said: str | None
) -> None:
    monkeypatch.setattr(Model, "complete", lambda *_, **__: iter(pieces))
    done = write("complete gpt2", "The cat")
    assert (done.code, done.out) == (0, f"{shown}\n")
    assert done.err.count("\n") == (said is not None)
    assert (said or "") in done.err


def test_a_search_that_found_line_breaks_only(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for each text, and no line of blanks."""
    monkeypatch.setattr(Model, "complete", lambda *_, **__: iter(["\n" * 40, "a\n\nb\n\n"]))
    assert write("complete gpt2 --beams 2", "one", "two").out == "\na  b\n"


def test_few_calls_lie_between_a_command_and_its_writer(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def no_texts(*_: object) -> Iterator[Any]:
        frame = sys._getframe(1)
        while frame is not None:
            seen.append(f"{frame.f_globals['__name__']}.{frame.f_code.co_name}")
            frame = frame.f_back  # type: ignore[assignment]
        yield from ()

    monkeypatch.setattr(Writer, "write", no_texts)
    write("translate translator", "The cat")
    assert [name for name in reversed(seen) if name.startswith("cutaway.cli.")] == [
        "cutaway.cli.boundary.run",
        "cutaway.cli.translate.translate",
        "cutaway.cli.output.print_texts",
    ]
