"""Tokenizers that run in the `tokenizers` library: all but Marian's."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from cutaway.errors import InputError
from cutaway.text.tokenizer import Encoding, Tokenizer, check_text, kept_places, token_ids

KEPT = ("clean_up_tokenization_spaces", "model_input_names", "padding_side", "split_special_tokens", "truncation_side")
"""Settings that are written back unchanged."""


class FastTokenizer(Tokenizer):
    """One class for every kind of vocabulary; `backend` has its segmentation, its decoder and its special tokens."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        names: Mapping[str, str],
        *,
        max_length: int | None = None,
        chat_template: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(names, max_length, chat_template)
        self._settings = {key: value for key, value in (settings or {}).items() if key in KEPT}
        self.backend = backend
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = bool(self._settings.get("split_special_tokens", False))
        # where spaces are part of tokens, as in BPE, cleaning up would lose some; transformers does not do it there
        is_bpe = type(backend.model).__name__ == "BPE"
        self._tidy = bool(self._settings.get("clean_up_tokenization_spaces", False)) and not is_bpe
        if self._tidy:
            self.unsettled = sum(len(spaced) - 1 for spaced in _SPACED)  # the lookahead of each replacement

    @functools.cached_property
    def vocabulary_size(self) -> int:
        return 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def kind(self) -> str:
        model = self.backend.model
        name = type(model).__name__
        if name == "BPE":
            if b'"ByteLevel"' in _state(self.backend.pre_tokenizer) + _state(self.backend.normalizer):
                return "byte-level BPE"
            return "BPE with byte fallback" if model.byte_fallback else "BPE"
        return {"Unigram": "unigram", "WordLevel": "word level"}.get(name, name)

    def id_of(self, token: str) -> int | None:
        return self.backend.token_to_id(token)

    def token_of(self, number: int) -> str | None:
        return self.backend.id_to_token(number) if 0 <= number < 2**32 else None

    def encode(
        self, text: str, pair: str | None = None, *, special: bool = True, max_length: int | None = None
    ) -> Encoding:
        check_text(text)
        if pair is not None:
            check_text(pair)
        with _explained():
            found = self.backend.encode(text, pair, add_special_tokens=special)
        return _encoding(found, max_length)

    def encode_many(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        *,
        special: bool = True,
        max_length: int | None = None,
        target: bool = False,
    ) -> list[Encoding]:
        """On all cores, unless TOKENIZERS_PARALLELISM=false; on one in a process forked after such work."""
        for item in texts:
            for text in (item,) if isinstance(item, str) else item:
                check_text(text)
        with _explained():
            found = self.backend.encode_batch(texts, add_special_tokens=special)
        return [_encoding(one, max_length) for one in found]

    def encode_ids(
        self, texts: Sequence[str], *, special: bool = True, max_length: int | None = None, target: bool = False
    ) -> list[list[int]]:
        for text in texts:
            check_text(text)
        with _explained():
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=special)
        rows = []
        for found in encodings:
            ids = found.ids
            if max_length is not None and len(ids) > max_length:
                ids = [ids[place] for place in kept_places(found.sequence_ids, max_length)]
            rows.append(ids)
        return rows

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        numbers = token_ids(ids)
        with _explained():
            text = self.backend.decode(numbers, skip_special_tokens=skip_special)
        return _tidied(text) if self._tidy else text

    def decode_many(self, rows: Iterable[Iterable[int]], *, skip_special: bool = True) -> list[str]:
        numbers = [token_ids(ids) for ids in rows]
        with _explained():
            texts = self.backend.decode_batch(numbers, skip_special_tokens=skip_special)
        return [_tidied(text) for text in texts] if self._tidy else texts

    def save(self, folder: Path) -> None:
        # PreTrainedTokenizerFast means "as tokenizer.json says"; named classes rebuild parts of it by their own rules.
        settings = {**self._settings, "tokenizer_class": "PreTrainedTokenizerFast"}
        self._write(folder, {"tokenizer.json": self.backend.to_str(pretty=True).encode()}, settings)


@contextmanager
def _explained() -> Iterator[None]:
    """A failure of the library as a sentence: a pattern that gives up, say, which is a panic of its Rust code."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic is not an Exception
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the model's tokenizer fails on this input: {reason}") from None


def _encoding(found: tokenizers.Encoding, max_length: int | None) -> Encoding:
    ids, tokens, offsets, segments = found.ids, found.tokens, found.offsets, found.type_ids
    if max_length is None or len(ids) <= max_length:
        return Encoding(ids, tokens, offsets, segments)
    # Cut here and not by the library, which keeps the length on the object that other threads use.
    keep = kept_places(found.sequence_ids, max_length)
    return Encoding(
        [ids[i] for i in keep], [tokens[i] for i in keep], [offsets[i] for i in keep], [segments[i] for i in keep], True
    )


_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def _tidied(text: str) -> str:
    """English without the spaces that word splitting inserts ("clean_up_tokenization_spaces")."""
    for spaced in _SPACED:
        text = text.replace(spaced, spaced.strip())
    return text


def _state(part: Any) -> bytes:
    return b"" if part is None else bytes(part.__getstate__())
