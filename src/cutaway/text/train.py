"""Training of tokenizers: the same texts and settings always give the same vocabulary."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, Unigram, WordPiece

from cutaway.errors import ConfigError, InputError, unknown
from cutaway.text.fast import FastTokenizer
from cutaway.text.tokenizer import ROLES, Tokenizer

Kind = Literal["bpe", "wordpiece", "unigram", "byte", "character"]

Frame = Literal["both", "end", "none"]

SPECIAL = {"pad": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>", "mask": "<mask>"}
"""Role -> token; they get the ids 0 to 4."""


def train_tokenizer(
    texts: Iterable[str],
    kind: Kind = "bpe",
    vocabulary: int = 8000,
    *,
    lowercase: bool = False,
    elisions: bool = False,
    special: Mapping[str, str] | None = None,
    frame: Frame = "both",
) -> Tokenizer:
    """Trains a tokenizer of at most `vocabulary` tokens on `texts`.

    bpe        byte-level BPE: any text can be encoded, and is decoded exactly
    wordpiece  as BERT's: words split into pieces, accents and case as in the text unless `lowercase`
    unigram    as SentencePiece's: the pieces that make the texts most probable
    byte       the 256 bytes, nothing learnt
    character  the characters of the texts, and bytes for all others

    `elisions`, for bpe: "l'homme" is read as "l'" and the same "homme" as after a space, for French. A text with word
    joiners, U+2060, loses them then.

    `frame`: an encoded text has a start and an end token ("both"), only an end token, as for translators, or none.
    `special` renames the special tokens, or adds separator and classify.
    """
    if kind not in _MAKERS:
        raise ConfigError(unknown("kind of tokenizer", str(kind), _MAKERS))
    for role in special or {}:
        if role not in ROLES:
            raise ConfigError(unknown("role of a special token", role, ROLES))
    names = SPECIAL | dict(special or {})
    tokens = list(dict.fromkeys(names.values()))
    least = len(tokens) + (256 if kind in ("bpe", "byte", "character") else 1)
    if vocabulary < least:
        raise ConfigError(f"vocabulary={vocabulary} is too small; kind='{kind}' needs at least {least} tokens")
    if elisions and kind != "bpe":
        raise ConfigError(f"elisions=True is for kind='bpe', not for {kind!r}; leave one of the two out")
    make = _bpe_with_elisions if elisions else _MAKERS[kind]
    backend = make(_checked(texts), vocabulary, tokens, names["unknown"], lowercase)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    start = [f"{names['start']}:0"] if frame == "both" else []
    end = [f"{names['end']}:{side}" for side in (0, 1)] if frame != "none" else []
    backend.post_processor = processors.TemplateProcessing(
        single=[*start, "$A:0", *end[:1]],
        pair=[*start, "$A:0", *end[:1], "$B:1", *end[1:]],
        special_tokens=[(token, tokens.index(token)) for token in dict.fromkeys((names["start"], names["end"]))],
    )
    inputs = {"model_input_names": ["input_ids", "attention_mask"]}
    return FastTokenizer(backend, names, settings=inputs)


def _checked(texts: Iterable[str]) -> Iterator[str]:
    if isinstance(texts, str):
        raise InputError("texts is one text; give a list of texts")
    some = False
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {number} is {type(text).__name__}; expected str")
        some = some or bool(text.strip())
        yield text
    if not some:
        raise InputError("there is no text to learn a vocabulary from")


def _bpe(texts: Iterator[str], size: int, special: list[str], _: str, lowercase: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(BPE())
    backend.normalizer = normalizers.Lowercase() if lowercase else None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _merged(backend, texts, size, special)


_JOIN = "\u2060"  # Unicode's word joiner: between an elided word and the space that the next word gets
_ELIDED = r"(?<=\p{L})%s(?!(?:s|t|re|ve|m|ll|d)\b)(?=\p{L})"  # English "it's", "don't" are split as without elisions
_WORDS = rf"'(?:s|t|re|ve|m|ll|d)\b| ?\p{{L}}+['’]{_JOIN}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"


def _bpe_with_elisions(
    texts: Iterator[str], size: int, special: list[str], _: str, lowercase: bool
) -> tokenizers.Tokenizer:
    """ "l'homme" is split into "l'" + joiner, " homme"; decoding removes the joiner and the space."""
    backend = tokenizers.Tokenizer(BPE())
    spaced = [normalizers.Replace(Regex(_ELIDED % mark), f"{mark}{_JOIN} ") for mark in "'’"]
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *spaced] if lowercase else spaced)
    words = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace(f"{_JOIN} ", ""), decoders.Replace(_JOIN, "")]
    )
    return _merged(backend, texts, size, special)


def _merged(backend: tokenizers.Tokenizer, texts: Iterator[str], size: int, special: list[str]) -> tokenizers.Tokenizer:
    """Byte-level BPE: bytes, joined where they often meet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _wordpiece(
    texts: Iterator[str], size: int, special: list[str], unknown: str, lowercase: bool
) -> tokenizers.Tokenizer:
    """WordPiece, trained deterministically; the library's own trainer breaks ties by the order of a hash table.

    Here characters inside words have stand-ins from Unicode's private planes (BERT's normaliser removes those from
    texts), a plain BPE is trained, which is deterministic, and the stand-ins are replaced by the characters again.
    """
    cleaned, words = normalizers.BertNormalizer(lowercase=lowercase), pre_tokenizers.BertPreTokenizer()
    inside: dict[str, str] = {}

    def stand_in(character: str) -> str:
        return inside.setdefault(character, chr(0xF0000 + len(inside)))

    def lines() -> Iterator[str]:
        for text in texts:
            found = (word for word, _ in words.pre_tokenize_str(cleaned.normalize_str(text)))
            yield " ".join(word[0] + "".join(map(stand_in, word[1:])) for word in found)

    bpe = tokenizers.Tokenizer(BPE())
    bpe.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    bpe.train_from_iterator(lines(), trainer)
    back = {ord(private): character for character, private in inside.items()}
    pieces = sorted(bpe.get_vocab().items(), key=lambda item: item[1])
    marked = {("##" if ord(piece[0]) in back else "") + piece.translate(back): i for piece, i in pieces}
    backend = tokenizers.Tokenizer(WordPiece(marked, unk_token=unknown))
    backend.normalizer, backend.pre_tokenizer = cleaned, words
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def _unigram(
    texts: Iterator[str], size: int, special: list[str], unknown: str, lowercase: bool
) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(Unigram())
    steps: list[Any] = [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Lowercase()] if lowercase else steps)
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=special, unk_token=unknown, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    model = json.loads(backend.to_str())["model"]
    backend.model = Unigram(_settled(model["vocab"], special), unk_id=special.index(unknown))
    return backend


def _settled(scored: list[tuple[str, float]], special: list[str]) -> list[tuple[str, float]]:
    """The same pieces and scores, in an order that does not depend on the library's hash tables.

    Characters too rare to be pieces get the lowest scores, 0.0001 apart: in a table's order there, by code point here.
    """
    scores = {piece: round(score, 6) for piece, score in scored if piece not in special}
    lowest = min(scores.values(), default=0.0)
    by_score = {score: piece for piece, score in scores.items() if len(piece) == 1}
    rare: list[str] = []
    while (piece := by_score.get(round(lowest + 0.0001 * len(rare), 6))) is not None:
        rare.append(piece)
    for number, piece in enumerate(sorted(rare)):
        scores[piece] = round(lowest + 0.0001 * number, 6)
    return [(token, 0.0) for token in special] + sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def _byte(_: Iterator[str], __: int, special: list[str], ___: str, lowercase: bool) -> tokenizers.Tokenizer:
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = tokenizers.Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, []))
    backend.normalizer = normalizers.Lowercase() if lowercase else None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _character(texts: Iterator[str], size: int, special: list[str], _: str, lowercase: bool) -> tokenizers.Tokenizer:
    counts = Counter(character for text in texts for character in (text.lower() if lowercase else text))
    fixed = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    often = sorted((character for character in counts if character not in fixed), key=lambda c: (-counts[c], c))
    tokens = [*fixed, *sorted(often[: size - len(fixed)])]
    backend = tokenizers.Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, [], byte_fallback=True))
    backend.normalizer = normalizers.Lowercase() if lowercase else None
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return backend


_MAKERS: dict[str, Callable[[Iterator[str], int, list[str], str, bool], tokenizers.Tokenizer]] = {
    "bpe": _bpe,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
    "byte": _byte,
    "character": _character,
}
