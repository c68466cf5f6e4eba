"""read_pairs: all sources give the same pairs, ranks share them, and a mistake is told before the first pair."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutaway.data.pairs import Pair, PairSpec, digest, read_pairs
from cutaway.data.rows import BadRow
from cutaway.errors import ConfigError, InputError
from tests.support.data_files import PAIRS, Texts, csv_bytes, jsonl, lines, tsv, write, write_parquet
from tests.support.memory import peak_of


def aligned(folder: Path, pairs: Texts, ending: str = "") -> PairSpec:
    source = write(folder / f"train.en{ending}", lines([a for a, _ in pairs]))
    target = write(folder / f"train.fr{ending}", lines([b for _, b in pairs]))
    return PairSpec(source=(str(source),), target=(str(target),))


def table(path: Path, data: bytes, *columns: str) -> PairSpec:
    return PairSpec(pairs=(str(write(path, data)),), columns=columns)


def texts(found: Iterator[Pair | BadRow]) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in found if isinstance(pair, Pair)]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_aligned_files(tmp_path: Path, ending: str) -> None:
    spec = aligned(tmp_path, PAIRS, ending)
    found = list(read_pairs(spec))
    assert found[1] == Pair(*PAIRS[1], f"{spec.source[0]}:2")
    assert texts(iter(found)) == PAIRS


def test_several_sources_are_read_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    one, two = aligned(tmp_path, PAIRS[:2]), aligned(tmp_path / "b", PAIRS[2:])
    spec = PairSpec(source=one.source + two.source, target=one.target + two.target)
    assert texts(read_pairs(spec)) == PAIRS
    files = [
        write(tmp_path / "z.tsv", tsv(PAIRS[:1])), write(tmp_path / "a.jsonl.gz", jsonl(PAIRS[1:3])),
        write_parquet(tmp_path / "p.parquet", PAIRS[3:]),
    ]  # fmt: skip
    assert texts(read_pairs(PairSpec(pairs=tuple(map(str, files))))) == PAIRS


def test_a_folder_is_all_its_tables_by_name(tmp_path: Path) -> None:
    (tmp_path / "2" / "deep").mkdir(parents=True)
    write(tmp_path / "3.csv", csv_bytes(PAIRS[3:]))
    write_parquet(tmp_path / "2" / "deep" / "x.parquet", PAIRS[1:3])
    write(tmp_path / "1.tsv.xz", tsv(PAIRS[:1]))
    for name in ("README.md", "dataset_infos.json", ".hidden.tsv", "train.en", "train.fr"):
        write(tmp_path / name, b"not\tthis one\n")
    spec = PairSpec(pairs=(str(tmp_path),))
    assert texts(read_pairs(spec)) == PAIRS
    first = digest(spec)
    write(tmp_path / "4.tsv", tsv(PAIRS))
    assert digest(spec) != first


def test_a_folder_without_tables(tmp_path: Path) -> None:
    aligned(tmp_path, PAIRS)
    with pytest.raises(
        InputError, match=r" is a folder without a TSV, CSV, JSONL or Parquet file; two files of lines are"
    ):
        read_pairs(PairSpec(pairs=(str(tmp_path),)))


def test_columns_turn_the_direction(tmp_path: Path) -> None:
    spec = table(tmp_path / "a.csv", csv_bytes(PAIRS, header=("en", "fr")), "fr", "en")
    assert texts(read_pairs(spec)) == [(b, a) for a, b in PAIRS]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", ["aligned", "tsv", "parquet"])
def test_ranks_share_all_rows(tmp_path: Path, kind: str, ranks: int) -> None:
    pairs = [(f"en {i}", f"fr {i}") for i in range(2345)]
    if kind == "aligned":
        spec = aligned(tmp_path, pairs)
    elif kind == "tsv":
        spec = table(tmp_path / "a.tsv", tsv(pairs))
    else:
        spec = PairSpec(pairs=(str(write_parquet(tmp_path / "a.parquet", pairs, group=100)),))
    for rank in range(ranks):
        assert texts(read_pairs(spec, rank, ranks)) == pairs[rank::ranks]
    with pytest.raises(InputError, match=rf"rank={ranks} is not one of {ranks}; expected 0 to {ranks - 1}"):
        read_pairs(spec, ranks, ranks)


def test_bad_lines_keep_their_neighbours(tmp_path: Path) -> None:
    spec = aligned(tmp_path, PAIRS[:4])
    Path(spec.target[0]).write_bytes(b"un\nna\xefve\ntrois\n\0\n")
    found = list(read_pairs(spec))
    assert texts(iter(found)) == [(PAIRS[0][0], "un"), (PAIRS[2][0], "trois")]
    assert [(bad.rule, bad.where) for bad in found if isinstance(bad, BadRow)] == [
        ("invalid UTF-8", f"{spec.target[0]}:2"),
        ("NUL byte", f"{spec.target[0]}:4"),
    ]


@pytest.mark.parametrize("ending", ["", ".bz2"])
def test_unequal_files_are_told_at_once(tmp_path: Path, ending: str) -> None:
    spec = aligned(tmp_path, PAIRS * 300, ending)
    write(Path(spec.target[0]), lines(["x"] * 1499))
    with pytest.raises(
        InputError,
        match=rf"{re.escape(spec.source[0])} has 1,500 lines and {re.escape(spec.target[0])} has 1,499; expected",
    ):
        read_pairs(spec)


def test_empty_missing_and_damaged_files_are_told_at_once(tmp_path: Path) -> None:
    spec = aligned(tmp_path, PAIRS, ".gz")
    write(Path(spec.target[0]), b"")
    with pytest.raises(InputError, match="train.fr.gz is empty: it has no lines"):
        read_pairs(spec)
    Path(spec.target[0]).write_bytes(Path(spec.source[0]).read_bytes()[:-5])
    with pytest.raises(InputError, match="train.fr.gz is cut off or damaged"):
        read_pairs(spec)
    Path(spec.target[0]).unlink()
    for use in (read_pairs, digest):
        with pytest.raises(InputError, match="there is no file '.*train.fr.gz'"):
            use(spec)
        with pytest.raises(InputError, match="there is no file '.*nothing.tsv'"):
            use(PairSpec(pairs=(str(tmp_path / "nothing.tsv"),)))
        with pytest.raises(InputError, match="is a folder, expected a file"):
            use(PairSpec(source=(str(tmp_path),), target=(str(tmp_path),)))


def test_a_wrong_header_in_the_last_of_many_files_is_told_at_once(tmp_path: Path) -> None:
    good = write(tmp_path / "a.csv", csv_bytes(PAIRS * 500, header=("en", "fr")))
    last = write(tmp_path / "b.csv", csv_bytes(PAIRS, header=("english", "french")))
    with pytest.raises(InputError, match="line 1 of .*b.csv, its header: no column 'en'; did you mean 'english'"):
        read_pairs(PairSpec(pairs=(str(good), str(last)), columns=("en", "fr")))


def test_the_wrong_option_for_a_file(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.tsv", tsv(PAIRS)), write(tmp_path / "b.txt", tsv(PAIRS))
    with pytest.raises(
        InputError, match="a.tsv is a TSV table by its name; give it as --pairs, or rename it if it is text"
    ):
        read_pairs(PairSpec(source=(str(a),), target=(str(b),)))
    with pytest.raises(
        InputError, match="b.txt is no TSV, CSV, JSONL or Parquet file by its name; rename it, or give two"
    ):
        read_pairs(PairSpec(pairs=(str(b),)))


def test_the_same_file_twice(tmp_path: Path) -> None:
    source = aligned(tmp_path, PAIRS).source[0]
    link = tmp_path / "train.de"
    link.symlink_to(source)
    for target in (source, str(link)):
        with pytest.raises(
            InputError, match=f"--source and --target are the same file, {source}; give that of the other"
        ):
            read_pairs(PairSpec(source=(source,), target=(target,)))


def test_the_same_text_twice(tmp_path: Path) -> None:
    pairs = [(f"en {i}", f"en {i}" if i % 10 else f"fr {i}") for i in range(5000)]
    assert len(texts(read_pairs(table(tmp_path / "a.tsv", tsv(pairs))))) == 5000, "nine of ten are still allowed"
    pairs[0] = ("x", "x ")
    with pytest.raises(
        InputError,
        match=r"source and target are the same text in 901 of the first 1,000 pairs; give the other language as target",
    ):
        read_pairs(table(tmp_path / "a.tsv", tsv(pairs)))


def test_specs_that_name_no_pairs() -> None:
    wrong: list[tuple[dict[str, tuple[str, ...]], str]] = [
        ({}, "there are no pairs: give --source and --target "),
        (
            {"source": ("a",), "target": ("b",), "pairs": ("c",)},
            "--source and --target can't be combined with --pairs",
        ),
        ({"source": ("a", "b"), "target": ("c",)}, "--source has 2 files and --target 1 file; give as many of each"),
        ({"target": ("c",)}, "--source has no files and --target 1 file"),
        ({"source": ("a",), "target": ("b",), "columns": ("x", "y")}, "--columns are those of tables; the files of"),
        ({"pairs": ("a",), "columns": ("x",)}, "--columns has 1, expected 2: the source's and the target's"),
    ]
    for fields, sentence in wrong:
        with pytest.raises(InputError, match=sentence):
            PairSpec(**fields)
    with pytest.raises(ConfigError, match=r"PairSpec.pairs is 'a.tsv' \(str\); expected tuple"):
        PairSpec(pairs="a.tsv")  # type: ignore[arg-type]


def test_the_digest_is_of_all_that_the_pairs_depend_on(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, moved = aligned(tmp_path, PAIRS), aligned(tmp_path / "other", PAIRS)
    assert digest(one) == digest(moved), "where the files are does not matter"
    assert re.fullmatch("[0-9a-f]{64}", digest(one))
    columns = ("en", "fr")
    data = csv_bytes(PAIRS, header=columns)
    different = [
        one,
        PairSpec(source=one.target, target=one.source),
        aligned(tmp_path / "other", [*PAIRS, ("a", "b")]),
        table(tmp_path / "a.csv", data),
        table(tmp_path / "b.csv", data, *columns),
        table(tmp_path / "c.csv", data, *reversed(columns)),
        table(tmp_path / "d.tsv", data),
    ]
    assert len({digest(spec) for spec in different}) == len(different)


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, cutaway.data.clean; "
        "print(sorted({'torch', 'datasets', 'pyarrow', 'zstandard', 'huggingface_hub'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_file_is_not_held(tmp_path: Path) -> None:
    spec = aligned(tmp_path, [(f"the sentence {i}", f"la phrase {i}") for i in range(20_000)])
    n, peak = peak_of(lambda: sum(1 for _ in read_pairs(spec)))
    assert n == 20_000
    assert peak < 1_500_000, "all of them are 5 MB; the first 1,000 are looked at together"
