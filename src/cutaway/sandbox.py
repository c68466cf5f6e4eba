"""A separate Python process for untrusted code, with limits of memory and time that the system enforces.

Requests and answers are JSON over pipes. It has no environment and can open no files and no connections; whatever
happens to it, the caller gets an answer or a SandboxError in bounded time and memory.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cutaway

SECONDS = 3.0
"""Wall-clock time for one answer."""
MEMORY = 384 * 2**20
"""Bytes of the whole process: 40 MB of them are Python's own."""
LARGEST = 24_000_000
"""Bytes of a request or an answer."""

_START = 60.0  # seconds in which Python must start, on the slowest disk
_OUT_OF_MEMORY = 77
_SIZE = 8
_PROGRAM = """import sys; sys.path[:] = sys.argv[2:]
from importlib import import_module; from cutaway.sandbox import serve; serve(import_module(sys.argv[1]).answer)"""


class SandboxError(Exception):
    """The reason for a missing answer: "takes longer than 3 seconds"."""


class Sandbox:
    """Answers requests with the `answer` of `module`, in a process that is started on first use and kept.

    Several threads may call it; they wait for each other. The process ends with this one, even if this one is killed:
    idle, by the closed pipe; at work, by its limit of processor time.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._subject: object = None
        self._lock = threading.Lock()
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._disown)

    def ask(self, request: object, subject: object = None) -> Any:
        """The answer to a JSON request (TypeError, ValueError: it is not JSON). A process serves one `subject` only: a
        request for another starts a new one. SandboxError: there is no answer."""
        data = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(data) > LARGEST:
            raise ValueError(f"{len(data):,} bytes are too much; the limit is {LARGEST:,}")
        with self._lock:
            if self._process is not None and (subject != self._subject or self._process.poll() is not None):
                self.close()
            if self._process is None:
                self._subject = subject
                self._process = self._started()
            return self._exchange(self._process, data, SECONDS)

    def close(self) -> None:
        """Ends the process; the next request starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with process:  # closes its pipes and waits for it
                pass

    def _started(self) -> "subprocess.Popen[bytes]":
        command, environment = isolated(_PROGRAM, self._module)
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=environment,
                cwd=os.path.abspath(os.sep),
            )
        except OSError as error:
            raise SandboxError(f"needs a separate process, which can't be started: {error.strerror}") from None
        self._exchange(process, b"", _START)
        return process

    def _exchange(self, process: "subprocess.Popen[bytes]", data: bytes, seconds: float) -> Any:
        """Sends `data`, if any, and reads the answer; after a failure the process is closed."""
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, stop)
        timer.daemon = True
        timer.start()
        answered, failure = False, ""
        try:
            if data:
                _send(process.stdin.fileno(), data)
            answer = json.loads(_received(process.stdout.fileno()))
            answered = True
            return answer
        except (OSError, EOFError):
            pass  # it ended
        except (ValueError, RecursionError):
            failure = f"makes more than {LARGEST:,} bytes"
        finally:
            timer.cancel()
            timer.join()
            if not answered or late.is_set():
                self._process = process
                self.close()
        if late.is_set() or process.returncode == -getattr(signal, "SIGXCPU", 0):
            failure = f"takes longer than {seconds:g} seconds"
        elif process.returncode == _OUT_OF_MEMORY:
            failure = f"needs more than {MEMORY // 2**20} MB of memory"
        raise SandboxError(failure or f"crashes the process that runs it ({_ending(process.returncode)})")

    def _disown(self) -> None:
        """In a forked process: the process belongs to the parent, and so may the lock."""
        if self._process is not None:
            self._process.returncode = 0  # the parent waits for it
        self._process, self._lock = None, threading.Lock()


def isolated(program: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command and the environment of a Python process that runs `program`, with the paths of imports as its last
    arguments: nothing from our environment, nor from Python files of the user or this folder."""
    home = str(Path(cutaway.__file__).parents[1])
    paths = [path for path in sys.path if path and Path(path).absolute() != Path.cwd()]
    needed = ("LD_LIBRARY_PATH", "SYSTEMROOT")  # to start at all
    environment = {name: os.environ[name] for name in needed if name in os.environ}
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", program, *arguments, *paths, home], environment


def _ending(code: int) -> str:
    with suppress(ValueError):
        return signal.Signals(-code).name
    return f"exit code {code}"


def _send(pipe: int, data: bytes) -> None:
    rest = memoryview(len(data).to_bytes(_SIZE, "little") + data)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _received(pipe: int) -> bytes:
    """EOFError: the other end is closed. ValueError: too large, and not read."""
    size = int.from_bytes(_read(pipe, _SIZE), "little")
    if size > LARGEST:
        raise ValueError(f"{size} bytes")
    return _read(pipe, size)


def _read(pipe: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = os.read(pipe, min(size - len(data), 2**20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


# In the separate process


def serve(answer: Callable[[Any], Any]) -> None:
    """Answers the requests on stdin until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    _confine()
    _send(1, b"null")
    with suppress(EOFError, BrokenPipeError):
        while True:
            data = _received(0)
            _limit_processor()
            try:
                data = json.dumps(answer(json.loads(data)), ensure_ascii=False).encode("utf-8", "surrogatepass")
            except MemoryError:
                os._exit(_OUT_OF_MEMORY)
            _send(1, data)


def _confine() -> None:
    """Limits this process to MEMORY bytes and no new files, connections, processes or core dumps."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    none = ("RLIMIT_NOFILE", "RLIMIT_FSIZE", "RLIMIT_NPROC", "RLIMIT_CORE")
    for name, most in {"RLIMIT_AS": MEMORY, **dict.fromkeys(none, 0)}.items():
        with suppress(AttributeError, ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (most, most))


def _limit_processor() -> None:
    """Limits the processor time of the next answer, which also ends it if the parent was killed."""
    try:
        import resource
    except ImportError:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + SECONDS) + 1, hard))
