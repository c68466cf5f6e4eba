import io
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from cutaway.checkpoints import unpickle
from cutaway.cli.main import main
from tests.support import commands
from tests.support.commands import Done


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is a pickle's numbers that count: starting a process with torch takes seconds."""
    monkeypatch.setattr(unpickle, "subprocess", SimpleNamespace(run=commands.unpickled))


class Stdin(io.TextIOWrapper):
    def isatty(self) -> bool:
        return False


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command line, in this process: torch is here already."""

    def command(*arguments: object, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "argv", ["cutaway", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", Stdin(io.BytesIO(stdin), encoding="ascii"))  # decoding is not left to it
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return Done(int(caught.value.code or 0), out, err)

    return command
