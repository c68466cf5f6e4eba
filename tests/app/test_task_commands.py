"""fill, classify, embed, search, answer and recognize as a person runs them: argument, pipe, --json, bad input."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file

import cutaway
from cutaway.cli import io as cli_io
from cutaway.progress import Pace
from cutaway.text.lines import lines_of
from tests.support import hf_models as tiny
from tests.support.commands import Done

TASKS = ("fill", "classify", "embed", "search", "answer", "recognize")


Run = Callable[..., Done]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    made = {
        "fill": tiny.bert(root / "fill", "BertForMaskedLM"),
        "classify": tiny.classifier(root / "classify"),
        "embed": tiny.sentences(root / "embed"),
        "answer": tiny.bert(root / "answer", "BertForQuestionAnswering"),
        "recognize": tiny.vit(root / "recognize", {"size": {"height": 12, "width": 12}}),
        "gpt2": tiny.gpt2(root / "gpt2"),
    }
    return made | {"search": made["embed"]}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image.png"
    Image.effect_noise((40, 30), 90).convert("RGB").save(path)
    return path


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("the cat sat on the mat\n\na big red dog\nwhere is the bird?\n")
    return path


def test_pooling_is_told_and_can_be_chosen(
    run: Run, tmp_path: Path, notes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare = tiny.bert(tmp_path / "bare", "BertModel")
    assert "mean of the tokens, as no modules.json says how" in " ".join(run("info", bare).out.split())
    mean = run("embed", "the cat", "-m", bare, "--json").records
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        f"{bare} does not say how it pools (no modules.json): taking the mean of the tokens"
    ]
    assert run("embed", "the cat", "-m", bare, "--json", "--pooling", "mean").records == mean
    assert run("embed", "the cat", "-m", bare, "--json", "--pooling", "pooler").records != mean
    found = cutaway.load(bare).search("the cat", notes, pooling="cls")
    lines = run("search", "the cat", notes, "-m", bare, "--pooling", "cls").lines
    assert lines == [f"{hit.score:.4f}\t{hit.line}\t{hit.text}" for hit in found]


def test_fill(run: Run, models: dict[str, Path]) -> None:
    filled = cutaway.load(models["fill"]).fill("the ___ sat", top=3)
    out = run("fill", "the ___ sat", "-m", models["fill"], "--top", 3).lines
    assert out[0] == filled.text
    assert out[2:] == [f"{word.probability:.4f}\t{word.text}" for word in filled.blanks[0]]
    piped = run("fill", "-m", models["fill"], stdin=b"the ___ sat\n\n[MASK] ran\n").lines
    assert piped[0] == filled.text
    assert piped[1] == ""
    assert piped[2].endswith(" ran")
    several = run("fill", "-m", models["fill"], "--top", 3, stdin=b"the ___ sat\n\n").lines
    assert several == ["\t".join((filled.text, *out[2:])), ""]
    (found,) = run("fill", "the ___ sat", "-m", models["fill"], "--top", 3, "--json").records
    assert found["text"] == filled.text
    assert [word["id"] for word in found["blanks"][0]] == [word.id for word in filled.blanks[0]]
    assert "has no blank" in run("fill", "-m", models["fill"], "the cat").mistake
    too_long = run("fill", "-m", models["fill"], stdin=b"a ___\n___ " + b"the cat " * 125_000).mistake
    assert "tokens, and" in too_long
    assert "reads at most 20" in too_long


def test_classify(run: Run, models: dict[str, Path]) -> None:
    labels = cutaway.load(models["classify"]).classify("the cat")
    out = run("classify", "the cat", "-m", models["classify"]).lines
    assert out == [f"{label.probability:.4f}\t{label.label}" for label in labels]
    piped = run("classify", "-m", models["classify"], stdin=b"the cat\n\nthe cat").lines
    assert piped == [out[0], "", out[0]]
    assert run("classify", "-m", models["classify"], "--top", 2, "the cat", "the cat").lines == ["\t".join(out[:2])] * 2
    found = run("classify", "-m", models["classify"], "--json", stdin=b"the cat\n\n").records
    assert found[0]["labels"][0]["label"] == labels[0].label
    assert found[1] == {"labels": []}
    (pair,) = run("classify", "-m", models["classify"], "--pairs", "--json", stdin=b"the cat\ta dog\n").records
    assert pair["labels"][0]["number"] == cutaway.load(models["classify"]).classify(("the cat", "a dog"))[0].number
    wrong = run("classify", "-m", models["classify"], "--pairs", stdin=b"a\tb\nonly one\n")
    assert "'only one' is not two texts with a tab between them" in wrong.mistake
    assert len(wrong.out.splitlines()) == 1, "what came before is answered"


def test_embed(run: Run, models: dict[str, Path], tmp_path: Path) -> None:
    vector = cutaway.load(models["embed"]).embed("the cat")
    (numbers,) = run("embed", "the cat", "-m", models["embed"]).records
    assert numbers == pytest.approx(vector.tolist(), abs=1e-8), "nine digits"
    found = run("embed", "-m", models["embed"], "--json", stdin="the cat\n\nà la carte\n".encode()).records
    assert [len(each["vector"]) for each in found] == [24, 24, 24]
    out = tmp_path / "vectors.safetensors"
    done = run("embed", "-m", models["embed"], "--out", out, stdin=b"the cat\n\na dog\n")
    assert done.lines == [f"{out}: 3 vectors of 24 numbers"]
    assert load_file(out)["vectors"][0].tolist() == pytest.approx(vector.tolist(), abs=1e-5)
    (told,) = run("embed", "-m", models["embed"], "--out", out, "--json", "a", "b").records
    assert told == {"file": str(out), "n": 2, "width": 24}
    before = out.read_bytes()
    assert "line 2 of stdin" in run("embed", "-m", models["embed"], "--out", out, stdin=b"a\n\xff\n").mistake
    assert out.read_bytes() == before, "nothing half written"
    assert sorted(tmp_path.iterdir()) == [out]
    assert "can't write" in run("embed", "-m", models["embed"], "--out", tmp_path / "no" / "v", "a").mistake
    assert "can't write" in run("embed", "-m", models["embed"], "--out", tmp_path, "a").mistake
    (tmp_path / "link").symlink_to(out)
    assert run("embed", "-m", models["embed"], "--out", tmp_path / "link", "a").code == 0
    assert (tmp_path / "link").is_symlink()
    assert len(load_file(out)["vectors"]) == 1
    os.mkfifo(tmp_path / "pipe")
    assert "can't write" in run("embed", "-m", models["embed"], "--out", tmp_path / "pipe", "a").mistake
    assert (tmp_path / "pipe").is_fifo()


def test_search(run: Run, models: dict[str, Path], notes: Path) -> None:
    out = run("search", "a big red dog", notes, "-m", models["search"]).lines
    assert out[0] == "1.0000\t3\ta big red dog"
    assert len(out) == 3
    piped = run("search", "-", notes, "-m", models["search"], stdin=b"where is the bird?\n\na big red dog\n").lines
    assert piped == ["1.0000\t4\twhere is the bird?", "", "1.0000\t3\ta big red dog"]
    found = run("search", "-", notes, "-m", models["search"], "--json", "--top", 2, stdin=b"a big red dog\n\n").records
    assert found[0]["hits"][0]["line"] == 3
    assert [hit["rank"] for hit in found[0]["hits"]] == [1, 2]
    assert found[1] == {"hits": []}
    assert run("search", "a big red dog", notes, "-m", models["search"], "--index", "ann").lines[0] == out[0]
    kept = sorted(path.name for path in notes.parent.iterdir())
    assert kept == [notes.name], "vectors and index are in the cache"
    other = notes.with_name("other.txt")
    other.write_bytes(notes.read_bytes())
    run("search", "dog", other, "-m", models["search"], "--no-cache")
    assert sorted(path.name for path in notes.parent.iterdir() if path != other) == kept
    assert "there is no file" in run("search", "dog", "nowhere.txt", "-m", models["search"]).mistake
    assert "is no file; give one" in run("search", "dog", notes.parent, "-m", models["search"]).mistake
    other.write_bytes(b"a\nb\0\n")
    assert f"line 2 of {other} has a NUL byte" in run("search", "dog", other, "-m", models["search"]).mistake


def test_answer(run: Run, models: dict[str, Path], tmp_path: Path) -> None:
    context = "the cat sat on\nthe mat, and the dog in the house"
    file = tmp_path / "context.txt"
    file.write_text(context + "\n")
    best = cutaway.load(models["answer"]).answer("who sat?", context, top=5)
    out = run("answer", "who sat?", "--context", context, "-m", models["answer"]).lines
    assert out[0] == f"{best.probability:.4f}\t{' '.join(best.text.split())}\t{best.start}:{best.end}"
    assert len(out) == 5
    assert run("answer", "who sat?", "-c", file, "-m", models["answer"]).lines == out
    piped = run("answer", "-c", file, "-m", models["answer"], stdin=b"who sat?\n\nwhere?\n").lines
    assert piped[0] == " ".join(best.text.split())
    assert piped[1] == ""
    two = run("answer", "-c", file, "-m", models["answer"], "--top", 2, stdin=b"who sat?\n\n").lines
    assert two == ["\t".join(out[:2]), ""]
    found = run("answer", "-c", file, "-m", models["answer"], "--json", stdin=b"who sat?\n\n").records
    assert (found[0]["start"], found[0]["end"]) == (best.start, best.end)
    assert found[0]["others"] == []
    assert found[1]["text"] == ""
    none = run("answer", "who?", "-c", file, "-m", models["answer"], "--no-answer-above", "-1000", "--json").records
    assert none[0]["text"] == ""
    assert "there is no file 'contxt.txt'" in run("answer", "who?", "-c", "contxt.txt", "-m", models["answer"]).mistake
    assert "the context is ''" in run("answer", "who?", "-c", "", "-m", models["answer"]).mistake
    file.write_bytes(b"fine\nb\xffd")
    assert f"line 2 of {file} is not UTF-8" in run("answer", "who?", "-c", file, "-m", models["answer"]).mistake


def test_recognize(run: Run, models: dict[str, Path], image: Path, tmp_path: Path) -> None:
    labels = cutaway.load(models["recognize"]).recognize(image)
    out = run("recognize", image, "-m", models["recognize"]).lines
    assert out == [f"{label.probability:.4f}\t{label.label}" for label in labels]
    assert run("recognize", image, image, "-m", models["recognize"]).lines == [out[0]] * 2
    piped = run("recognize", "-m", models["recognize"], "--json", "--top", 2, stdin=f"{image}\n\n".encode()).records
    assert [label["label"] for label in piped[0]["labels"]] == [label.label for label in labels[:2]]
    assert piped[1] == {"labels": []}
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    done = run("recognize", image, bad, "-m", models["recognize"])
    assert "bad.png" in done.mistake
    assert done.out.splitlines() == [out[0]], "what came before is answered"
    assert "can't be read: No such file" in run("recognize", "nowhere.png", "-m", models["recognize"]).mistake


def arguments(task: str, models: dict[str, Path], notes: Path) -> list[object]:
    """A command that reads stdin."""
    more: dict[str, list[object]] = {"search": ["-", notes], "answer": ["-c", "the cat sat on the mat"]}
    return [task, *more.get(task, []), "-m", models[task]]


@pytest.mark.parametrize("task", TASKS)
def test_no_input_is_no_output(run: Run, models: dict[str, Path], notes: Path, task: str) -> None:
    assert run(*arguments(task, models, notes)).lines == []


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        (b"\nb\xe9d\n", "line 2 of stdin is not UTF-8 (byte 2 of the line)"),
        (b"\n\na\0b\n", "line 3 of stdin has a NUL byte: it is not text"),
    ],
)
def test_bytes_that_are_no_text(
    run: Run, models: dict[str, Path], notes: Path, task: str, stdin: bytes, message: str
) -> None:
    assert message in run(*arguments(task, models, notes), stdin=stdin).mistake


def test_a_line_that_never_ends(run: Run, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutaway.text.lines.LONGEST", 1000)
    done = run("classify", "-m", models["classify"], stdin=b"a\n" + b"x" * 1001)
    assert "line 2 of stdin is longer than 1,000 bytes; break it into lines" in done.mistake


def test_windows_files_and_marks(run: Run, models: dict[str, Path]) -> None:
    plain = run("classify", "-m", models["classify"], stdin=b"the cat\na dog\n").lines
    assert run("classify", "-m", models["classify"], stdin=b"\xef\xbb\xbfthe cat\r\na dog\r\n").lines == plain


@pytest.mark.parametrize("task", TASKS)
def test_a_model_that_can_not_says_which_can(run: Run, models: dict[str, Path], notes: Path, task: str) -> None:
    models = {**models, task: models["gpt2"]}
    message = run(*arguments(task, models, notes), stdin=b"a\n").mistake
    assert f"gpt2 is a decoder with a language-model head; {task} needs" in message
    assert ", like " in message


@pytest.mark.parametrize("task", TASKS)
def test_options_that_are_none(run: Run, models: dict[str, Path], notes: Path, task: str) -> None:
    missing = run(*arguments(task, models, notes)[:-2]).mistake
    assert f"{task} needs --model, a" in missing
    assert f": cutaway {task} --model " in missing
    assert "; the Hugging Face hub has others, tagged " in missing
    assert ("`cutaway train classify` makes one from your data" in missing) == (task == "classify")
    assert "Invalid value for '--engine'" in run(*arguments(task, models, notes), "--engine", "fast").mistake
    assert "Invalid value for '--precision'" in run(*arguments(task, models, notes), "--precision", "int3").mistake
    if task != "embed":
        assert "Invalid value for '--top'" in run(*arguments(task, models, notes), "--top", "0").mistake
    missing = run(*arguments(task, {**models, task: Path("no/such/model/here")}, notes)).mistake
    assert "no/such/model/here" in missing


def test_a_megabyte_of_one_line(run: Run, models: dict[str, Path], notes: Path) -> None:
    line = (b"z" * 120 + b" the ") * 8_500  # words of 120 letters are unknown: 17,000 tokens
    assert len(line) > 1_000_000
    for task in ("classify", "embed", "search"):
        assert len(run(*arguments(task, models, notes), stdin=line + b"\n").lines) == 1


def started(*command: object) -> Any:
    """A command in its own process, which has got a first line and waits for the next."""
    pipe = subprocess.PIPE
    command = (sys.executable, "-m", "cutaway", *map(str, command))
    writer = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert writer.stdin is not None
    writer.stdin.write(b"the cat\n")
    writer.stdin.flush()
    return writer


def test_a_reader_that_stops_early_is_no_error(models: dict[str, Path]) -> None:
    writer = started("classify", "-m", models["classify"])
    assert writer.stdout.readline().endswith(b"\n"), "the first line is answered before the second is given"
    writer.stdout.close()
    _, err = writer.communicate(b"a dog\n" * 5000, timeout=60)
    assert (writer.returncode, err) == (0, b"")


def test_control_c_in_a_stream_keeps_what_was_done(models: dict[str, Path]) -> None:
    writer = started("classify", "-m", models["classify"])
    first = writer.stdout.readline()
    time.sleep(0.2)  # it waits for the next line by now
    writer.send_signal(signal.SIGINT)
    out, err = writer.communicate(timeout=60)
    assert first.endswith(b"\n")
    assert (writer.returncode, out, err) == (130, b"", b"")


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli_io, "SECONDS_BETWEEN_LINES", -1)  # now, that is
    assert list(cli_io.show_progress(iter("abc"), 3, scrolling=False)) == ["a", "b", "c"]
    assert list(cli_io.show_progress(iter("a"), scrolling=False)) == ["a"]
    assert capsys.readouterr().err.splitlines() == ["1 of 3", "2 of 3", "3 of 3", "1"], "no rate without a base"


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def test_the_time_left_is_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first result waits for the model: 9 s × 1,000 would be two and a half hours, and it takes 1:49."""
    clock = Clock(monkeypatch)
    pace = Pace(1000)
    clock.now += 9.0
    pace.add()
    assert (str(pace), pace.left) == ("1 of 1,000", None)
    told = []
    for _ in range(999):
        clock.now += 0.1
        pace.add()
        if pace.left is not None:
            told.append((pace.left, (1000 - pace.n) * 0.1))
    assert len(told) > 950, "after some seconds there is a base"
    for said, true in told:
        assert said == pytest.approx(true, rel=0.01, abs=0.1)
    assert str(pace) == "1,000 of 1,000, 10.0/s, 0:00 left"


def test_the_time_left_counts_what_is_left_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts come first: by their number, the first half would promise four times the time that is left."""
    clock = Clock(monkeypatch)
    sizes = [80] * 50 + [20] * 50
    pace = Pace(100, sizes)
    for size in sizes[:50]:
        clock.now += size / 100
        pace.add()
    assert pace.left == pytest.approx(10.0)
    clock.now += 3.0  # and it runs down while nothing comes
    assert pace.left == pytest.approx(7.0)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="a terminal to show progress on is made by the system's openpty")
def test_progress_is_shown_on_a_terminal_and_not_at_once_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(cli_io.show_progress(iter("abc"), 3)) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
    screen, handle = os.openpty()
    with open(handle, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        assert list(cli_io.show_progress(iter("abc"), 3)) == ["a", "b", "c"]
        terminal.flush()
        shown = ""
        while select.select([screen], [], [], 0.5)[0]:
            shown += os.read(screen, 100_000).decode()
    os.close(screen)
    assert "3 of 3" in shown
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="a terminal to show progress on is made by the system's openpty")
def test_results_go_to_a_file_while_a_terminal_shows_progress_and_the_engine(
    models: dict[str, Path], tmp_path: Path
) -> None:
    screen, handle = os.openpty()
    command = (sys.executable, "-m", "cutaway", "classify", "-m", str(models["classify"]))
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(command, input=b"the cat\n" * 20, stdout=out, stderr=handle, timeout=60, check=True)
    os.close(handle)
    shown = b""
    while select.select([screen], [], [], 0.5)[0]:
        try:
            shown += os.read(screen, 100_000)
        except OSError:  # nobody has the other end any more
            break
    os.close(screen)
    lines = (tmp_path / "out").read_text().splitlines()
    assert (done.returncode, len(lines), len(set(lines))) == (0, 20, 1)
    assert re.search(rb"classify\S*: native, float32", shown)
    assert b"20" in shown
    assert lines[0].encode() not in shown


def test_how_many_lines_there_are_is_known_of_a_file(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli_io.count_of(["a", "b"]) == 2
    with notes.open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert cli_io.count_of(None) == 4
        assert len(list(lines_of(file))) == 4, "counting has not read them"
    monkeypatch.setattr(sys, "stdin", None)
    assert cli_io.count_of(None) is None
    with pytest.raises(cutaway.errors.InputError, match="stdin is closed; give a text as argument"):
        next(cli_io.inputs_of(None))
