"""llama2.c's files: a header of seven numbers (version 0) or 256 bytes (version 1), then float32 weights in order.

Its queries and keys are laid out for rotating neighbours; here they are for halves, as in every other Llama.
"""

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cutaway.checkpoints.assign import assign_weights, on_meta_safely
from cutaway.checkpoints.rules import SAME, Operation, halves
from cutaway.errors import CheckpointError, ConfigError
from cutaway.files import open_file
from cutaway.models.config import TransformerConfig
from cutaway.models.network import Network
from cutaway.models.presets import llama
from cutaway.text import recipes, sentencepiece
from cutaway.text.sentencepiece import SentencePieceModel
from cutaway.text.settings import TokenizerSettings
from cutaway.text.tokenizer import Tokenizer

MAGIC = 0x616B3432  # "ak42", before version 1
LARGEST = 2**24
PICKLES = (b"PK\x03\x04", b"\x80\x02")
"""The first bytes of files of torch.save: zip archives with a pickle in them, or before 2020 the pickle itself."""


@dataclass(frozen=True)
class Header:
    dim: int
    d_ff: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    vocabulary: int
    context: int
    tied: bool
    version: int
    n_bytes: int  # of the header

    @property
    def d_head(self) -> int:
        return self.dim // self.n_heads

    @property
    def config(self) -> TransformerConfig:
        return llama(
            self.n_layers, self.dim, self.n_heads, self.d_ff, self.vocabulary, self.context,
            n_kv_heads=self.n_kv_heads, tied=self.tied,
        )  # fmt: skip


def read_header(file: Path) -> Header:
    """The header, checked against the size of the file."""
    try:
        with file.open("rb") as stream:
            start = stream.read(256)
        size = file.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{file} can't be read: {error.strerror}") from None
    if start.startswith(PICKLES):
        raise CheckpointError(
            f"{file} is a file of torch.save, a pickle, which can run any code when it is opened; convert it once, "
            f"with its config.json beside it: cutaway convert --from-pickle {file} NEW-FOLDER"
        )
    not_one = f"{file} is not a llama2.c model"
    if len(start) < 28:
        raise CheckpointError(f"{not_one}: it has {size} bytes, fewer than a header")
    if struct.unpack_from("<I", start)[0] == MAGIC:
        if len(start) < 256:
            raise CheckpointError(f"{not_one}: its header is cut off")
        version, dim, d_ff, n_layers, n_heads, n_kv_heads, vocabulary, context, tied = struct.unpack_from(
            "<i7iB", start, 4
        )
        if version != 1:
            raise CheckpointError(f"{file} is of llama2.c's version {version}; cutaway reads 0 and 1 (float32)")
        header = Header(
            dim, d_ff, n_layers, n_heads, n_kv_heads, vocabulary, context, tied=bool(tied), version=1, n_bytes=256
        )
    else:
        dim, d_ff, n_layers, n_heads, n_kv_heads, vocabulary, context = struct.unpack_from("<7i", start)
        header = Header(
            dim, d_ff, n_layers, n_heads, n_kv_heads, abs(vocabulary), context,
            tied=vocabulary > 0, version=0, n_bytes=28,
        )  # fmt: skip
    numbers = [header.dim, header.d_ff, header.n_layers, header.n_heads, header.n_kv_heads, header.vocabulary]
    if not all(1 <= number <= LARGEST for number in (*numbers, header.context)) or header.dim % header.n_heads:
        raise CheckpointError(f"{not_one}: its first numbers are {numbers}, no sizes of a Llama")
    expected = header.n_bytes + 4 * sum(math.prod(piece.shape) for piece in _layout(header))
    if size != expected:
        raise CheckpointError(f"{not_one}, or not a whole one: its header asks for {expected:,} bytes, it has {size:,}")
    return header


@dataclass(frozen=True)
class TensorBlock:
    """The next numbers in the file: of one tensor, or of the same one in each block ({i})."""

    ours: str | None  # None: not needed
    shape: tuple[int, ...]
    operation: Operation = SAME


def _layout(header: Header) -> Iterator[TensorBlock]:
    """The layout of the file after its header: each tensor's name and shape, in order. No numbers are read."""
    L, D, F = header.n_layers, header.dim, header.d_ff
    kv = header.d_head * header.n_kv_heads
    block = "decoder.blocks.{i}."
    words = TensorBlock("decoder.embedding.tokens.weight", (header.vocabulary, D))
    norms = [
        TensorBlock(block + "self_attention_norm.weight", (L, D)),
        TensorBlock(block + "feedforward_norm.weight", (L, D)),
    ]
    last = TensorBlock("decoder.final_norm.weight", (D,))
    attention = [
        TensorBlock(block + "self_attention.q.weight", (L, D, D), halves(header.n_heads)),
        TensorBlock(block + "self_attention.k.weight", (L, kv, D), halves(header.n_kv_heads)),
        TensorBlock(block + "self_attention.v.weight", (L, kv, D)),
        TensorBlock(block + "self_attention.out.weight", (L, D, D)),
    ]
    feedforward = [
        TensorBlock(block + "feedforward.gate.weight", (L, F, D)),
        TensorBlock(block + "feedforward.down.weight", (L, D, F)),
        TensorBlock(block + "feedforward.up.weight", (L, F, D)),
    ]
    if header.version == 0:
        yield from (words, norms[0], *attention, norms[1], *feedforward, last)
        yield TensorBlock(None, (2, header.context, header.d_head // 2))  # cosines and sines
    else:
        yield from (*norms, last, words, *attention, *feedforward)
    if not header.tied:
        yield TensorBlock("head.vocabulary.weight", (header.vocabulary, D))


def read(file: Path, dtype: torch.dtype | None = None) -> Network:
    """The network, its weights mapped from the file (queries and keys are copied)."""
    header = read_header(file)
    try:
        config = header.config
    except ConfigError as error:
        raise CheckpointError(f"{file}: {error}") from None
    n_floats = (file.stat().st_size - header.n_bytes) // 4
    everything = torch.from_file(str(file), size=header.n_bytes // 4 + n_floats, dtype=torch.float32)
    numbers = everything[header.n_bytes // 4 :]
    found: dict[str, Tensor] = {}
    for piece in _layout(header):
        n = math.prod(piece.shape)
        tensor, numbers = numbers[:n].view(piece.shape), numbers[n:]
        if piece.ours is None:
            continue
        for i, one in enumerate(tensor) if "{i}" in piece.ours else [(0, tensor)]:
            found[piece.ours.replace("{i}", str(i))] = piece.operation.load(one)[0].to(dtype or torch.float32)
    return assign_weights(on_meta_safely(config, len(found)), found)


def _vocabulary(file: Path, size: int) -> list[tuple[str, float]] | None:
    """llama2.c's tokenizer file: the longest token's length, then score, length and bytes of each token.

    It does not say how many there are; None if they are not `size`.
    """
    try:
        with open_file(file) as stream:
            data = stream.read(64_000_000)  # a larger one is cut off, and so not whole
        pieces: list[tuple[str, float]] = []
        place = 4
        for _ in range(size):
            score, length = struct.unpack_from("<fi", data, place)
            if not 0 <= length <= len(data) - place - 8:
                return None
            pieces.append((data[place + 8 : place + 8 + length].decode("utf-8"), score))
            place += 8 + length
    except (struct.error, UnicodeDecodeError, OSError):
        return None
    return pieces if place == len(data) else None


def tokenizer_beside(file: Path, size: int) -> Tokenizer | None:
    """The tokenizer in the file tok*.bin of the same folder, if there is one for that many tokens."""
    candidates = [other for other in sorted(file.parent.glob("tok*.bin")) if other != file]
    pieces = next((pieces for other in candidates if (pieces := _vocabulary(other, size)) is not None), None)
    if pieces is None:
        return None
    model = SentencePieceModel(
        pieces=[_piece(*piece) for piece in pieces],
        is_bpe=True, unknown=0, unknown_surface=" ⁇ ", byte_fallback=True, suffix=False, charsmap=b"",
        dummy_prefix=True, squeeze=False, escape=True,
    )  # fmt: skip
    return recipes.llama(model, TokenizerSettings())


def _piece(text: str, score: float) -> sentencepiece.Piece:
    """A piece as SentencePiece spells it: llama2.c writes ▁ as a space, and line feeds around two control symbols."""
    kind = sentencepiece.NORMAL
    if text == "<unk>":
        kind = sentencepiece.UNKNOWN
    elif text.strip("\n") in ("<s>", "</s>"):
        text, kind = text.strip("\n"), sentencepiece.CONTROL
    elif re.fullmatch(r"<0x[0-9A-F]{2}>", text):
        kind = sentencepiece.BYTE
    return sentencepiece.Piece(text.replace(" ", sentencepiece.SPACE), score, kind)
