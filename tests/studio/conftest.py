"""The models of the studio's tests: the one that ships, and a tiny one of each family."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import cutaway
from cutaway.model import Model
from tests.support import images
from tests.support.studio_models import all_families
from tests.support.studio_server import Served, serving


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """By name: en-fr and the families."""
    folders: dict[str, str | Path] = {"en-fr": "en-fr", **all_families(tmp_path_factory.mktemp("families"))}
    found = {}
    for name, folder in folders.items():
        found[name] = cutaway.load(folder)
        found[name].name = name
    return found


@pytest.fixture(scope="session")
def served(models: dict[str, Model]) -> Iterator[Served]:
    with serving(list(models.values())) as studio:
        yield studio


@pytest.fixture(scope="session")
def picture() -> bytes:
    """A PNG file of coloured noise."""
    return images.as_bytes(images.picture(40, 40))
