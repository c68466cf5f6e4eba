"""Pairs, and files of every kind that hold them."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import zstandard
from pyarrow import parquet

Texts = Sequence[tuple[str, str]]

PAIRS = [
    ("A man sleeps.", "Un homme dort."),
    ('He said "no", and left.', "Il a dit « non », et partit."),  # with a no-break space
    ("It costs 5 €.", "Ça coûte 5\u202f€."),
    ("Two cats", "Deux chats\u2028"),  # a line separator is no end of a line
    ("", ""),
]

COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def tsv(pairs: Texts) -> bytes:
    return "".join(f"{a}\t{b}\n" for a, b in pairs).encode()


def csv_bytes(pairs: Texts, header: Sequence[str] = ()) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([*([header] if header else []), *pairs])
    return text.getvalue().encode()


def jsonl(pairs: Texts) -> bytes:
    return "".join(json.dumps({"id": i, "en": a, "fr": b}) + "\n" for i, (a, b) in enumerate(pairs)).encode()


def nested(pairs: Texts) -> bytes:
    rows = ({"id": "x", "translation": {"en": a, "fr": b}} for a, b in pairs)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def lines(texts: Sequence[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def write_parquet(path: Path, pairs: Texts, group: int = 2) -> Path:
    table = pyarrow.table({"en": [a for a, _ in pairs], "n": list(range(len(pairs))), "fr": [b for _, b in pairs]})
    parquet.write_table(table, path, row_group_size=group)
    return path


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(COMPRESS.get(path.suffix, COMPRESS[""])(data))
    return path
