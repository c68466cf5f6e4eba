"""How `make docs` builds a site from these pages, which stay plain Markdown.

The lists of links in index.md are also the table of contents; a heading of api.md brings the docstrings of the object
that it names; a link to a file of the project leads to a page that shows it.
"""

import html
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

import cutaway

project = "cutaway"
author = "The cutaway authors"
version = release = cutaway.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"cutaway {version}"
html_copy_source = False
html_show_copyright = html_show_sphinx = False
highlight_language = "text"
default_role = "code"  # docstrings quote names as Markdown does, in single backticks
myst_heading_anchors = 3
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}

ROOT = Path(__file__).parents[1]
LOG = logging.getLogger(__name__)
LEXERS = {".py": "python", ".toml": "toml", ".md": "markdown", ".c": "c", ".h": "c", ".ts": "typescript"}
sources: set[Path] = set()
"""Files of the project that pages link to."""


def contents(text: str) -> str:
    """Each heading's list of links as a part of the table of contents."""
    for part in text.split("\n## ")[1:]:
        if pages := re.findall(r"^- \[[^\]]+\]\((\S+\.md)\)", part, re.MULTILINE):
            text += "\n".join(["\n```{toctree}", ":hidden:", f":caption: {part.splitlines()[0]}", "", *pages, "```\n"])
    return text


def reference(text: str) -> str:
    """Below each heading the docstrings of the object that it names."""
    start, *parts = re.split(r"(?=^##)", text, flags=re.MULTILINE)
    for part in parts:
        if not (found := re.match(r"##+ `(cutaway\.\S+)`", part)):
            start += part
            continue
        name = found[1]
        module, _, attribute = name.rpartition(".")
        kind = "class" if inspect.isclass(getattr(__import__(module, fromlist=[attribute]), attribute)) else "function"
        start += f"{part}\n```{{eval-rst}}\n.. auto{kind}:: {name}\n```\n\n"
    return start


def linked(text: str, page: str) -> str:
    """Links to the project's files lead to their pages."""

    def link(match: re.Match[str]) -> str:
        label, target = match.groups()
        path = ((ROOT / "docs" / page).parent / target).resolve()
        if not path.is_file():
            if not path.is_dir():
                LOG.warning("no file %s", target, location=page)
            return label
        sources.add(path)
        return f'<a href="{"../" * page.count("/")}code/{path.relative_to(ROOT)}.html">{label}</a>'

    outside = "../" * (page.count("/") + 1)
    return re.sub(rf"\[([^\]]+)\]\(({re.escape(outside)}[^)#\s]+)\)", link, text)


def prepare(_: Sphinx, page: str, source: list[str]) -> None:
    text = contents(source[0]) if page == "index" else reference(source[0]) if page == "api" else source[0]
    source[0] = linked(text, page)


def source_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The files that pages link to, in colour."""
    for path in sorted(sources):
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        code = app.builder.highlighter.highlight_block(text, LEXERS.get(path.suffix, "text"))  # type: ignore[attr-defined]
        yield f"code/{name}", {"title": name, "body": f"<h1>{html.escape(name)}</h1>{code}"}, "page.html"


def as_text(*event: Any) -> None:
    """Docstrings are plain text: backticks and doctests mean something, and an indented block stands as it is."""
    lines: list[str] = event[-1]
    found: list[str] = []
    inside = False  # of what is indented
    for line in lines:
        was, inside = inside, line.startswith("    ") or (inside and not line)
        if inside and not was:
            found += ["", "::", ""]
        elif was and not inside:
            found.append("")
        quoted = re.split(r"(`[^`]*`)", line)
        escaped = (part if part.startswith("`") else re.sub(r"([*|\\]|_(?!\w))", r"\\\1", part) for part in quoted)
        found.append(line if inside or line.startswith(">>>") else "".join(escaped))
    lines[:] = found


def setup(app: Sphinx) -> None:
    app.connect("source-read", prepare)
    app.connect("autodoc-process-docstring", as_text)
    app.connect("html-collect-pages", source_pages)
