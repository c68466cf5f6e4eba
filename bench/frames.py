"""The way from the command line to the innermost attention call: the frames of cutaway on the stack.

`python -m bench.frames` translates a sentence as `cutaway translate` does and prints the deepest stack in which
attention is computed, by the native engine in float32.
"""

import contextlib
import io
import os
import sys
from pathlib import Path
from types import FrameType

import cutaway

PACKAGE = Path(cutaway.__file__).parent
FILES = {str(PACKAGE / name) for name in ("parts/attention.py", "engines/fused_modules.py")}
CALLS = {"attend", "kernel"}
"""The methods of Attention in which heads are computed, step by step or in one call."""


def frames_of_cutaway(frame: FrameType | None) -> list[str]:
    """Outermost first: file, line, function."""
    found = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            found.append(f"{path.relative_to(PACKAGE)}:{frame.f_lineno} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return found[::-1]


def deepest_attention(*arguments: str) -> list[str]:
    """The longest stack at an attention call while `cutaway …` runs."""
    from cutaway.cli.main import main

    deepest: list[str] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal deepest
        if event == "call" and frame.f_code.co_name in CALLS and frame.f_code.co_filename in FILES:
            frames = frames_of_cutaway(frame)
            if len(frames) > len(deepest):
                deepest = frames

    before = sys.argv
    sys.argv = ["cutaway", *arguments]
    sys.setprofile(look)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.setprofile(None)
        sys.argv = before
    return deepest


if __name__ == "__main__":
    os.environ.setdefault("CUTAWAY_ENGINE", "native")
    frames = deepest_attention("translate", "The cat sat on the mat.")
    print(*frames, f"{len(frames)} frames", sep="\n")
