"""`cutaway …` in a process of its own, as a person runs it. It is forked from a server that has torch already, so it
starts at once; what a command loads by itself, and how long that takes, is tested in tests/app/test_cli.py."""

import contextlib
import json
import multiprocessing as mp
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import matplotlib.backends.backend_agg  # all these once, by the server
import matplotlib.figure  # noqa: F401
import sacrebleu  # noqa: F401
import tensorboardX.event_file_writer  # noqa: F401
import torch
import torch._dynamo  # optimisers ask for it when they are made

import cutaway.cli.display.training
import cutaway.training.run  # noqa: F401
from cutaway.checkpoints import unpickle
from cutaway.cli.main import main
from cutaway.training.watch import Watch


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        assert (self.code, self.err) == (0, "")
        return self.out.splitlines()

    @property
    def records(self) -> list[Any]:
        """JSON, an object a line."""
        return [json.loads(line) for line in self.lines]

    @property
    def json(self) -> Any:
        """JSON, one object."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def mistake(self) -> str:
        """The one sentence of a user's mistake."""
        assert self.code == 2, (self.code, self.out, self.err)
        assert self.err.startswith("Error: ")
        assert len(self.err.splitlines()) == 1, self.err
        return self.err


@dataclass(frozen=True)
class _Asked:
    words: Sequence[str]
    log: Path
    out: Path
    folder: Path
    environment: Mapping[str, str]
    file_limit: int | None
    dies_after: int | None


class Command:
    """May be waited for, told something or killed. What it prints goes to the files log.out and log.err."""

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: str = "",
        out: Path | None = None,
        file_limit: int | None = None,
        dies_after: int | None = None,
    ) -> None:
        """It runs in `folder` and prints to `out` instead of log.out; `environment` is added to ours; no file may grow
        beyond `file_limit` bytes; a training is killed as soon as it has saved the step `dies_after`."""
        self.log = log
        log.with_suffix(".in").write_text(stdin, encoding="utf-8")
        asked = _Asked(
            words, log, out or log.with_suffix(".out"), folder or Path.cwd(), dict(environment or {}), file_limit,
            dies_after,
        )  # fmt: skip
        self.process = _forked(_run, asked)

    def wait(self, seconds: float = 600.0) -> Done:
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still running after {seconds} s: {self.read('.err')}"
        return Done(self.process.exitcode, self.read(".out"), self.read(".err"))

    def read(self, suffix: str) -> str:
        path = self.log.with_suffix(suffix)
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def wait_until(self, happened: Callable[[], bool], seconds: float = 300.0) -> bool:
        """Whether something happened before the command ended."""
        end = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < end, f"nothing happened: {self.read('.err')}"
            if not self.process.is_alive():
                return happened()
            time.sleep(0.002)
        return True

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)


def _forked(target: Callable[..., None], *given: object) -> BaseProcess:
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.commands"])
    process: BaseProcess = context.Process(target=target, args=given)
    process.start()
    return process


def _redirect(stdin: Path, stdout: Path, stderr: Path) -> None:
    read, write = os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, (path, mode) in enumerate(((stdin, read), (stdout, write), (stderr, write))):
        os.dup2(os.open(path, mode), number)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding="utf-8") for number, mode in enumerate(("r", "w", "w"))
    )


def _run(asked: _Asked) -> None:
    """In the child."""
    _redirect(asked.log.with_suffix(".in"), asked.out, asked.log.with_suffix(".err"))
    os.chdir(asked.folder)
    os.environ.update(asked.environment)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked.file_limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (asked.file_limit, asked.file_limit))
    if asked.dies_after is not None:
        Watch.saved = _deadly(asked.dies_after)  # type: ignore[method-assign]
    sys.argv = ["cutaway", *asked.words]
    main()


def _deadly(last: int) -> Callable[[Watch, int], None]:
    def saved(_: Watch, step: int) -> None:
        if step >= last:
            os.kill(os.getpid(), signal.SIGKILL)

    return saved


def run(words: Sequence[str], log: Path | None = None, **options: object) -> Done:
    """`options` are those of Command."""
    with contextlib.ExitStack() as stack:
        if log is None:
            log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
        return Command(words, log, **options).wait()  # type: ignore[arg-type]


def unpickled(command: Sequence[str], *, input: bytes, **_: object) -> "subprocess.CompletedProcess[bytes]":  # noqa: A002
    """In the place of subprocess.run: the process in which pickles are read, forked too. That it really is started from
    nothing is tested without this."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("in", "out", "err")]
        files[0].write_bytes(input)
        process = _forked(_unpickle, *files)
        process.join()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(command, process.exitcode, *(file.read_bytes() for file in files[1:]))


def _unpickle(*files: Path) -> None:
    _redirect(*files)
    unpickle.main()


def one_sentence(done: Done) -> str:
    """The error that a command ended with: exit code 2, one line that says so, no traceback."""
    assert done.code == 2, (done.code, done.err)
    assert "Traceback" not in done.err, done.err
    last = done.err.splitlines()[-1]
    assert last.startswith("Error: "), done.err
    assert done.err.count("Error: ") == 1, done.err
    return last.removeprefix("Error: ")


def refused(words: Sequence[str], log: Path | None = None, **options: object) -> str:
    """The error of a command that must end with one."""
    return one_sentence(run(words, log, **options))
