"""What holds for every test: two workers share two cores, and nothing is written into the user's cache."""

import os
import signal

import pytest
import torch

torch.set_num_threads(1)  # or the workers fight over the cores
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would commands


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["CUTAWAY_CACHE"] = str(tmp_path_factory.mktemp("cutaway-cache"))  # commands inherit it
