"""What a folder's generation_config.json asks for is done as transformers does it: a sample of the table in proof/."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers as hf

from cutaway.checkpoints.generation_settings import AT_ONE_VALUE, IN_USAGE, MEANINGLESS, OBEYED
from tests.support.generation_settings import MODELS, SAMPLING, SEARCH, Folder, searches

SAMPLE = [MODELS[0], MODELS[4], MODELS[7], MODELS[10]]
NAMES = [*SEARCH]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Folder]]:
    n = torch.get_num_threads()
    torch.set_num_threads(1)  # these models are far too small for more
    yield [Folder(name, seed, Path(tmp_path_factory.mktemp(f"{name}-{seed}"))) for name, seed in SAMPLE]
    torch.set_num_threads(n)


def test_every_setting_of_transformers_is_in_one_group() -> None:
    groups = [set(OBEYED), set(IN_USAGE), set(AT_ONE_VALUE), set(MEANINGLESS)]
    known = {name for name in vars(hf.GenerationConfig()) if not name.startswith("_")} | {"_from_model_config"}
    assert set().union(*groups) >= known
    assert sum(map(len, groups)) == len(set().union(*groups))


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_the_same_texts(folders: list[Folder], number: int) -> None:
    """Two models and one value of each setting, greedy or with beams; another for the next setting."""
    name = NAMES[number]
    settings, how = SEARCH[name][number % len(SEARCH[name])], searches(name)[number % len(searches(name))]
    for folder in (folders[number % 4], folders[(number + 1) % 4]):
        ours, theirs = folder.texts({**how, **settings})
        assert ours == theirs


@pytest.mark.parametrize("name", SAMPLING)
def test_the_same_distribution(folders: list[Folder], name: str) -> None:
    for number, settings in enumerate(SAMPLING[name]):
        ours, theirs = folders[(number + len(name)) % 4].distributions(settings, n_steps=2)
        assert torch.equal(ours > 0, theirs > 0)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)  # float32 through two blocks
