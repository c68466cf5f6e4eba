"""A process of its own for what strangers wrote: whatever happens in it, there is an answer or one sentence."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cutaway import sandbox
from cutaway.sandbox import Sandbox, SandboxError
from tests.support.threads import at_once

ANSWERS = """
import os, signal, socket, subprocess, sys, time

def answer(request):
    match request:
        case "double", text:
            return text * 2
        case "pid":
            return os.getpid()
        case "environment":
            return sorted(os.environ), os.getcwd(), "torch" in sys.modules
        case "open":
            return open("/etc/passwd").read()
        case "write", path:
            return open(path, "w").write("x")
        case "connect":
            return repr(socket.socket())
        case "run":
            return subprocess.run(["true"]).returncode
        case "memory":
            return len(bytearray(10**9))
        case "large":
            return "x" * 30_000_000
        case "deep":
            value = []
            for _ in range(900):
                value = [value]
            return value
        case "hang":
            while True:
                pass
        case "exit":
            os._exit(3)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    (tmp_path / "answers_of_a_test.py").write_text(ANSWERS)
    monkeypatch.syspath_prepend(tmp_path)
    made = Sandbox("answers_of_a_test")
    yield made
    made.close()


def test_the_process_is_kept_and_each_subject_has_its_own(box: Sandbox) -> None:
    assert box.ask(["double", "é\ud800"]) == "é\ud800é\ud800"
    first = box.ask("pid", subject="a")
    assert box.ask("pid", subject="a") == first != os.getpid()
    assert box.ask("pid", subject="b") != first


def test_the_process_knows_nothing_of_its_user(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    names, folder, has_torch = box.ask("environment")
    assert not set(names) & {"SECRET_TOKEN", "HOME", "PATH", "USER"}
    assert folder == os.path.abspath(os.sep)
    assert not has_torch


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits that only Linux enforces in full")
@pytest.mark.parametrize("request_", ["open", ["write", "x"], "connect", "run"])
def test_no_files_connections_and_processes(box: Sandbox, request_: Any, tmp_path: Path) -> None:
    if isinstance(request_, list):
        request_[1] = str(tmp_path / "written")
    with pytest.raises(SandboxError, match=r"crashes the process that runs it \(exit code 1\)"):
        box.ask(request_)
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("large", "makes more than 24,000,000 bytes"),
        ("hang", "takes longer than 0.5 seconds"),
        ("exit", r"crashes the process that runs it \(exit code 3\)"),
        ("crash", r"crashes the process that runs it \(SIGSEGV\)"),
        pytest.param(
            "memory",
            "needs more than 384 MB of memory",
            marks=pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux limits memory so"),
        ),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_the_next_request_works(
    box: Sandbox, request_: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    box.ask("pid")
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "SECONDS", 0.5 if request_ == "hang" else 20)
        with pytest.raises(SandboxError, match=message):
            box.ask(request_)
    assert box.ask(["double", "x"]) == "xx"


def test_requests_that_json_cannot_hold_or_that_are_too_large(box: Sandbox) -> None:
    for request, message in ((object(), "not JSON serializable"), ("x" * 25_000_000, "the limit is 24,000,000")):
        with pytest.raises((TypeError, ValueError), match=message):
            box.ask(request)


def test_threads_wait_for_each_other(box: Sandbox) -> None:
    wrong: list[str] = []

    def ask(name: str) -> None:
        for i in range(5):
            found = box.ask(["double", f"{name}{i}"], subject=name in "ab")
            if found != f"{name}{i}" * 2:
                wrong.append(found)

    at_once(*(partial(ask, name) for name in "abcd"))
    assert not wrong


def run(code: str) -> "subprocess.Popen[str]":
    program = "import os, signal, sys, time; from cutaway.text import chat\n" + code
    paths = [str(Path(sandbox.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)


def ends(process: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(process, 0)
            state = Path(f"/proc/{process}/stat")
            if state.exists() and ") Z " in state.read_text():  # ended; whoever adopted it has not looked yet
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.02)
    return False


ASK = "chat.render('x', [{'role': 'user', 'content': 'hi'}], {}); print(chat._SANDBOX._process.pid, flush=True)\n"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("end", ["sys.exit()", "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)"])
def test_the_process_ends_with_the_one_that_asked(end: str) -> None:
    with run(ASK + end) as process:
        assert process.stdout is not None
        started = int(process.stdout.readline())
        process.wait(30)
        assert ends(started, 10)


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_a_forked_process_asks_a_process_of_its_own() -> None:
    code = ASK + "child = os.fork()\n" + ASK + "if child: os.waitpid(child, 0); " + ASK
    with run(code) as process:
        assert process.stdout is not None
        pids = process.stdout.read().split()
    assert len(pids) == 4
    assert len(set(pids)) == 2
    assert process.returncode == 0


def test_templates_start_without_torch_and_chats_without_jinja() -> None:
    with run("assert not {'torch', 'jinja2'} & sys.modules.keys(); import cutaway.text.template as t\n"
             "assert 'torch' not in sys.modules; print('good')") as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.read() == "good\n"
