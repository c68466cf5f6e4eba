"""The translator that comes with cutaway: there on the first day, small, and as good as its card says."""

import re
from pathlib import Path

import pytest
import torch

import cutaway
from cutaway.cli.options import SHIPPED_TRANSLATOR
from cutaway.loading import SHIPPED, shipped
from cutaway.model import Model
from tests.support import commands

FOLDER = SHIPPED / SHIPPED_TRANSLATOR
CARD = (FOLDER / "README.md").read_text(encoding="utf-8")
SAID = dict(re.findall(r"^\| (.+?[.?!]) \| (.+) \|$", CARD, re.MULTILINE))


@pytest.fixture(scope="module")
def model() -> Model:
    return cutaway.load(SHIPPED_TRANSLATOR)


def test_it_is_there_and_small() -> None:
    assert SHIPPED_TRANSLATOR in shipped()
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 12_000_000
    assert {path.suffix for path in FOLDER.iterdir()} <= {".json", ".safetensors", ".md", ".toml"}


def test_its_card_names_whom_to_thank() -> None:
    for words in ("tatoeba.org", "CC BY 2.0", "cc-by-2.0", "test sentences, one reference each", "nrefs:1|case:mixed"):
        assert words in CARD


def test_the_sentences_of_the_card_come_out_so() -> None:
    assert len(SAID) == 20
    done = commands.run(["translate", *SAID])
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == list(SAID.values())


def test_sentences_end_as_they_should(model: Model) -> None:
    """With the sign that the source ends with, and long before the longest text that may be written."""
    texts = [f"{text}{sign}" for text in ("You are here", "They want to eat", "Tom knows Mary") for sign in ".?!"]
    for text, written in zip(texts, model.translate(texts), strict=True):
        assert written.endswith(text[-1]), (text, written)
        assert written[0].isupper()
        assert len(written) < 3 * len(text)


def test_names_that_it_has_never_seen_are_copied(model: Model) -> None:
    names = ["Zorblatt", "Kowalczyk", "Anneliese", "Brindlewood", "Okonkwo", "Thibodeaux", "Xanthippe", "Quillfeather"]
    written = model.translate([f"My name is {name}." for name in names])
    assert sum(name in text for name, text in zip(names, written, strict=True)) >= 6, written


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I have 42 books.", "J'ai 42 livres."),
        ("I don’t know.", "Je ne sais pas."),  # a text processor's apostrophe
        ("i love you", "je t'aime"),
        ("My dog is sick! Where do you live?", "Mon chien est malade\u00a0! Où vivez-vous\u00a0?"),
    ],
)
def test_texts_that_are_not_as_in_books(model: Model, text: str, expected: str) -> None:
    assert model.translate(text) == expected


def test_its_attention_can_be_looked_at(model: Model) -> None:
    assert next(model.network.parameters()).dtype == torch.float32
    done = commands.run(["translate", "The cat is black.", "--attention"])
    assert (done.code, done.err) == (0, "")
    assert "chat" in done.out
    assert "█" in done.out


def test_a_folder_of_the_users_goes_first(tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other = cutaway.build("transformer-tiny")
    cutaway.Model(other, model.tokenizer, model.usage).save(tmp_path / SHIPPED_TRANSLATOR)
    assert cutaway.load(SHIPPED_TRANSLATOR).config == other.config
