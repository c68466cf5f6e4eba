"""Small vocabularies of every kind, made once per run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tokenizer_families import Family, make_families


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Family]:
    return make_families(tmp_path_factory.mktemp("families"))


@pytest.fixture
def copy(families: dict[str, Family], tmp_path: Path) -> Callable[..., Family]:
    """A family's folder again, with other settings."""

    def make(name: str, settings: dict[str, Any] | None = None, **files: Any) -> Family:
        folder = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for path in families[name].folder.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        if settings is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        for key, value in files.items():
            (folder / f"{key}.json").write_text(json.dumps(value), encoding="utf-8")
        return Family(name, folder, families[name].reference)

    return make
