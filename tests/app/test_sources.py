"""What holds for every source file, and for what the page is built from."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import cutaway

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


def test_every_package_of_the_page_has_a_digest() -> None:
    """Without one, npm takes whatever a registry sends, on the systems of those who need that package."""
    packages = json.loads(LOCK.read_text(encoding="utf-8"))["packages"]
    fetched = {name: entry for name, entry in packages.items() if name and not entry.get("link")}
    assert len(fetched) > 50
    assert [name for name, entry in fetched.items() if not entry.get("integrity", "").startswith("sha512-")] == []
    assert [name for name, entry in fetched.items() if "resolved" in entry] == [], "a mirror of somebody's"
