"""Vocabularies learnt from text: the same every time, exact where promised, read by transformers."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutaway.errors import ConfigError, InputError
from cutaway.text.files import load_tokenizer
from cutaway.text.tokenizer import SpecialTokens, Tokenizer
from cutaway.text.train import SPECIAL, train_tokenizer
from tests.support.text_samples import CORPUS, SAMPLES, asked

KINDS = ["bpe", "elisions", "wordpiece", "unigram", "byte", "character"]
EXACT = ["bpe", "elisions", "byte", "character"]


@pytest.fixture(scope="session")
def trained() -> dict[str, Tokenizer]:
    return {kind: train_tokenizer(CORPUS, vocabulary=600, **asked(kind)) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens(trained: dict[str, Tokenizer], kind: str) -> None:
    mine = trained[kind]
    assert mine.special == SpecialTokens(pad=0, unknown=1, start=2, end=3, mask=4)
    assert mine.vocabulary_size <= 600
    encoding = mine.encode("the cat", "sat")
    assert encoding.ids[0] == 2
    assert encoding.ids[-1] == 3
    assert encoding.segments[-1] == 1
    assert mine.encode("the <mask> sat").ids.count(4) == 1


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.one_of(st.sampled_from([*SAMPLES, *CORPUS]), st.text()))
def test_texts_come_back(trained: dict[str, Tokenizer], text: str) -> None:
    if any(token in text for token in SPECIAL.values()):
        return
    for kind in EXACT:
        expected = text.replace("\u2060", "") if kind == "elisions" else text
        assert trained[kind].decode(trained[kind].encode(text).ids) == expected, kind


@pytest.mark.parametrize("kind", KINDS)
def test_learning_twice_gives_the_same(trained: dict[str, Tokenizer], kind: str, tmp_path: Path) -> None:
    """Here, and in another process: hash tables have other seeds there."""
    trained[kind].save(tmp_path / "here")
    code = (
        "import sys; from pathlib import Path; from tests.support.text_samples import CORPUS, asked;"
        "from cutaway.text.train import train_tokenizer;"
        f"train_tokenizer(CORPUS, vocabulary=600, **asked({kind!r})).save(Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "there")], check=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_saved_files_are_read_by_auto_tokenizer(trained: dict[str, Tokenizer], kind: str, tmp_path: Path) -> None:
    mine = trained[kind]
    mine.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs: Any = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    again = load_tokenizer(tmp_path)
    assert again is not None
    for text in SAMPLES:
        encoding = mine.encode(text)
        found = theirs(text, return_offsets_mapping=True, return_token_type_ids=True)
        assert encoding.ids == found["input_ids"], text
        assert encoding.offsets == found["offset_mapping"], text
        assert again.encode(text) == encoding
        for skip in (True, False):
            assert theirs.decode(encoding.ids, skip_special_tokens=skip) == mine.decode(encoding.ids, skip_special=skip)
    assert theirs.pad_token_id == 0
    assert theirs.mask_token_id == 4
    assert again.special == mine.special


@pytest.mark.parametrize("kind", KINDS)
def test_lower_case(kind: str) -> None:
    mine = train_tokenizer(CORPUS, vocabulary=600, lowercase=True, **asked(kind))
    assert mine.encode("HELLO World").ids == mine.encode("hello world").ids


def test_elided_words_are_words() -> None:
    texts = 9 * ["Un homme voit l'homme d'une île.", "J'aime l’eau qu'il boit, it's what I don't.", "une eau, un homme"]
    mine = train_tokenizer(texts, "bpe", 600, elisions=True)
    one, other = (mine.encode(text, special=False) for text in ("voit l'homme d'une eau", "voit homme une eau"))
    assert [token for token in one.ids if token not in other.ids] == [mine.id_of("Ġl'âģł"), mine.id_of("Ġd'âģł")]
    assert [one.tokens[i] for i in (-4, -3)] == ["Ġhomme", "Ġd'âģł"]
    # what the library inserted counts as part of the apostrophe
    assert ["voit l'homme d'une eau"[slice(*one.offsets[i])] for i in (-4, -3, -2)] == ["'homme", " d'", "'une"]
    for text in (*texts, "l'", "l' homme", "'homme'", "O'Brien's", "rock'n'roll", "’t Hooft l’’eau", "l'\nhomme"):
        assert mine.decode(mine.encode(text).ids) == text
    plain = train_tokenizer(texts, "bpe", 600)
    assert mine.encode("it's what I don't").tokens == plain.encode("it's what I don't").tokens
    with pytest.raises(ConfigError, match="elisions=True is for kind='bpe', not for 'unigram'"):
        train_tokenizer(texts, "unigram", elisions=True)


def test_other_special_tokens() -> None:
    names = {"pad": "[PAD]", "unknown": "[UNK]", "start": "[CLS]", "end": "[SEP]", "mask": "[MASK]"}
    mine = train_tokenizer(CORPUS, "wordpiece", 600, special={**names, "classify": "[CLS]", "separator": "[SEP]"})
    assert mine.special == SpecialTokens(pad=0, unknown=1, start=2, end=3, mask=4, separator=3, classify=2)
    assert mine.encode("зщ").tokens == ["[CLS]", "[UNK]", "[SEP]"]


def test_wrong_requests() -> None:
    with pytest.raises(ConfigError, match=r"no kind of tokenizer 'bpee'; did you mean 'bpe'\?"):
        train_tokenizer(CORPUS, "bpee")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no role of a special token 'begin'"):
        train_tokenizer(CORPUS, special={"begin": "<b>"})
    with pytest.raises(ConfigError, match="vocabulary=100 is too small; kind='bpe' needs at least 261 tokens"):
        train_tokenizer(CORPUS, "bpe", 100)
    for kind in KINDS[:4]:
        with pytest.raises(InputError, match="there is no text to learn a vocabulary from"):
            train_tokenizer(["", " "], **asked(kind))
    with pytest.raises(InputError, match="texts is one text; give a list of texts"):
        train_tokenizer("text", "bpe")
    with pytest.raises(InputError, match="text 1 is int; expected str"):
        train_tokenizer(["a", 1], "bpe")  # type: ignore[list-item]
