"""Marian's tokenizer: SentencePiece segments the text, one model a side; ids come from a separate vocabulary."""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from cutaway.errors import CheckpointError
from cutaway.text.segment import Longest, Segmenter
from cutaway.text.sentencepiece import parse
from cutaway.text.settings import TokenizerSettings, read_bytes, read_vocabulary
from cutaway.text.tokenizer import ROLES, Encoding, Tokenizer, check_text, kept_places, token_ids

Found = tuple[str, int, tuple[int, int]]


class MarianTokenizer(Tokenizer):
    """Source and target have a SentencePiece model each, and share one vocabulary unless there are two.

    A text for a model of several languages begins with the target language: ">>fra<< Good morning."
    """

    def __init__(
        self,
        source: bytes,
        target: bytes,
        vocabulary: Mapping[str, int],
        target_vocabulary: Mapping[str, int] | None = None,
        settings: TokenizerSettings | None = None,
    ) -> None:
        settings = settings or TokenizerSettings()
        defaults = {"end": "</s>", "unknown": "<unk>", "pad": "<pad>"}
        every = {role: AddedToken(text, special=True) for role, text in defaults.items()} | dict(settings.named)
        named = {role: token for role, token in every.items() if token is not None}
        length = settings.max_length if "model_max_length" in settings.values else 512
        super().__init__({role: token.content for role, token in named.items()}, length, settings.chat_template)
        self._files = {"source.spm": source, "target.spm": target}
        self._sides = {name: Segmenter(parse(data, Path(name))) for name, data in self._files.items()}
        self._vocabulary = dict(vocabulary)
        self._target_vocabulary = None if target_vocabulary is None else dict(target_vocabulary)
        self._languages = {
            key: settings.values[key] for key in ("source_lang", "target_lang") if key in settings.values
        }
        if self.names.get("unknown") not in self._vocabulary:
            raise CheckpointError(f"vocab.json has no '{self.names.get('unknown')}'; unknown pieces need it")
        self._add(settings, named)
        by_id = self._target_vocabulary or self._vocabulary
        self._tokens = {number: token for token, number in by_id.items()} | {
            number: token.content for number, token in self._added.items()
        }

    def _add(self, settings: TokenizerSettings, named: Mapping[str, AddedToken]) -> None:
        """Added tokens, which are split off before SentencePiece runs; new ones get the next ids."""
        self._added = dict(settings.added)
        ids = {token.content: number for number, token in self._added.items()}
        known = self._vocabulary | ids
        for token in (*(named[role] for role in ROLES if role in named), *settings.extra):
            if token.content not in ids:
                ids[token.content] = number = known.setdefault(token.content, len(known))
                self._added[number] = token
        self._added_ids = ids
        self._names = Longest(ids)
        self._special = {*self.names.values(), *(token.content for token in settings.extra)}

    @property
    def kind(self) -> str:
        return "Marian"

    @functools.cached_property
    def vocabulary_size(self) -> int:
        both = {**self._vocabulary, **self._added_ids}.values(), (self._target_vocabulary or {}).values()
        return 1 + max(max(numbers, default=-1) for numbers in both)

    def id_of(self, token: str) -> int | None:
        return self._added_ids.get(token, self._vocabulary.get(token))

    def token_of(self, number: int) -> str | None:
        return self._tokens.get(number)

    def encode(
        self, text: str, pair: str | None = None, *, special: bool = True, max_length: int | None = None
    ) -> Encoding:
        """The pieces of `text` and </s>. Marian has no pairs: two texts are joined without a separator."""
        return self._encoding([text] if pair is None else [text, pair], "source.spm", special, max_length)

    def encode_target(self, text: str, *, special: bool = True, max_length: int | None = None) -> Encoding:
        return self._encoding([text], "target.spm", special, max_length)

    def encode_many(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        *,
        special: bool = True,
        max_length: int | None = None,
        target: bool = False,
    ) -> list[Encoding]:
        side = "target.spm" if target else "source.spm"
        return [self._encoding([item] if isinstance(item, str) else item, side, special, max_length) for item in texts]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        # transformers joins with the source's model, unless each side has its own vocabulary; the texts are the same
        # except for spaces around tokens that only one of the models knows.
        side = self._sides["source.spm" if self._target_vocabulary is None else "target.spm"]
        text = ""
        pieces: list[str] = []
        for number in token_ids(ids):
            token = self._tokens.get(number)
            if token is None or (skip_special and token in self._special):
                continue
            if token in self._special:
                text += side.join(pieces) + token + " "
                pieces = []
            else:
                pieces.append(token)
        return (text + side.join(pieces)).replace("▁", " ").strip()

    def save(self, folder: Path) -> None:
        files = {**self._files, "vocab.json": _json(self._vocabulary)}
        if self._target_vocabulary is not None:
            files["target_vocab.json"] = _json(self._target_vocabulary)
        beyond = {
            str(number): {
                "content": token.content,
                **{flag: getattr(token, flag) for flag in ("lstrip", "normalized", "rstrip", "single_word", "special")},
            }
            for number, token in sorted(self._added.items())
        }
        settings = {
            **self._languages,
            "tokenizer_class": "MarianTokenizer",
            "added_tokens_decoder": beyond,
            "separate_vocabs": self._target_vocabulary is not None,
        }
        self._write(folder, files, settings)

    def _encoding(self, texts: Sequence[str], side: str, special: bool, max_length: int | None) -> Encoding:
        found: list[Found] = []
        sequences: list[int | None] = []
        for sequence, text in enumerate(texts):
            check_text(text)
            found += self._pieces(text, side)
            sequences += [sequence] * (len(found) - len(sequences))
        if special and "end" in self.names:
            found.append((self.names["end"], self._added_ids[self.names["end"]], (0, 0)))
            sequences.append(None)
        truncated = max_length is not None and len(found) > max_length
        if max_length is not None and truncated:
            found = [found[place] for place in kept_places(sequences, max_length)]
        return Encoding(
            [number for _, number, _ in found],
            [token for token, _, _ in found],
            [span for _, _, span in found],
            [0] * len(found),
            truncated,
        )

    def _pieces(self, text: str, side: str) -> list[Found]:
        own = self._target_vocabulary if side == "target.spm" else None
        vocabulary = self._vocabulary if own is None else own
        unknown = vocabulary.get(self.names["unknown"], self._vocabulary[self.names["unknown"]])
        found: list[Found] = []
        for start, end, token in self._parts(text):
            if token is not None:
                found.append((token, self._added_ids[token], (start, end)))
                continue
            if text.startswith(">>", start) and (close := text.find("<<", start, end)) != -1:
                code = text[start : close + 2]
                found.append((code, vocabulary.get(code, unknown), (start, close + 2)))
                start = close + 2
            for piece, (first, last) in self._sides[side].split(text[start:end]):
                found.append((piece, vocabulary.get(piece, unknown), (start + first, start + last)))
        return found

    def _parts(self, text: str) -> list[tuple[int, int, str | None]]:
        """The text split at added tokens: (start, end, token or None), the longest token first at each place."""
        parts: list[tuple[int, int, str | None]] = []
        start = at = 0
        while begin := self._names.begins.search(text, at):
            at = begin.start()
            token = self._names.at(text, at)
            if token is None:
                at += 1
                continue
            if start < at:
                parts.append((start, at, None))
            parts.append((at, at + len(token), token))
            start = at = at + len(token)
        if start < len(text):
            parts.append((start, len(text), None))
        return _stripped(text, parts, {token.content: token for token in self._added.values()})


def _stripped(
    text: str, parts: list[tuple[int, int, str | None]], added: Mapping[str, AddedToken]
) -> list[tuple[int, int, str | None]]:
    """Tokens with lstrip or rstrip take the white space beside them."""
    parts = list(parts)
    for i, (_, _, name) in enumerate(parts):
        if name is None:
            continue
        if added[name].rstrip and i + 1 < len(parts) and parts[i + 1][2] is None:
            start, end, _ = parts[i + 1]
            parts[i + 1] = (end - len(text[start:end].lstrip()), end, None)
        if added[name].lstrip and i and parts[i - 1][2] is None:
            start, end, _ = parts[i - 1]
            parts[i - 1] = (start, start + len(text[start:end].rstrip()), None)
    return [part for part in parts if part[0] < part[1]]


def load_marian(folder: Path, settings: TokenizerSettings) -> MarianTokenizer:
    source, target = read_bytes(folder, "source.spm"), read_bytes(folder, "target.spm")
    vocabulary = read_vocabulary(folder, "vocab.json")
    if source is None or target is None or vocabulary is None:
        raise CheckpointError(f"{folder} lacks one of Marian's files: source.spm, target.spm, vocab.json")
    own = None
    if settings.flag("separate_vocabs", False) and (own := read_vocabulary(folder, "target_vocab.json")) is None:
        raise CheckpointError(
            f"{folder} lacks target_vocab.json, which its tokenizer_config.json (separate_vocabs) needs"
        )
    try:
        return MarianTokenizer(source, target, vocabulary, own, settings)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=2).encode()
