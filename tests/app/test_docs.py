"""The documentation, as a person uses it: its code runs, its commands work, its tree is the tree."""

import re
import shlex
import shutil
from pathlib import Path

import huggingface_hub.constants as constants
import pytest
from torch.distributed.run import parse_args

from bench.parity import CASES
from cutaway.training.toml import read_config
from docs import families
from tests.support import commands
from tests.support.hub_models import furnish, lay_out, trained, write_files

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    lay_out(folder)
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_on_the_page_runs(
    page: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    names: dict[str, object] = {}
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), names)
        printed = capsys.readouterr().out
        if printed:  # what a block prints stands on the page, right after it
            following = page.read_text(encoding="utf-8").split(code, 1)[1]
            assert following.startswith(f"```\n\n```\n{printed}"), printed


def commands_on_pages() -> list[str]:
    lines = [line for page in PAGES for block in blocks(page, "") for line in block.splitlines()]
    return sorted({line.split("#")[0].strip() for line in lines if line.startswith(("cutaway ", "cat "))})


def test_there_are_commands_to_try() -> None:
    assert "cutaway notes 6" in commands_on_pages()


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("furnished")
    furnish(folder)
    return folder


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_files(folder)
    trained(folder / "my-translator")
    return folder / "my-translator"


@pytest.mark.parametrize("command", commands_on_pages())
def test_command_on_the_page_works(
    command: str, cache: Path, furnished: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shutil.copytree(furnished, tmp_path, dirs_exist_ok=True)
    if "my-translator" in command and "--out my-translator" not in command:
        shutil.copytree(request.getfixturevalue("run"), tmp_path / "my-translator")
    first, _, last = command.rpartition("| cutaway ")
    if "--write-config" in command:
        (tmp_path / "run.toml").unlink()
    elif command.startswith("cutaway train"):
        command += " --steps 2 --set batches.tokens=512"  # two steps show that it runs
        command += " --set validation.every=2 --set validation.tune=false"
    typed = "Hello.\n" if command.startswith("cutaway chat") else ""
    if first:  # cat english.txt | cutaway translate …
        typed, command = (tmp_path / first.split()[1]).read_text(encoding="utf-8"), f"cutaway {last}"
    done = commands.run(
        shlex.split(command)[1:], tmp_path / "log", folder=tmp_path, stdin=typed,
        environment={"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.out


def test_the_tree_on_the_page_is_the_tree() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## The tree")[1].split("```")[1]
    folders: list[str] = []
    listed = set()
    for line in text.splitlines():
        if not line.strip():
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        for name in re.match(r"\s*((?:[\w./]+, )*[\w./]+)", line)[1].split(", "):
            path = Path(*folders[:depth], name)
            assert (ROOT / path).exists(), path
            listed.add(str(path))
        if name.endswith("/"):
            folders = [*folders[:depth], name]
    for folder in ("parts", "models", "checkpoints", "text", "data", "seeing", "training"):
        for file in (ROOT / "src/cutaway" / folder).glob("*.py"):
            if file.name != "__init__.py":
                assert str(file.relative_to(ROOT)) in listed, f"{file.name} is not in docs/architecture.md"


def test_the_readmes_line_counts_are_true() -> None:
    counts = re.findall(r"\]\((src/\S+\.py)\) \| (\d+) \|", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(counts) == 6
    for name, n in counts:
        assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) == int(n), name


@pytest.mark.parametrize("folder", ["parts", "models"])
def test_files_can_be_read_in_a_sitting(folder: str) -> None:
    for file in (ROOT / "src/cutaway" / folder).glob("*.py"):
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 310, file.name


def test_every_page_is_in_the_table_of_contents() -> None:
    """Once; docs/conf.py makes it of the front page's lists."""
    front = ROOT / "docs/index.md"
    listed = re.findall(r"^- \[[^\]]+\]\((\S+\.md)\)", front.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(front.parent / page for page in listed) == [page for page in PAGES[2:] if page != front]


def test_a_run_on_the_page_is_one(tmp_path: Path) -> None:
    pages = [text for page in PAGES for text in blocks(page, "toml")]
    assert pages
    for text in pages:
        (tmp_path / "run.toml").write_text(text, encoding="utf-8")
        assert read_config(tmp_path / "run.toml").data.source == ("train.en",)


def test_torchrun_understands_the_page() -> None:
    found = [
        block.replace("\\\n", " ") for page in PAGES for block in blocks(page, "") if block.startswith("torchrun ")
    ]
    assert len(found) == 3
    for line in found:
        launch = parse_args(shlex.split(line)[1:])
        assert launch.module
        assert launch.training_script == "cutaway"
        assert launch.training_script_args[0] in ("train", "resume")


def test_the_table_of_families_is_up_to_date() -> None:
    assert families.PATH.read_text(encoding="utf-8") == families.page(), "run: python -m docs.families"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_parity_page_has_every_case() -> None:
    page = (ROOT / "docs/parity.md").read_text(encoding="utf-8")
    names = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert [name for name in names if ": " in name] == [case.name for case in CASES]
