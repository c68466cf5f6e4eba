"""The wheel in an empty environment, without an extra and with each: every command that should work, works.

    python -m pytest proof/test_wheel.py

An environment takes about a gigabyte and half a minute, and is removed before the next is made.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from tests.support import chromium, hub_models

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = [extra for extra in PROJECT["optional-dependencies"] if extra not in ("dev", "bench", "docs")]
PACKED = {".py", ".typed", ".c", ".h", ".json", ".toml", ".md", ".html", ".js", ".css", ".svg", ".woff2"}
CACHES = ("shipped/en-fr/cutaway-int8.safetensors", "kernels/0123456789abcdef.so", "shipped/en-fr/x.usearch")
MODULES = {
    "ctranslate2": "ctranslate2", "data": "pyarrow", "images": "PIL", "plots": "matplotlib", "search": "usearch",
    "studio": "fastapi", "train": "sacrebleu",
}  # fmt: skip
"""Extra -> a module that only it, or another that needs the same, brings."""
SHORT = (
    "--vocabulary=300", "--steps=12", "--set=model.n_blocks=1", "--set=model.d_model=16", "--set=model.n_heads=2",
    "--set=model.d_ff=32", "--set=validation.tune=false",
)  # fmt: skip
"""A training of seconds."""


@dataclass
class Installed:
    """An environment with the wheel, and a person who uses it from an empty folder."""

    extra: str
    place: Path
    files: Path
    say: Callable[[str], None]
    modules: set[str] = field(default_factory=set)

    @property
    def environment(self) -> dict[str, str]:
        """No variable of ours but PATH: neither the sources nor our caches are in reach."""
        home = self.place / "home"
        return {
            "PATH": f"{self.place / 'venv/bin'}:{os.environ['PATH']}", "HOME": str(home), "LANG": "C.UTF-8",
            "HF_HUB_CACHE": str(self.files / "hub"), "HF_HUB_OFFLINE": "1",
        }  # fmt: skip

    @property
    def folder(self) -> Path:
        return self.place / "empty"

    def python(self, code: str) -> str:
        done = self._run([str(self.place / "venv/bin/python"), "-W", "ignore", "-c", code])
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ok(self, *words: object) -> str:
        """What a command prints that works, and complains of nothing."""
        done = self.cutaway(*words)
        assert done.returncode == 0, f"cutaway {' '.join(map(str, words))}: {done.stderr}"
        assert "Traceback" not in done.stderr + done.stdout
        assert "Warning" not in done.stderr, done.stderr
        return done.stdout

    def refused(self, *words: object) -> str:
        """The sentence of one that does not."""
        done = self.cutaway(*words)
        assert done.returncode == 2, f"cutaway {' '.join(map(str, words))}: {done.stdout} {done.stderr}"
        (line,) = done.stderr.splitlines()
        assert line.startswith("Error: ")
        return line

    def cutaway(self, *words: object) -> "subprocess.CompletedProcess[str]":
        began = time.monotonic()
        done = self._run([str(self.place / "venv/bin/cutaway"), *map(str, words)])
        self.say(f"  {time.monotonic() - began:5.1f} s  cutaway {' '.join(map(str, words))[:100]}")
        return done

    def _run(self, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, encoding="utf-8", timeout=300
        )

    @property
    def package(self) -> dict[str, int]:
        """The package's files and their sizes, but for what Python itself compiles."""
        (package,) = (self.place / "venv").glob("lib/python3*/site-packages/cutaway")
        files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        return {path.relative_to(package).as_posix(): path.stat().st_size for path in files}


@pytest.fixture(scope="module")
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Onto the terminal, at once."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(text, flush=True)

    return say


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, say: Callable[[str], None]) -> Path:
    """Built from a copy of the sources in which caches lie about, as they did after a day's work."""
    assert (ROOT / "src/cutaway/studio/page/index.html").is_file(), "the page is not built: make web"
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src", place / "sources/src")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / "sources" / name)
    for name in CACHES:
        (place / "sources/src/cutaway" / name).write_bytes(b"a cache")
    say("\nbuilding the wheel")
    _pip(Path(sys.executable), "wheel", "--no-deps", "--wheel-dir", str(place / "dist"), str(place / "sources"))
    (built,) = (place / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models of every kind, as a cache of the hub has them, and texts to train on."""
    place = tmp_path_factory.mktemp("files")
    hub_models.lay_out(place / "hub")
    hub_models.write_files(place)
    rows = [line.split("\t") for line in (place / "labels.tsv").read_text(encoding="utf-8").splitlines()]
    columns = {"text": [row[0] for row in rows], "label": [row[1] for row in rows]}
    pyarrow.parquet.write_table(pyarrow.table(columns), place / "labels.parquet")
    (place / "train.en.zst").write_bytes(zstandard.compress((place / "train.en").read_bytes()))
    return place


@pytest.fixture(scope="module", params=["", *EXTRAS], ids=lambda extra: extra or "none")
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, wheel: Path, files: Path, say: Any
) -> Iterator[Installed]:
    extra: str = request.param
    here = Installed(extra, tmp_path_factory.mktemp("installed"), files, say)
    for name in ("home", "empty"):
        (here.place / name).mkdir()
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", str(here.place / "venv")], check=True)
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    _pip(here.place / "venv/bin/python", "install", "-c", str(ROOT / "constraints.txt"), what)
    say(f"pip install cutaway{extra and f'[{extra}]'}: {time.monotonic() - began:.0f} s")
    found = f"from importlib.util import find_spec; print(*filter(find_spec, {[*MODULES.values(), 'numpy']}))"
    here.modules = set(here.python(found).split())
    yield here
    shutil.rmtree(here.place)


def _pip(python: Path, *words: str) -> None:
    command = [str(python), "-m", "pip", words[0], "--quiet", "--disable-pip-version-check", *words[1:]]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # or it is thought there
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr


def test_no_cache_is_packed(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert not [name for name in names for cache in CACHES if name.endswith(cache)]
    others = {name for name in names if Path(name).suffix not in PACKED}
    assert others == {"cutaway/shipped/en-fr/model.safetensors"}
    assert {"cutaway/studio/page/index.html", "cutaway/kernels/stack.c", "cutaway/py.typed"} <= set(names)
    assert wheel.stat().st_size < 11_000_000


def test_what_is_installed(installed: Installed) -> None:
    """The package and nothing of ours; what another extra would bring is not there by chance."""
    assert installed.python("import cutaway; print(cutaway.__file__)").startswith(str(installed.place))
    assert installed.modules >= {MODULES[extra] for extra in MODULES if extra in _parts(installed.extra)}
    if installed.extra in ("", "studio", "images"):
        assert "numpy" not in installed.modules


def _parts(extra: str) -> set[str]:
    """An extra, and those it is made of."""
    wanted = PROJECT["optional-dependencies"].get(extra, ())
    names = [name for each in wanted if each.startswith("cutaway[") for name in each[8:-1].split(",")]
    return {extra}.union(*map(_parts, names))


def test_every_command_works(installed: Installed) -> None:
    before, folder, files = installed.package, installed.folder, installed.files
    text = "I don't know where she is."
    said = [installed.ok("translate", text, "--precision", precision) for precision in ("float32", "bfloat16", "int8")]
    assert said[0] == "Je ne sais pas où elle est.\n"
    assert all(other.startswith("Je ") for other in said)
    assert installed.ok("translate", text, "--precision", "int8") == said[2], "from the cache"
    assert "│" in installed.ok("translate", text, "--attention")
    assert json.loads(installed.ok("translate", text, "--json"))["text"] == said[0].strip()
    assert "→" in installed.ok("see", text)
    installed.ok("see", text, "--html", "page.html")
    assert (folder / "page.html").stat().st_size > 500_000
    assert "went wrong" in installed.ok("notes", 3)
    assert installed.ok("quiz", "--answers").count("See for yourself") == 7
    assert "15,191,712" in installed.ok("models", "llama-15m")
    assert "4,651,776" in installed.ok("info", "en-fr")
    assert installed.package == before, "nothing is written into the package"
    assert not list((installed.place / "home").glob("**/cutaway-int8.safetensors"))
    if installed.extra in ("", "all"):
        _tasks(installed, files)


def _tasks(installed: Installed, files: Path) -> None:
    """All that needs no extra, on a tiny model of each kind."""
    gpt2, bert, minilm = "openai-community/gpt2", "distilbert/distilbert-base", "sentence-transformers/all-MiniLM-L6-v2"
    installed.ok("complete", "the cat", "--model", gpt2, "--max-tokens", 5)
    installed.ok("chat", "--model", "Qwen/Qwen2-0.5B-Instruct", "--max-tokens", 5)
    installed.ok("summarize", "the cat sat", "--model", "google-t5/t5-small")
    installed.ok("fill", "the <mask> sat", "--model", "google-bert/bert-base-uncased")
    installed.ok("classify", "the cat", "--model", f"{bert}-uncased-finetuned-sst-2-english", "--precision", "int8")
    installed.ok("answer", "who", "--context", "the cat sat", "--model", f"{bert}-cased-distilled-squad")
    installed.ok("embed", "the cat", "--model", minilm, "--out", "vectors.safetensors")
    installed.ok("search", "a cat", files / "lines.txt", "--model", minilm)
    installed.ok("convert", gpt2, "mine", "--to", "cutaway")
    installed.ok("train", "complete", "--text", files / "train.en", "--out", "writer", *SHORT)
    installed.ok("train", "classify", "--pairs", files / "labels.tsv", "--out", "classifier", *SHORT)
    installed.ok("resume", "writer")
    installed.ok("classify", "cats 3 are good", "--model", "classifier")
    assert "is a preset here" in installed.refused("complete", "a", "--model", "llama-15m")
    assert "not to summarize" in installed.refused("summarize", "a", "--model", "en-fr")


def _studio(installed: Installed) -> None:
    """In a browser: a block is opened, and its numbers come."""
    command = [str(installed.place / "venv/bin/cutaway"), "studio", "--no-browser", "--port", "0"]
    options: dict[str, Any] = {"cwd": installed.folder, "env": installed.environment, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **options, encoding="utf-8") as process:
        try:
            _look(installed, process)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def _look(installed: Installed, process: "subprocess.Popen[str]") -> None:
    from playwright.sync_api import sync_playwright

    assert process.stdout is not None
    address = process.stdout.readline().split()[0]
    installed.say(f"  the studio at {address}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.installed(), args=chromium.ARGUMENTS)
        page, answers, problems = browser.new_page(), [], []
        page.on("response", lambda answer: answers.append((answer.status, answer.url)))
        page.on("pageerror", lambda error: problems.append(str(error)))
        asked = {"model": "en-fr", "text": "The cat sat.", "open": "encoder.blocks.0"}
        page.goto(f"{address}#/run?{urlencode(asked)}")
        stage = page.locator('[data-stage="encoder.blocks.0.self_attention.weights"]')
        stage.scroll_into_view_if_needed(timeout=60_000)
        details = stage.locator("details.table")
        details.evaluate("element => { element.open = true }")
        details.locator("tbody tr").first.wait_for(timeout=60_000)
        rows = details.locator("tbody tr").count()
        browser.close()
    assert rows > 3
    assert problems == []
    assert {status for status, _ in answers} <= {200, 304}
    assert any("/values/" in url for _, url in answers)


def _train(installed: Installed) -> None:
    files = installed.files
    texts = ("--source", files / "train.en", "--target", files / "train.fr")
    installed.ok("train", "translate", *texts, "--out", "translator", *SHORT)
    judged = installed.ok("evaluate", "translator", *texts, "--beams", 1, "--tokenized", "fr", "--json")
    assert "bleu" in json.loads(judged)["scores"]
    installed.ok("compare", "translator", "en-fr", *texts, "--beams", 1, "--png", "lengths.png")
    assert (installed.folder / "translator/curves.png").is_file()
    assert list((installed.folder / "translator").glob("**/events*"))


def _ctranslate2(installed: Installed) -> None:
    text = "I don't know where she is."
    for precision in ("float32", "int8"):
        words = ("translate", text, "--engine", "ctranslate2", "--precision", precision)
        assert installed.ok(*words).startswith("Je ")
    installed.ok("convert", "en-fr", "converted", "--to", "ctranslate2")
    model = "distilbert/distilbert-base-uncased-finetuned-sst-2-english"
    installed.ok("classify", "the cat", "--model", model, "--engine", "ctranslate2")


def _data(installed: Installed) -> None:
    table, columns = installed.files / "labels.parquet", ("--columns", "text,label")
    installed.ok("train", "classify", "--pairs", table, *columns, "--out", "by-parquet", *SHORT)
    installed.ok("train", "classify", "--pairs", f"hf:{table.parent / 'set'}", *columns, "--out", "by-hub", *SHORT)
    installed.ok("train", "complete", "--text", installed.files / "train.en.zst", "--out", "by-zst", *SHORT)


def _images(installed: Installed) -> None:
    model, photo = ("--model", "google/vit-base-patch16-224"), installed.files / "photo.png"
    assert "animal" in installed.ok("recognize", photo, *model)
    installed.ok("see", photo, *model, "--html", "image.html")


def _plots(installed: Installed) -> None:
    installed.ok("see", "The cat sat.", "--png", "heads.png")
    assert (installed.folder / "heads.png").read_bytes().startswith(b"\x89PNG")


def _search(installed: Installed) -> None:
    model = ("--model", "sentence-transformers/all-MiniLM-L6-v2")
    assert installed.ok("search", "a cat", installed.files / "lines.txt", *model, "--index", "ann")


USES: dict[str, Callable[[Installed], None]] = {
    "ctranslate2": _ctranslate2, "data": _data, "images": _images, "plots": _plots, "search": _search,
    "studio": _studio, "train": _train,
}  # fmt: skip


def test_what_the_extra_is_for(installed: Installed) -> None:
    (installed.files / "set").mkdir(exist_ok=True)
    shutil.copy(installed.files / "labels.parquet", installed.files / "set/train.parquet")
    for extra in sorted(_parts(installed.extra) & USES.keys()):
        USES[extra](installed)


def test_a_missing_extra_is_named(installed: Installed) -> None:
    """In one sentence; where another extra happened to bring what it needs, it works."""
    files = installed.files
    texts = ("--source", files / "train.en", "--target", files / "train.fr")
    vit, minilm = "google/vit-base-patch16-224", "sentence-transformers/all-MiniLM-L6-v2"
    asked: dict[str, tuple[tuple[object, ...], ...]] = {
        "ctranslate2": (
            ("translate", "a", "--engine", "ctranslate2"), ("convert", "en-fr", "x", "--to", "ctranslate2"),
        ),
        "data": (
            ("train", "classify", "--pairs", files / "labels.parquet", "--columns", "text,label", "--out", "a", *SHORT),
            ("train", "complete", "--text", files / "train.en.zst", "--out", "b", *SHORT),
            ("train", "classify", "--pairs", "hf:owner/name", "--out", "c", *SHORT),
        ),
        "images": (("recognize", files / "photo.png", "--model", vit), ("see", files / "photo.png", "--model", vit)),
        "plots": (("see", "a", "--png", "a.png"),),
        "search": (("search", "a cat", files / "lines.txt", "--model", minilm, "--index", "ann"),),
        "studio": (("studio", "--no-browser"),),
        "train": (("evaluate", "en-fr", *texts), ("train", "translate", *texts, "--out", "d", *SHORT)),
    }  # fmt: skip
    assert asked.keys() == MODULES.keys() == set(EXTRAS) - {"all"}
    for extra, commands in asked.items():
        if MODULES[extra] not in installed.modules:
            for words in commands:
                assert f"cutaway[{extra}]" in installed.refused(*words)
        elif extra not in _parts(installed.extra):
            USES[extra](installed)
