"""rows: every kind of table in every compression, the columns that are meant, and every bad row by its rule."""

import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from cutaway.data.rows import BadRow, TextRow
from cutaway.data.tables import kind_of, rows
from cutaway.errors import InputError
from tests.support.data_files import COMPRESS, PAIRS, Texts, csv_bytes, jsonl, lines, nested, tsv, write, write_parquet
from tests.support.memory import peak_of

WRITERS: dict[str, Callable[[Texts], bytes]] = {
    "train.tsv": tsv, "train.csv": csv_bytes, "train.jsonl": jsonl, "train.ndjson": jsonl, "train.json": nested,
}  # fmt: skip


def texts(path: Path, *columns: str) -> list[tuple[str, ...]]:
    return [row.texts for row in rows(path, columns) if isinstance(row, TextRow)]


def faults(found: Iterator[TextRow | BadRow]) -> list[tuple[str, str]]:
    """Rule and place of the bad rows; the folder is left out."""
    return [(row.rule, row.where.rpartition("/")[2]) for row in found if isinstance(row, BadRow)]


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("name", WRITERS)
def test_there_and_back(tmp_path: Path, name: str, ending: str) -> None:
    path = write(tmp_path / f"{name}{ending}", WRITERS[name](PAIRS))
    found = list(rows(path))
    assert [row.texts for row in found if isinstance(row, TextRow)] == PAIRS
    assert [row.where for row in found] == [f"{path}:{i}" for i in range(1, len(PAIRS) + 1)]


@pytest.mark.parametrize("ending", COMPRESS)
def test_plain_text_is_one_column(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"train.en{ending}", "\ufeffa\r\n\nÇa\u00a0\tva ?\nlast".encode())
    assert texts(path) == [("a",), ("",), ("Ça\u00a0\tva ?",), ("last",)]
    assert texts(path, "0") == texts(path)


def test_kinds_by_name() -> None:
    kinds = {"a.tsv.gz": "TSV", "A.CSV": "CSV", "b/c.jsonl.zst": "JSONL", "x.parquet": "Parquet", "x.en": "text"}
    assert {name: kind_of(name) for name in kinds} == kinds


def test_tsv_knows_no_quotes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", b'\xef\xbb\xbf"open\ta, b\r\n5" wide\t"\n')
    assert texts(path) == [('"open', "a, b"), ('5" wide', '"')]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_columns_by_name_or_number(tmp_path: Path, name: str) -> None:
    data = b"\xef\xbb\xbfid,fr,en\n1,un,one\n2,deux,two\n"
    path = write(tmp_path / name, data.replace(b",", b"\t") if name == "a.tsv" else data)
    assert texts(path, "en", "fr") == [("one", "un"), ("two", "deux")]
    assert texts(path, "2", "1") == [("en", "fr"), ("one", "un"), ("two", "deux")]


def test_csv_quotes_and_newlines(tmp_path: Path) -> None:
    pairs = [("a, b", 'say ""no""'), ("two\nlines", "deux\r\nlignes"), ('"', "\t"), ("end", "fin")]
    path = write(tmp_path / "a.csv", csv_bytes(pairs, header=("en", "fr")))
    found = list(rows(path, ("en", "fr")))
    assert [row.texts for row in found if isinstance(row, TextRow)] == pairs
    assert [row.where for row in found] == [f"{path}:{line}" for line in (2, 3, 6, 7)], "the line where a row begins"


def test_csv_bad_rows(tmp_path: Path) -> None:
    data = b'a,b\n"x"y,z\nc\xe9,d\n"e\nf\xe9","g"\n\nh\0,i\n1,2,3\n4\nlast,one\n'
    path = write(tmp_path / "a.csv", data)
    assert texts(path) == [("a", "b"), ("last", "one")]
    assert faults(rows(path)) == [
        ("quotes", "a.csv:2"), ("invalid UTF-8", "a.csv:3"), ("invalid UTF-8", "a.csv:4"), ("empty", "a.csv:6"),
        ("NUL byte", "a.csv:7"), ("columns", "a.csv:8"), ("columns", "a.csv:9"),
    ]  # fmt: skip


def test_tsv_bad_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", b"a\tb\nna\xefve\tx\n\0\tx\nno tab\n\nto\to\tmany\nlast\tone\n")
    assert texts(path) == [("a", "b"), ("last", "one")]
    assert faults(rows(path)) == [
        ("invalid UTF-8", "a.tsv:2"), ("NUL byte", "a.tsv:3"), ("columns", "a.tsv:4"), ("empty", "a.tsv:5"),
        ("columns", "a.tsv:6"),
    ]  # fmt: skip
    why = [row.why for row in rows(path) if isinstance(row, BadRow)]
    assert why[0].startswith(f"line 2 of {path} is not UTF-8 (byte 3 of the line)")
    assert why[-1] == "3 columns between tabs, expected 2 as in the first line"


ROW = b'{"en": "a", "fr": "b"}\n'
OPEN, REST = b'a,b\n"open,c\n', csv_bytes([("some", "words")] * 100)
AT_ONCE = {
    "a first line without a tab": ("a.tsv", b"A sentence\nand another\n", (), "line 1 .* has no tab, .* one column"),
    "a first line without a comma": ("a.csv", b"A sentence\nand another\n", (), "line 1 .* has no comma, .* or more"),
    **{f"an empty {name}": (name, b"", (), f"{name} is empty: it has no rows")
       for name in ("a.en", "a.tsv", "a.csv", "a.jsonl", "a.jsonl.gz")},
    "a header alone": ("a.tsv", b"en\tfr\n", ("en", "fr"), "a.tsv is empty: it has no rows"),
    **{f"{count} of {len(record)} fields are texts": ("a.jsonl", json.dumps(record).encode(), (), (
           rf"line 1 of .*a.jsonl has {count} columns? of text, expected 2 \(columns found: .*\); name the source's "
           "column and the target's with --columns"))
       for count, record in [(3, {"en": "a", "fr": "b", "de": "c"}), (1, {"en": "a", "id": 3}),
                             (1, {"translation": {"en": "a"}, "x": "y"})]},
    "columns of plain text": (
        "a.en", b"a\n", ("en", "fr"), "a.en is read as plain text, a line a row, so it has no columns to",
    ),
    **{f"{mistake} of {name}": (name, f"id{mark}fr{mark}en\n1{mark}un{mark}one\n".encode(), columns, message)
       for name, mark in (("a.tsv", "\t"), ("a.csv", ","))
       for mistake, columns, message in [
           ("no columns", (), r"line 1 of .* has 3 columns \(id, fr, en\), expected 2; say which are the"),
           ("a misspelt column", ("en", "frr"), "line 1 of .*, its header: no column 'frr'; did you mean 'fr'"),
           ("a fourth column", ("0", "3"), r"has 3 columns, so there is no column 3 \(they count from 0: 0 to"),
       ]},
}  # fmt: skip
"""Name, content, columns and sentence of files of which no row is given."""
BROKEN = {
    "a misspelt way down": (
        "a.jsonl", nested(PAIRS), ("translation.de", "translation.fr"),
        "a.jsonl:1: no column 'translation.de'; did you mean 'translation.en'",
    ),
    "a quote that never closes": (
        "a.csv", OPEN + REST, (), r'the row that begins in line 2 of .*a.csv does not end: is a quote \("\) not clos',
    ),
    "a quote that never closes, and more than csv allows in a cell": (
        "a.csv", OPEN + REST * 200, (), "the row that begins in line 2 of .*a.csv does not end: is a quote",
    ),
    "a first line unlike all others": (  # told before the rest is read
        "a.tsv", b"my\tfine\tcorpus\n" + b"a\tb\n" * 2000, ("0", "1"),
        "a.tsv can't be read: 999 of its first 1,000 rows are bad, the first at .*a.tsv:2: "
        "2 columns between tabs, expected 3 as in the first line",
    ),
    "a header unlike its row": (
        "a.tsv", b"en\tfr\nA sentence\n", ("en", "fr"),
        "1 of its first 1 rows are bad, the first at .*a.tsv:2: 1 column between tabs",
    ),
    "another encoding": (
        "a.fr", "Ça va là où ?\n".encode("latin-1") * 30, (),
        "30 of its first 30 rows are bad, .*a.fr:1: .* is not UTF-8 .* iconv -f latin1",
    ),
    **{f"an absurd line of {name}": (name, good + b"x" * 16_000_001, (), f"line 2 of .*{name} .* 16,000,000 bytes")
       for name, good in [("a.en", b"a\n"), ("a.tsv", b"a\tb\n"), ("a.csv", b"a,b\n"), ("a.jsonl", ROW)]},
    **{f"UTF-16 in {name}": (
           name, ROW.decode().encode("utf-16"), (), f"{name} is UTF-16, expected UTF-8; convert it with iconv -f utf")
       for name in ("a.en", "a.tsv", "a.csv", "a.jsonl", "a.en.gz")},
    **{f"a JSON array{lines}": ("a.json", text, (), "a.json is a JSON array, expected JSON lines: an object a line")
       for lines, text in [("", b"[" + ROW[:-1] + b"]\n"), (" of lines", b"[\n" + ROW + b"]\n")]},
    "an object of several lines": (
        "a.jsonl", b'{\n "en": "a",\n  "fr": "b"}\n', (),
        r"a.jsonl:1: the line is not JSON \(.*\); expected an object a line",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", AT_ONCE)
def test_a_file_that_can_not_be_meant_is_an_error_at_its_first_row(tmp_path: Path, case: str) -> None:
    name, data, columns, message = AT_ONCE[case]
    with pytest.raises(InputError, match=message):
        next(rows(write(tmp_path / name, data), columns))


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_an_error_within_its_first_1000_rows(tmp_path: Path, case: str) -> None:
    name, data, columns, message = BROKEN[case]
    with pytest.raises(InputError, match=message):
        list(islice(rows(write(tmp_path / name, data), columns), 1000))


def test_jsonl_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", nested(PAIRS))
    assert texts(path, "translation.fr", "translation.en") == [(b, a) for a, b in PAIRS]
    flat = write(tmp_path / "b.jsonl", jsonl(PAIRS))
    assert texts(flat, "fr", "en") == [(b, a) for a, b in PAIRS]
    dotted = write(tmp_path / "c.jsonl", b'{"a.x": "1", "a": {"x": "2", "y": {"z": "3"}}}\n')
    assert texts(dotted, "a.x", "a.y.z") == [("1", "3")], "a name that is there comes before a way down"


def test_jsonl_bad_rows(tmp_path: Path) -> None:
    good = b'{"en": "a", "fr": "b"}\n'
    bad = [
        b"{", b'["a", "b"]', b'{"en": "a"}', b'{"en": "a", "fr": null}', b'{"en": 1, "fr": "b"}',
        b'{"en": "\\u0000", "fr": "b"}', b'{"en": "\\ud800", "fr": "b"}', b'{"en": "a", "en": "b", "fr": "c"}',
        b'{"en": "\xe9", "fr": "b"}', b'{"en": "\0", "fr": "b"}', b"", b"[" * 100_000, b'{"en": {"x": "a"}, "fr": "b"}',
    ]  # fmt: skip
    path = write(tmp_path / "a.jsonl", good * 2 + b"\n".join(bad) + b"\n" + good)
    assert texts(path) == [("a", "b")] * 3
    assert [rule for rule, _ in faults(rows(path))] == [
        "not JSON", "not JSON", "columns", "not text", "not text", "NUL byte", "not JSON", "not JSON",
        "invalid UTF-8", "NUL byte", "empty", "not JSON", "not text",
    ]  # fmt: skip


def test_parquet_by_row_groups(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", PAIRS)
    assert parquet.ParquetFile(path).num_row_groups == 3
    found = list(rows(path))
    assert [row.texts for row in found if isinstance(row, TextRow)] == PAIRS
    assert [row.where for row in found] == [f"{path}:{i}" for i in range(1, 6)]
    assert texts(path, "fr", "en") == [(b, a) for a, b in PAIRS]
    with pytest.raises(InputError, match=r"a.parquet: no column 'de' \(known: en, fr, n\)"):
        texts(path, "en", "de")
    with pytest.raises(InputError, match="a.parquet:1: a cell holds int, expected a text"):
        texts(path, "en", "n")


def test_parquet_is_not_held(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [(f"{i} " * 50, f"{i} " * 60) for i in range(20_000)], group=500)
    before, most = pyarrow.total_allocated_bytes(), 0
    for _ in rows(path):
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert 0 < most < 3_000_000, "the texts are 12 MB"


def test_parquet_nested_and_odd_types(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    records = [{"en": a, "fr": b} for a, b in PAIRS]
    parquet.write_table(pyarrow.table({"id": ["x"] * 5, "translation": records}), path)
    assert texts(path) == PAIRS
    assert texts(path, "translation.fr", "id") == [(b, "x") for _, b in PAIRS]
    words = pyarrow.array(["a", "b", None]).dictionary_encode()
    raw = pyarrow.array([b"x", b"\xe9", b"z"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"en": words, "fr": raw.cast(pyarrow.large_string(), safe=False)}), path)
    assert texts(path) == [("a", "x")]
    assert faults(rows(path)) == [("invalid UTF-8", "a.parquet:2"), ("not text", "a.parquet:3")]
    parquet.write_table(pyarrow.table({"en": ["a"], "fr": ["b"], "de": ["c"]}), path)
    with pytest.raises(
        InputError, match=r"a.parquet has 3 columns of text, expected 2 \(columns found: en, fr, de\); name"
    ):
        next(rows(path))
    parquet.write_table(pyarrow.table({"en": pyarrow.array([], "string"), "fr": pyarrow.array([], "string")}), path)
    with pytest.raises(InputError, match="a.parquet is empty: it has no rows"):
        next(rows(path))


def test_parquet_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "a.parquet", PAIRS)
    data = path.read_bytes()
    for broken in (b"", b"PAR1", data[:-10], b"text\n" * 100, data[:4] + b"\xff" * 60 + data[64:]):
        path.write_bytes(broken)
        with pytest.raises(InputError, match=r"a.parquet can't be read as Parquet \(.+\); copy or download it again"):
            list(rows(path))
    with pytest.raises(InputError, match="a.parquet.gz is compressed twice, as Parquet is inside; decompress it once"):
        list(rows(write(tmp_path / "a.parquet.gz", data)))
    with pytest.raises(InputError, match="there is no file '.*b.parquet'"):
        list(rows(tmp_path / "b.parquet"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"a.parquet is Parquet, which pyarrow reads: pip install 'cutaway\[data\]'"):
        list(rows(path))


@pytest.mark.parametrize("name", ["a.en", "a.tsv.gz", "a.csv", "a.jsonl.gz"])
def test_a_file_is_not_held(tmp_path: Path, name: str) -> None:
    pairs = [(f"the sentence {i}", f"la phrase {i}") for i in range(8_000)]
    kinds = {"a.en": lambda: lines([a for a, _ in pairs]), "a.tsv.gz": lambda: tsv(pairs)}
    kinds |= {"a.csv": lambda: csv_bytes(pairs), "a.jsonl.gz": lambda: jsonl(pairs)}
    path = write(tmp_path / name, kinds[name]())
    n, peak = peak_of(lambda: sum(1 for _ in rows(path)))
    assert n == 8_000
    assert peak < 600_000, "the rows together are over 2 MB"
