"""Two workers share two cores: one thread each, or they fight over them. Converted models go into a cache of the run."""

import os

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["CUTAWAY_CACHE"] = str(tmp_path_factory.mktemp("cutaway-cache"))  # commands inherit it
