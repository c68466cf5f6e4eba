"""Blanks at the ends of a text and inside it: SentencePiece's own library says what becomes of them."""

import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from cutaway.text.files import load_tokenizer
from cutaway.text.streaming import StreamingDecoder
from cutaway.text.tokenizer import Tokenizer
from tests.support.text_samples import CORPUS
from tests.support.tokenizer_families import Family, pieces

BLANKS = ["", " ", "  ", "   ", "\t", " \t", "\u00a0", "\u3000", "\u2003", "\n", "▁"]
CODE = Path(__file__).read_text(encoding="utf-8").splitlines()
TEXTS = [
    *BLANKS,
    *(before + word + after for before in BLANKS for word in ("the cat", "return x") for after in BLANKS),
    *(f"the{blank}cat{blank}sat" for blank in BLANKS),
    *(line for line in CODE if "<" not in line),  # special tokens are found in text here, and not there
    *(f"  {line} " for line in CORPUS[:5]),
]
KINDS: dict[str, dict[str, Any]] = {
    "bpe": {"model_type": "bpe", "vocab_size": 600, "byte_fallback": True},  # read as a Llama's
    "unigram": {"model_type": "unigram", "vocab_size": 560, "byte_fallback": True},
}


def load(folder: Path) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(
    scope="module",
    params=[
        (kind, dummy, squeeze, rule)
        for kind in KINDS
        for dummy in (True, False)
        for squeeze in (True, False)
        for rule in ("identity", "nmt_nfkc")
    ],
    ids=str,
)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any, Path]:
    """A folder with nothing but tokenizer.model; and the library."""
    kind, dummy, squeeze, rule = request.param
    data = pieces(
        **KINDS[kind], add_dummy_prefix=dummy, remove_extra_whitespaces=squeeze, normalization_rule_name=rule,
        allow_whitespace_only_pieces=not squeeze,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    (folder / "tokenizer.model").write_bytes(data)
    return load(folder), sentencepiece.SentencePieceProcessor(model_proto=data), folder


def test_every_blank_is_where_sentencepiece_has_it(both: tuple[Tokenizer, Any, Path]) -> None:
    mine, theirs, _ = both
    for text in TEXTS:
        assert mine.encode(text, special=False).ids == theirs.encode(text), text
    found = mine.encode_many(TEXTS, special=False)
    assert [one.ids for one in found] == theirs.encode(TEXTS)


def test_decoding_gives_the_blanks_back(both: tuple[Tokenizer, Any, Path]) -> None:
    """A token that is a space symbol alone, which no text but one with that symbol has, is another matter."""
    mine, theirs, _ = both
    for text in TEXTS:
        if "▁" not in text:
            ids = theirs.encode(text)
            assert mine.decode(ids) == theirs.decode(ids), text
            pieces = StreamingDecoder(mine)
            assert "".join([*map(pieces.add, ids), pieces.finish()]) == theirs.decode(ids), text


def test_a_saved_tokenizer_keeps_the_blanks(both: tuple[Tokenizer, Any, Path], tmp_path: Path) -> None:
    """As tokenizer.json, which transformers reads too."""
    import transformers

    mine, theirs, _ = both
    mine.save(tmp_path)
    again, fast = load(tmp_path), transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        expected = theirs.encode(text)
        assert again.encode(text, special=False).ids == expected, text
        assert fast(text, add_special_tokens=False)["input_ids"] == expected, text


def test_indented_code_stays_indented(families: dict[str, Family]) -> None:
    mine = load(families["llama"].folder)
    for line in CODE:
        if "<" not in line and "▁" not in line:
            assert mine.decode(mine.encode(line).ids) == line
    code = "def f(x):\n    return x\n"
    assert mine.decode(mine.encode(code).ids) == code


def test_places_are_those_of_the_text(families: dict[str, Family]) -> None:
    """The space in front belongs to no character of its own."""
    mine = load(families["llama"].folder)
    for text in ("  the cat", "the cat", " \tx"):
        found = mine.encode(text, special=False)
        pieces = [text[start:end] for start, end in found.offsets]
        assert found.offsets[-1][1] == len(text)
        assert all(start <= end for start, end in found.offsets)
        assert text.startswith(pieces[0])


def plain(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c))


def test_unigram_families_squeeze_as_sentencepiece_does(families: dict[str, Family]) -> None:
    """T5 and ALBERT cut at white space themselves; ALBERT takes capitals and accents away before."""
    for name in ("t5", "albert"):
        mine = load(families[name].folder)
        data = (families[name].folder / "spiece.model").read_bytes()
        theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
        for text in TEXTS:
            given = plain(text) if name == "albert" else text
            assert mine.encode(given, special=False).ids == theirs.encode(given), (name, text)
