"""`make proof`: the suite under each profile, then what takes too long for it; `make proof PROFILE=float32` for one.

A profile forces the choices that another machine would make (docs/machine.md). All run to their end, whatever fails.
A profile has both cores to itself; of the rest two run at a time.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SUITE = ("-n", "2", "--dist", "worksteal", "tests")
PROFILES: dict[str, dict[str, str]] = {
    "measured": {},
    "bfloat16": {"CUTAWAY_PRECISION": "bfloat16"},
    "float32": {"CUTAWAY_PRECISION": "float32"},
    "no-kernels": {"CUTAWAY_KERNELS": "off"},
    "no-compiler": {},
    "one-thread": {"CUTAWAY_THREADS": "1"},
    "avx2": {"CUTAWAY_KERNELS": "avx2"},
}
FILES = {
    "studio": "proof/test_studio_fuzz.py",
    "wheel": "proof/test_wheel.py",
    "int8": "proof/test_int8.py",
    "sanitizers": "proof/test_sanitizers.py",
    "settings": "proof/test_generation_settings.py",
    "chat-templates": "proof/test_chat_templates.py",
}
"""What is proved once, whatever the machine; the longest first."""
COMPILERS = re.compile(r"(.*-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+)(-\d+)?|c89|c99")


def path_without_compilers(folder: Path) -> str:
    """A folder of links to every program on PATH but compilers."""
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("*") if place else ():
            link = folder / program.name
            if not COMPILERS.fullmatch(program.name) and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def run(name: str) -> tuple[int, str, float]:
    """Exit code, pytest's last line, and minutes."""
    began, arguments = time.monotonic(), SUITE if name in PROFILES else (FILES[name], "-s")
    environment = os.environ | PROFILES.get(name, {})
    with tempfile.TemporaryDirectory() as folder:
        if name == "no-compiler":
            environment["PATH"] = path_without_compilers(Path(folder))
            environment.pop("CC", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            sys.stdout.write(line if name in PROFILES else f"{name}: {line}")
            sys.stdout.flush()
            last = line.strip() or last
    return process.wait(), last, (time.monotonic() - began) / 60


def main() -> None:
    known = [*PROFILES, *FILES]
    asked = sys.argv[1:] or known
    if wrong := [name for name in asked if name not in known]:
        sys.exit(f"no profile {wrong[0]!r}; choose from {', '.join(known)}")
    results = {}
    for name in (name for name in asked if name in PROFILES):
        print(f"\n=== {name} {' '.join(f'{key}={value}' for key, value in PROFILES[name].items())}", flush=True)
        results[name] = run(name)
    rest = [name for name in asked if name in FILES]
    print(f"\n=== {', '.join(rest)}" if rest else "", flush=True)
    with ThreadPoolExecutor(2) as two:
        results |= zip(rest, two.map(run, rest), strict=True)
    width = max(map(len, results))
    print()
    for name, (code, last, minutes) in results.items():
        print(f"{name:{width}}  {'passed' if code == 0 else 'FAILED'}  {minutes:5.1f} min  {last}")
    sys.exit(any(code for code, _, _ in results.values()))


if __name__ == "__main__":
    main()
