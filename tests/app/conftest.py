from types import SimpleNamespace

import pytest

from cutaway.checkpoints import unpickle
from tests import commands


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is a pickle's numbers that count: starting a process with torch takes seconds."""
    monkeypatch.setattr(unpickle, "subprocess", SimpleNamespace(run=commands.unpickled))
