"""What holds for every source file, and for what the page is built from."""

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import cutaway
from bench.frames import deepest_attention

SOURCES = Path(cutaway.__file__).parent
LOCK = SOURCES.parents[1] / "web" / "package-lock.json"


def _open_as_text(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls that open a file as text."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in ("read_text", "write_text") and owner is not None:
            yield node
        elif name in ("open", "fdopen", "NamedTemporaryFile", "TemporaryFile", "TextIOWrapper"):
            if isinstance(owner, ast.Name) and owner.id in ("os", "Image", "zipfile", "webbrowser") and name == "open":
                continue  # not Python's
            if isinstance(owner, ast.Attribute) and owner.attr == "Image":
                continue
            given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
            modes = [str(each.value) for each in given if isinstance(each, ast.Constant)]
            if not any("b" in mode for mode in modes if len(mode) <= 3) and name != "TemporaryFile":
                yield node


@pytest.mark.parametrize("source", sorted(SOURCES.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCES)))
def test_text_has_an_encoding(source: Path) -> None:
    """Windows would take its own, which has no letters for our own sources' comments."""
    lacking = [
        node.lineno
        for node in _open_as_text(ast.parse(source.read_text(encoding="utf-8")))
        if "encoding" not in {keyword.arg for keyword in node.keywords}
    ]
    assert lacking == []


def test_a_class_name_occurs_once() -> None:
    trees = [ast.parse(source.read_text(encoding="utf-8")) for source in SOURCES.rglob("*.py")]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, n in names.items() if n > 1] == []


def test_the_explanation_does_not_know_engines() -> None:
    """parts/ and models/ read as the notes do: no engine, no ctypes, and of the kernels one call for each part."""
    for source in [*(SOURCES / "parts").glob("*.py"), *(SOURCES / "models").glob("*.py")]:
        tree = ast.parse(source.read_text(encoding="utf-8"))
        imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not {name for name in imported if name == "ctypes" or name.startswith("cutaway.engines")}, source.name
        called = {
            f"{node.module}.{alias.name}".removeprefix("cutaway.kernels.").split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cutaway.kernels")
            for alias in node.names
        }
        assert called <= {"attention", "norms", "dropout"}, source.name


def test_the_explanation_stays_short() -> None:
    """It is to be read in an afternoon."""
    parts, models = (
        {source.name: len(source.read_text(encoding="utf-8").splitlines()) for source in (SOURCES / room).glob("*.py")}
        for room in ("parts", "models")
    )
    assert sum(parts.values()) + sum(models.values()) <= 3200
    assert parts["attention.py"] <= 190


def test_imports_go_downward() -> None:
    """As docs/architecture.md draws it: a room imports from rooms to its left, and from its own."""
    page = (SOURCES.parents[1] / "docs/architecture.md").read_text(encoding="utf-8")
    line = re.search(r"Imports go downward: (.*?)\. ", page, re.DOTALL)
    assert line
    level = {room.strip(): i for i, part in enumerate(line[1].split("←")) for room in part.split(",")}
    wrong = []
    for source in SOURCES.rglob("*.py"):
        room = source.relative_to(SOURCES).parts[0].removesuffix(".py")
        for node in ast.parse(source.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cutaway."):
                other = (node.module or "").split(".")[1]
                if other != room and level.get(other, -1) > level.get(room, len(level)):
                    wrong.append(f"{source.relative_to(SOURCES)} imports {node.module}")
    assert wrong == []


def test_a_module_is_named_by_a_noun() -> None:
    """Not by a participle or a pronoun, which do not say what is in it."""
    odd = re.compile(r"(ed|told|drawn|taught|written|seen|kept|able|each|two)$")
    names = [source.stem for source in SOURCES.rglob("*.py")]
    assert [name for name in names if odd.search(name) and name not in ("embed", "distributed")] == []


def test_the_explanation_is_short() -> None:
    def lines(source: Path) -> int:
        return source.read_text(encoding="utf-8").count("\n")

    assert sum(lines(source) for room in ("parts", "models") for source in (SOURCES / room).rglob("*.py")) <= 3200
    assert lines(SOURCES / "parts/attention.py") <= 190


def test_a_training_step_is_one_function_on_one_screen() -> None:
    tree = ast.parse((SOURCES / "training/loop.py").read_text(encoding="utf-8"))
    [step] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "_step"]
    assert step.end_lineno is not None
    assert step.end_lineno - step.lineno < 40
    code = "\n".join(map(ast.unparse, step.body[1:]))
    parts = ("self.parallel.loss(", "backward(", "clip", "rate_factor(", "optimizer.steps(")
    places = [code.find(part) for part in parts]
    assert places == sorted(places)
    assert -1 not in places


def test_the_way_from_the_command_line_to_attention_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTAWAY_ENGINE", "native")
    frames = deepest_attention("translate", "The cat sat on the mat.")
    assert frames[0].startswith("cli/")
    assert "Attention" in frames[-1]
    assert len(frames) <= 14, "\n".join(frames)


def test_every_package_of_the_page_has_a_digest() -> None:
    """Without one, npm takes whatever a registry sends, on the systems of those who need that package."""
    packages = json.loads(LOCK.read_text(encoding="utf-8"))["packages"]
    fetched = {name: entry for name, entry in packages.items() if name and not entry.get("link")}
    assert len(fetched) > 50
    assert [name for name, entry in fetched.items() if not entry.get("integrity", "").startswith("sha512-")] == []
    assert [name for name, entry in fetched.items() if "resolved" in entry] == [], "a mirror of somebody's"
