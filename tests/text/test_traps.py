"""Each known trap of each family, with what must come out; the numbers come from transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutaway.errors import CheckpointError
from cutaway.text.files import load_tokenizer
from cutaway.text.tokenizer import Tokenizer
from tests.support.text_samples import SAMPLES
from tests.support.tokenizer_families import Family, keeps_first_blank, pieces

Copy = Callable[..., Family]
LSTRIP = {"content": "[MASK]", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}


def load(folder: Path, config: dict[str, Any] | None = None) -> Tokenizer:
    tokenizer = load_tokenizer(folder, config)
    assert tokenizer is not None
    return tokenizer


def agree(family: Family, **options: Any) -> tuple[Tokenizer, Any]:
    """Ours and theirs, after both read all samples alike."""
    mine, theirs = load(family.folder), family.theirs(**options)
    settings = json.loads(path.read_text()) if (path := family.folder / "tokenizer_config.json").exists() else {}
    for text in SAMPLES:
        if settings.get("add_prefix_space", True) and not keeps_first_blank(
            family.name, text, legacy=bool(settings.get("legacy"))
        ):
            continue
        assert mine.encode(text).ids == theirs(text)["input_ids"], text
        ids = mine.encode(text).ids
        assert mine.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
    return mine, theirs


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("strip", [True, False, None])
@pytest.mark.parametrize("chinese", [True, False])
def test_bert_case_accents_and_chinese(copy: Copy, lower: bool, strip: bool | None, chinese: bool) -> None:
    mine, _ = agree(copy("bert", {"do_lower_case": lower, "strip_accents": strip, "tokenize_chinese_chars": chinese}))
    assert (mine.encode("HELLO").ids == mine.encode("hello").ids) == lower
    assert (mine.encode("forêt").ids == mine.encode("foret").ids) == (lower if strip is None else strip)
    assert (mine.encode("京北").ids == mine.encode("京 北").ids) == chinese


def test_bert_lower_cases_unless_told(copy: Copy) -> None:
    mine, _ = agree(copy("bert"))
    assert mine.encode("HELLO").ids == mine.encode("hello").ids


@pytest.mark.parametrize(
    "where",
    [{"settings": {"mask_token": LSTRIP | {"__type": "AddedToken"}}}, {"special_tokens_map": {"mask_token": LSTRIP}}],
)
def test_mask_that_takes_the_space_before_it(copy: Copy, where: dict[str, Any]) -> None:
    mine, _ = agree(copy("bert", **where))
    encoding = mine.encode("Hello [MASK]", special=False)
    assert encoding.offsets[-1] == (5, 12)  # the space included
    roberta = {"mask_token": LSTRIP | {"__type": "AddedToken", "content": "<mask>"}}
    mine, _ = agree(copy("roberta", roberta))
    assert mine.encode("The <mask>", special=False).ids == [*mine.encode("The", special=False).ids, mine.special.mask]
    bare, _ = agree(copy("roberta"))
    assert len(bare.encode("The <mask>", special=False).ids) == 1 + len(mine.encode("The <mask>", special=False).ids)


@pytest.mark.parametrize("space", [True, False, None])
def test_gpt2_prefix_space_and_no_start(copy: Copy, space: bool | None) -> None:
    mine, _ = agree(copy("gpt2", {} if space is None else {"add_prefix_space": space}))
    assert (mine.encode("the").ids == mine.encode(" the").ids) == bool(space)
    assert mine.special.end not in mine.encode("the").ids


def test_gpt2_start_on_request(copy: Copy) -> None:
    mine, _ = agree(copy("gpt2", {"add_bos_token": True, "pad_token": "<pad>"}))
    assert mine.encode("the").ids[0] == mine.special.start
    assert mine.special.pad == mine.vocabulary_size - 1  # the vocabulary had none


@pytest.mark.parametrize("space", [True, False])
def test_roberta_post_processing(copy: Copy, space: bool) -> None:
    mine, theirs = agree(copy("roberta", {"add_prefix_space": space}))
    start, end = mine.special.start, mine.special.end
    first, second = mine.encode("the cat", special=False).ids, mine.encode("the dog", special=False).ids
    pair = mine.encode("the cat", "the dog")
    assert pair.ids == [start, *first, end, end, *second, end]
    assert set(pair.segments) == {0}
    expected = theirs("a  cat ", return_offsets_mapping=True)["offset_mapping"]
    assert mine.encode("a  cat ").offsets == expected
    assert (2, 6) not in expected  # trimmed: the space is not part of the token's place


def test_t5_sentinels_end_and_spaces(copy: Copy) -> None:
    mine, _ = agree(copy("t5"))
    size = mine.vocabulary_size
    assert [mine.id_of(f"<extra_id_{i}>") for i in (0, 1, 99)] == [size - 1, size - 2, size - 100]
    assert mine.encode("a <extra_id_0> b").ids.count(size - 1) == 1
    assert mine.encode("the cat").ids[-1] == mine.special.end
    assert mine.encode("  the \n cat ").ids == mine.encode("the cat").ids
    few, _ = agree(copy("t5", {"extra_ids": 10}))
    assert few.vocabulary_size == size - 90
    assert few.id_of("<extra_id_10>") is None


def test_t5_pair(copy: Copy) -> None:
    mine, _ = agree(copy("t5"))
    assert mine.encode("the", "cat").ids.count(mine.special.end or -1) == 2


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": True, "add_eos_token": True}, {"add_bos_token": False}])
@pytest.mark.parametrize("legacy", [True, False, None])
@pytest.mark.parametrize("space", [True, False])
def test_llama_start_prefix_and_bytes(copy: Copy, flags: dict[str, bool], legacy: bool | None, space: bool) -> None:
    family = copy("llama", {"add_bos_token": True, **flags, "legacy": legacy, "add_prefix_space": space})
    mine, _ = agree(family)
    ids = mine.encode("the cat").ids
    assert (ids[0] == mine.special.start) == flags.get("add_bos_token", True)
    assert (ids[-1] == mine.special.end) == flags.get("add_eos_token", False)
    assert mine.encode("the", special=False).tokens[0].startswith("▁") == space
    tokens = mine.encode("𐍈\n", special=False).tokens
    assert tokens[-5:] == ["<0xF0>", "<0x90>", "<0x8D>", "<0x88>", "<0x0A>"]
    for text in ("the  cat ", "two   spaces", "\n", "𐍈"):
        assert mine.decode(mine.encode(text).ids) == text  # only the space that was added is dropped
    for text in ("  two", " two", "    two\n        three"):
        assert mine.decode(mine.encode(text).ids) == text


def test_llama_adds_start_unless_told(copy: Copy) -> None:
    mine = load(copy("llama", {}).folder)
    assert mine.encode("the").ids[0] == mine.special.start == 1


def test_llama_merges_follow_scores(copy: Copy) -> None:
    """Ids in another order than scores: SentencePiece goes by scores."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as messages

    family = copy("llama")
    model = messages.ModelProto()
    model.ParseFromString((family.folder / "tokenizer.model").read_bytes())
    normal = [piece for piece in model.pieces if piece.type == 1]
    scores = [piece.score for piece in normal]
    for piece, score in zip(normal, reversed(scores), strict=True):
        piece.score = score
    (family.folder / "tokenizer.model").write_bytes(model.SerializeToString())
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    mine = load(family.folder)
    for text in ("the cat sat on the mat", "reading and writing", "translations"):
        assert mine.encode(text, special=False).ids == theirs.encode(text)


def test_llama_runs_of_spaces(copy: Copy) -> None:
    """Llama 2 gives all runs of spaces one very low score: they are merged last, from the left."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as messages

    family = copy("llama")
    model = messages.ModelProto()
    model.ParseFromString((family.folder / "tokenizer.model").read_bytes())
    texts = {piece.piece for piece in model.pieces}
    runs = ["▁" * n for n in (2, 4, 3, 8, 5)]
    for run in runs:
        if run not in texts:
            model.pieces.add(piece=run, score=0.0, type=1)
    for piece in model.pieces:
        if set(piece.piece) == {"▁"}:
            piece.score = -1e9
    (family.folder / "tokenizer.model").write_bytes(model.SerializeToString())
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    mine = load(family.folder)
    for count in range(1, 40):
        text = f"the{' ' * count}cat{' ' * (count % 7)}"
        assert mine.encode(text, special=False).ids == theirs.encode(text), count


FLAGS = [
    {"lstrip": True},
    {"rstrip": True},
    {"lstrip": True, "rstrip": True},
    {"normalized": True},
    {"normalized": False},
    {"single_word": True},
    {"special": True},
]


@pytest.mark.parametrize("name", ["bert", "gpt2", "roberta", "t5", "albert", "llama"])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_added_tokens_beyond_the_vocabulary(
    copy: Copy, families: dict[str, Family], name: str, flags: dict[str, bool]
) -> None:
    size = load(families[name].folder).vocabulary_size
    base = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": False}
    listed = {str(size): base | flags | {"content": "NewWord"}, str(size + 1): base | {"content": "<last>"}}
    family = copy(
        name,
        {"add_bos_token": True, "added_tokens_decoder": listed}
        if name == "llama"
        else {"added_tokens_decoder": listed},
    )
    mine, theirs = agree(family)
    for text in ("a NewWord b", "aNewWordb", "newword", "NEWWORD  x", "x \tNewWord\n y", "NewWord<last>"):
        encoding = mine.encode(text)
        found = theirs(text, return_offsets_mapping=True)
        assert encoding.ids == found["input_ids"], text
        assert encoding.offsets == found["offset_mapping"], text
        for skip in (True, False):
            assert mine.decode(encoding.ids, skip_special=skip) == theirs.decode(encoding.ids, skip_special_tokens=skip)
    assert mine.id_of("NewWord") == size
    assert mine.vocabulary_size == size + 2


def test_a_token_with_a_role_is_special(copy: Copy, families: dict[str, Family]) -> None:
    size = load(families["bert"].folder).vocabulary_size
    listed = {str(size): {"content": "<new>", "special": False}}
    mine, theirs = agree(copy("bert", {"added_tokens_decoder": listed, "pad_token": "<new>"}))
    ids = mine.encode("the <new> cat").ids
    assert mine.special.pad == size
    assert size in ids
    assert mine.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == "the cat"


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "llama", "marian"])
def test_added_tokens_json(copy: Copy, families: dict[str, Family], name: str) -> None:
    size = load(families[name].folder).vocabulary_size
    settings = (
        {"add_bos_token": True, "extra_special_tokens": ["<b>"]}
        if name == "llama"
        else {"extra_special_tokens": ["<b>"]}
    )
    family = copy(name, settings, added_tokens={"<a>": size, "<b>": size + 1})
    mine, theirs = agree(family)
    text = "x <a> y<b>z"
    assert mine.encode(text).ids == theirs(text)["input_ids"]
    assert {size, size + 1} <= set(mine.encode(text).ids)
    assert mine.decode(mine.encode(text).ids) == theirs.decode(mine.encode(text).ids, skip_special_tokens=True)


def test_an_id_that_the_vocabulary_does_not_lead_to(copy: Copy) -> None:
    family = copy("bert", {"added_tokens_decoder": {"90000": {"content": "<far>"}}})
    with pytest.raises(CheckpointError, match="give '<far>' the id 90000, but the vocabulary gives it"):
        load_tokenizer(family.folder)


def test_settings_that_cut_or_pad_are_not_obeyed(families: dict[str, Family], tmp_path: Path) -> None:
    """all-MiniLM's tokenizer.json cuts at 128 tokens and pads: nobody asked for it."""
    load(families["bert"].folder).save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[PAD]",
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    mine = load(tmp_path)
    assert mine.encode("the cat sat on the mat") == load(families["bert"].folder).encode("the cat sat on the mat")


def test_tidying(copy: Copy) -> None:
    text = "Hello , world . How are you ? I ' m fine , do n't worry !"
    for name in ("t5", "gpt2", "bert"):
        for tidy in (True, False):
            family = copy(name, {"clean_up_tokenization_spaces": tidy})
            mine, theirs = load(family.folder), family.theirs()
            ids = mine.encode(text).ids
            assert mine.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
            assert mine.decode_many([ids]) == [mine.decode(ids)]
            if name == "t5":
                assert (", world." in mine.decode(ids)) == tidy


def test_split_special_tokens(copy: Copy) -> None:
    mine, _ = agree(copy("gpt2", {"split_special_tokens": True}))
    assert mine.special.end not in mine.encode("<|endoftext|>").ids


def test_max_length_is_told_not_imposed(copy: Copy) -> None:
    mine = load(copy("bert", {"model_max_length": 5}).folder)
    assert mine.max_length == 5
    assert len(mine.encode("the cat sat on the mat").ids) > 5
    assert load(copy("bert", {"model_max_length": 1000000000000000019884624838656}).folder).max_length is None


def test_user_defined_symbols(families: dict[str, Family], tmp_path: Path) -> None:
    data = pieces(
        model_type="unigram",
        vocab_size=300,
        bos_id=-1,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        user_defined_symbols=["<sep>", "cat"],
    )
    (tmp_path / "spiece.model").write_bytes(data)
    mine, theirs = agree(Family("t5", tmp_path, families["t5"].reference))
    for text in ("concatenate<sep>x", "cat cat", "a<sep> b"):
        assert mine.encode(text).ids == theirs(text)["input_ids"]
        assert mine.decode(mine.encode(text).ids) == theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)


def test_plain_sentencepiece_equals_its_library(tmp_path: Path) -> None:
    import sentencepiece

    for options in (
        {"model_type": "unigram"},
        {"model_type": "bpe"},
        {"model_type": "unigram", "add_dummy_prefix": False},
    ):
        data = pieces(vocab_size=300, normalization_rule_name="nmt_nfkc", **options)
        (tmp_path / "tokenizer.model").write_bytes(data)
        mine = load(tmp_path)
        theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
        for text in ("Hello world", " the  cat ", "forêt ﬁ", "2 < 3", "café"):
            assert mine.encode(text).ids == theirs.encode(text), (options, text)
