"""What holds for every test: two workers share two cores, and nothing is written into the user's cache."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
import torch

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would commands
_MEASURED = "TESTS_MEASURED"
"""Where the kernels and measurements of this run are: made once, before the workers start."""


def pytest_configure(config: pytest.Config) -> None:
    """The machine is measured while nothing else runs; with all threads, as commands do, and with one, as tests do."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="cutaway-measured-")
        os.environ[_MEASURED] = os.environ["CUTAWAY_CACHE"] = folder
        from cutaway.cli.display.machine import measure_all

        measure_all()
        torch.set_num_threads(1)
        measure_all()
    torch.set_num_threads(1)  # or the workers fight over the cores


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(_MEASURED), ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.mktemp("cutaway-cache")
    shutil.copytree(Path(os.environ[_MEASURED]), cache, dirs_exist_ok=True)
    os.environ["CUTAWAY_CACHE"] = str(cache)  # commands inherit it
