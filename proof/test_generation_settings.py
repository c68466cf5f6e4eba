"""Every setting of generation_config.json, against `transformers.generate` with the same folder: 15 random models over
the families, several values for each, greedy and with beams; of sampling, the distribution that is drawn from.

`make proof PROFILE=settings`; with `-s` it prints the table.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.generation_settings import CHANGE_NOTHING, MODELS, SAMPLING, SEARCH, Folder, searches


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Folder]]:
    n = torch.get_num_threads()
    torch.set_num_threads(1)  # these models are far too small for more
    yield [Folder(name, seed, Path(tmp_path_factory.mktemp(f"{name}-{seed}"))) for name, seed in MODELS]
    torch.set_num_threads(n)


@pytest.mark.parametrize("name", SEARCH)
def test_the_same_texts(folders: list[Folder], name: str) -> None:
    n_changed = 0
    for settings in SEARCH[name]:
        for how in searches(name):
            texts = [folder.texts({**how, **settings}) for folder in folders]
            unlike = [MODELS[i] for i, (ours, theirs) in enumerate(texts) if ours != theirs]
            changed = [folder.plain_texts(how) != ours for folder, (ours, _) in zip(folders, texts, strict=True)]
            n_changed += sum(changed)
            sys.stdout.write(
                f"{name:48} {str({**how, **settings})[:80]:80} "
                f"{len(folders) - len(unlike)}/{len(folders)} equal, {sum(changed)} changed by it\n"
            )
            assert not unlike, (settings, how)
    assert (n_changed == 0) == (name in CHANGE_NOTHING)


@pytest.mark.parametrize("name", SAMPLING)
def test_the_same_distribution(folders: list[Folder], name: str) -> None:
    for settings in SAMPLING[name]:
        for model, folder in zip(MODELS, folders, strict=True):
            ours, theirs = folder.distributions(settings)
            assert torch.equal(ours > 0, theirs > 0), (model, settings)
            # Float32 through two blocks: logits of about 10 differ in their sixth digit.
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3, msg=str((model, settings)))
        sys.stdout.write(f"{name:48} {str(dict(settings))[:80]:80} {len(folders)}/{len(folders)} equal\n")
