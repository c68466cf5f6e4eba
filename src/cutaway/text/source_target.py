"""Two vocabularies: one for the source, one for the target."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from cutaway.errors import CheckpointError
from cutaway.text.tokenizer import Encoding, Tokenizer

TARGET = "target_tokenizer.json"


class TwoTokenizers(Tokenizer):
    """`encode` reads the source; `encode_target`, `decode`, ids and tokens are the target's.

    In a folder, tokenizer.json is the source's, which transformers reads too, and target_tokenizer.json the target's.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        if source.special != target.special:
            raise CheckpointError("the two tokenizers have different special tokens; train both with the same ones")
        super().__init__(target.names, source.max_length, None)
        self.source, self.target = source, target

    @property
    def vocabulary_size(self) -> int:
        return max(self.source.vocabulary_size, self.target.vocabulary_size)

    @property
    def kind(self) -> str:
        return self.source.kind

    def id_of(self, token: str) -> int | None:
        return self.target.id_of(token)

    def token_of(self, number: int) -> str | None:
        return self.target.token_of(number)

    def encode(
        self, text: str, pair: str | None = None, *, special: bool = True, max_length: int | None = None
    ) -> Encoding:
        return self.source.encode(text, pair, special=special, max_length=max_length)

    def encode_target(self, text: str, *, special: bool = True, max_length: int | None = None) -> Encoding:
        return self.target.encode(text, special=special, max_length=max_length)

    def encode_many(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        *,
        special: bool = True,
        max_length: int | None = None,
        target: bool = False,
    ) -> list[Encoding]:
        side = self.target if target else self.source
        return side.encode_many(texts, special=special, max_length=max_length)

    def encode_ids(
        self, texts: Sequence[str], *, special: bool = True, max_length: int | None = None, target: bool = False
    ) -> list[list[int]]:
        side = self.target if target else self.source
        return side.encode_ids(texts, special=special, max_length=max_length)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        return self.target.decode(ids, skip_special=skip_special)

    def decode_many(self, rows: Iterable[Iterable[int]], *, skip_special: bool = True) -> list[str]:
        return self.target.decode_many(rows, skip_special=skip_special)

    def save(self, folder: Path) -> None:
        with tempfile.TemporaryDirectory() as aside:
            self.target.save(Path(aside))
            target = (Path(aside) / "tokenizer.json").read_bytes()
        self.source.save(folder)
        try:
            (folder / TARGET).write_bytes(target)
        except OSError as error:
            raise CheckpointError(f"can't write the tokenizer to {folder}: {error.strerror or error}") from None
