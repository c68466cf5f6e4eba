"""The class itself: wrong input, cutting, many texts and forks."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cutaway.errors import InputError
from cutaway.text.files import load_tokenizer
from cutaway.text.tokenizer import Tokenizer, kept_places
from tests.support.tokenizer_families import Family


@pytest.fixture
def bert(families: dict[str, Family]) -> Tokenizer:
    tokenizer = load_tokenizer(families["bert"].folder)
    assert tokenizer is not None
    return tokenizer


def test_wrong_input(bert: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"expected a text \(str\), found int"):
        bert.encode(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"expected a text \(str\), found list"):
        bert.encode(["a"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="character 2 of the text is a lone surrogate"):
        bert.encode("ab\ud800")
    with pytest.raises(InputError, match="a lone surrogate"):
        bert.encode_many([("a", "\udfff")])
    with pytest.raises(InputError, match="-100 is no token id"):
        bert.decode([1, -100])
    with pytest.raises(InputError, match="max_length=1 leaves no room for the 2 special tokens"):
        bert.encode("the cat", max_length=1)


def test_ids_may_be_a_tensor(bert: Tokenizer) -> None:
    ids = bert.encode("the cat").ids
    assert bert.decode(torch.tensor(ids)) == bert.decode(ids)
    assert bert.decode_many(torch.tensor([ids, ids])) == [bert.decode(ids)] * 2
    assert bert.decode([*ids, bert.vocabulary_size + 5]) == bert.decode(ids)  # a spare row of the model


def test_what_is_kept_of_a_pair() -> None:
    def kept(first: int, second: int, room: int) -> tuple[int, int]:
        sequences = [None, *[0] * first, None, *[1] * second, None]
        places = kept_places(sequences, room + 3)
        chosen = [sequences[place] for place in places]
        assert chosen.count(None) == 3
        return chosen.count(0), chosen.count(1)

    assert kept(5, 3, 20) == (5, 3)
    assert kept(10, 2, 8) == (6, 2)
    assert kept(2, 10, 8) == (2, 6)
    assert kept(10, 9, 7) == (4, 3)
    assert kept(9, 10, 7) == (3, 4)
    assert kept(5, 5, 0) == (0, 0)


def test_forks_after_parallel_work_are_quiet(families: dict[str, Family]) -> None:
    """As torch's data loaders do; tokenizers before 0.23 warned then."""
    code = """
import os, sys
from pathlib import Path
from cutaway.text.files import load_tokenizer
tokenizer = load_tokenizer(Path(sys.argv[1]))
many = ["the cat sat"] * 1000
tokenizer.encode_many(many)
child = os.fork()
found = tokenizer.encode_many(many)
assert len(found) == 1000
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(families["bert"].folder)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_loading_does_not_wait_for_torch_or_jinja() -> None:
    code = "import sys, cutaway.text.files, cutaway.text.train; print({'torch', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"


def test_save_keeps_max_length(bert: Tokenizer, tmp_path: Path) -> None:
    bert.max_length = 77
    bert.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again is not None
    assert again.max_length == 77
