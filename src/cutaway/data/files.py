"""Files as bytes, decompressed by their suffix; a missing, truncated or damaged one is an InputError."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, cast

from cutaway.errors import InputError
from cutaway.text.lines import LONGEST

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

COMPRESSED = (".gz", ".xz", ".bz2", ".zst")
_OPENERS: dict[str, Callable[[IO[bytes]], AbstractContextManager[Any]]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file), ".bz2": bz2.BZ2File,
}  # fmt: skip
_CHUNK = 1 << 16
_XZ_MEMORY = 1 << 28
"""Bytes of xz's memory at most: a file of 200 bytes can ask for 4 GB. Level -9 takes 65 MB."""
_ALLOWED, _GROWTH = 1 << 26, 1000
"""The most bytes of a decompressed file: a constant, and a factor for each byte on disk. A repeated line shrinks to a
7,000th in xz, and 2 GB of it to 1,426 bytes in bz2."""
_ZSTD_CHUNK = 1 << 10
"""Bytes that zstd gets at once: 4 of them may become 128 KB, so this becomes at most 32 MB."""


def inner_name(path: str | Path) -> str:
    """The file's name without its compression: that of `data/train.tsv.gz` is `train.tsv`."""
    path = Path(path)
    return path.stem if path.suffix.lower() in COMPRESSED else path.name


def open_bytes(path: str | Path) -> IO[bytes]:
    """A file's content, decompressed if its name ends in .gz, .xz, .bz2 or .zst.

    Opening or reading it raises InputError where it is missing, a folder, cut off or damaged.
    """
    size_of(path)
    return cast(IO[bytes], io.BufferedReader(_Pieces(_pieces(Path(path))), _CHUNK))


def lines(path: str | Path) -> Iterator[bytes]:
    """The lines of a file with their ends; one of more than 16 MB comes in parts, the first longer than LONGEST."""
    with open_bytes(path) as file:
        while line := file.readline(LONGEST + 1):
            yield line


def n_lines(path: str | Path) -> int:
    """The number of lines that `lines` gives, without decoding them."""
    count, last = 0, b"\n"
    with open_bytes(path) as file:
        while piece := file.read(_CHUNK):
            count += piece.count(b"\n")
            last = piece[-1:]
    return count + (last != b"\n")


def size_of(path: str | Path) -> int:
    """The size of a regular file on disk; InputError for anything else."""
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        raise InputError(f"there is no file {str(path)!r}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} can't be read: {getattr(error, 'strerror', None) or error}") from None
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path} is a folder, expected a file")
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a regular file, so it can't be read twice; write its output to a file first")
    return status.st_size


def file_digest(path: str | Path) -> bytes:
    """SHA-256 of a file's bytes as they are on disk."""
    size_of(path)
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from None


class _Pieces(io.RawIOBase):
    """Pieces of bytes as one stream, for io.BufferedReader to split into lines."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        while not self._rest:
            try:
                self._rest = memoryview(next(self._pieces))
            except StopIteration:
                return 0
        space = memoryview(buffer).cast("B")
        n = min(len(space), len(self._rest))
        space[:n], self._rest = self._rest[:n], self._rest[n:]
        return n

    def close(self) -> None:
        self._pieces.close()  # type: ignore[attr-defined]  # a generator: it closes its file
        super().close()


def _pieces(path: Path) -> Iterator[bytes]:
    ending = path.suffix.lower()
    damage: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
    if ending == ".zst":
        damage = (EOFError, _zstandard(path).ZstdError)
    size = 0
    try:
        with path.open("rb") as file:
            most = _ALLOWED + _GROWTH * os.fstat(file.fileno()).st_size
            for piece in _decompressed(path, file):
                size += len(piece)
                if size > most and ending in COMPRESSED:
                    raise InputError(f"{path} becomes more than {most:,} bytes, as a decompression bomb does")
                yield piece
    except damage as error:
        raise InputError(f"{path} is cut off or damaged ({error}); copy or download it again") from None
    except OSError as error:
        if error.strerror is None:  # bz2 has no error of its own
            raise InputError(f"{path} is cut off or damaged ({error}); copy or download it again") from None
        raise InputError(f"{path} can't be read: {error.strerror}") from None


def _decompressed(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    ending = path.suffix.lower()
    if ending == ".zst":
        yield from _unzstd(path, file)
    elif ending == ".xz":
        yield from _unxz(file)
    else:
        with _OPENERS.get(ending, nullcontext)(file) as stream:
            while piece := stream.read(_CHUNK):
                yield piece


def _unxz(file: IO[bytes]) -> Iterator[bytes]:
    """Stream after stream, with zeros between them at most; lzma.LZMAFile takes as much memory as a file asks for."""
    data = file.read(_CHUNK)
    if not data:
        raise EOFError("it is empty")
    while data:
        stream = lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
        while not stream.eof:
            if piece := stream.decompress(data, _CHUNK):
                yield piece
            data = b""
            if stream.needs_input and not stream.eof and not (data := file.read(_CHUNK)):
                raise EOFError("it ends inside a stream")
        data = stream.unused_data.lstrip(b"\0")
        while not data and (more := file.read(_CHUNK)):
            data = more.lstrip(b"\0")


def _unzstd(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """Frame after frame. zstandard's own stream takes a truncated file for a complete one."""
    decompressor = _zstandard(path).ZstdDecompressor()
    frame, begun = decompressor.decompressobj(), False
    while data := file.read(_ZSTD_CHUNK):
        while data:
            begun = True
            if piece := frame.decompress(data):
                yield piece
            data = b""
            if frame.eof:
                data = frame.unused_data
                frame, begun = decompressor.decompressobj(), False
    if begun:
        raise EOFError("it ends inside a frame")


def _zstandard(path: Path) -> ModuleType:
    try:
        import zstandard
    except ImportError:
        raise InputError(f"{path} is compressed with zstd: pip install 'cutaway[data]'") from None
    return zstandard
