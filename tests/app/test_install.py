"""What `pip install cutaway` alone promises: no NumPy, which torch does not bring, and caches where the user's are.

The wheel itself, in an empty environment for each extra, is installed and used by proof/test_wheel.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cutaway.cache import cache_folder

WITHOUT_NUMPY = """
import sys

class Absent:  # before torch is imported, which then goes without its bridge to NumPy
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
sys.modules["ctranslate2"] = None  # it is here, and needs NumPy
import warnings
warnings.filterwarnings("ignore", "Failed to initialize NumPy")
import torch
try:
    torch.ones(1).numpy()
    sys.exit("NumPy is there after all")
except RuntimeError:
    pass
"""

COMMANDS = """
from cutaway.cli.main import main
torch.set_num_threads(1)
for words in (
    ["translate", "Hello.", "--precision", "int8"],
    ["translate", "Hello.", "--precision", "int8"],  # from the cache
    ["translate", "Hello.", "--precision", "bfloat16", "--json"],
    ["translate", "Hello.", "--attention"],
    ["see", "Hello.", "--html", "page.html"],
    ["notes", "3", "--json"],
):
    sys.argv = ["cutaway", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""

VALUES = """
import struct
import warnings
import cutaway
from cutaway.seeing.render.serialize import picture
from cutaway.seeing.trace.trace import Trace
from cutaway.studio.server import server
from cutaway.studio.studio import Studio
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette's, of its client
    from starlette.testclient import TestClient

model = cutaway.load("en-fr")
trace = model.trace("Hello.")
trace.save("trace")
name = "encoder.blocks.0.self_attention.weights"
assert torch.equal(Trace.load("trace")[name], trace[name])
client = TestClient(
    server(Studio([model]), "secret"), base_url="http://127.0.0.1", headers={"Authorization": "Bearer secret"}
)
run = client.post("/api/run", json={"model": "en-fr", "text": "Hello."}).json()
answer = client.get(f"/api/traces/{run['id']}/values/{name}", params={"format": "binary"})
assert answer.status_code == 200, answer.text
numbers = struct.unpack(f"<{len(answer.content) // 4}f", answer.content)
assert list(numbers) == trace[name].flatten().tolist()
pixels = torch.linspace(-1, 1, 3 * 4 * 4).view(3, 4, 4)
assert picture(model, pixels, (1, 1))["pixels"].startswith("data:image/png;base64,")
assert picture(model, pixels[:1], (1, 1))["pixels"] != picture(model, pixels, (1, 1))["pixels"]
"""


def test_without_numpy(tmp_path: Path) -> None:
    """All in one process: importing torch takes longest."""
    code = WITHOUT_NUMPY + COMMANDS + VALUES
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, again = done.stdout.splitlines()[:2]
    assert first == again != ""
    assert (tmp_path / "page.html").stat().st_size > 300_000


def test_the_cache_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "own"))
    assert cache_folder("int8") == tmp_path / "own" / "int8"
    monkeypatch.setenv("CUTAWAY_CACHE", "")  # as if it were not set: never the folder one happens to be in
    if sys.platform.startswith("linux"):
        assert cache_folder("int8") == tmp_path / "xdg" / "cutaway" / "int8"
        monkeypatch.delenv("XDG_CACHE_HOME")
        assert cache_folder("int8") == tmp_path / "home" / ".cache" / "cutaway" / "int8"
    assert cache_folder("int8").is_dir()


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTAWAY_CACHE", "~nobody-of-this-name/cache")
    with pytest.raises(OSError, match="there is no home folder for the cache"):
        cache_folder("int8")
