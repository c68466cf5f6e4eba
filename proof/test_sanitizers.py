"""The kernels under the sanitizers of addresses and undefined behaviour: no byte outside of a tensor is touched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECKS = "-fsanitize=address,undefined -fno-sanitize-recover=all -g"
TESTS = ("tests/kernels", "tests/engines/test_int8.py")
PAST_THE_END = """
import torch
from cutaway.kernels import NormRecord, kernels
x, y, weight = torch.ones(3, 8), torch.empty(3, 7), torch.ones(8)
kernels().norm(NormRecord(weight.data_ptr(), None, 1e-5), x.data_ptr(), 3, 8, y.data_ptr())
"""


def libraries() -> str:
    """What must be loaded before Python, which was not built with it."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        told = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        found.append(told.stdout.strip())
        assert Path(found[-1]).is_absolute(), f"the compiler has no {name}"
    return " ".join(found)


def run(target: str, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "CC": f"cc {CHECKS}",
        "LD_PRELOAD": libraries(),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",  # Python itself leaks; want of memory is tested
        "CUTAWAY_CACHE": str(cache),
        "CUTAWAY_KERNELS": target,
        "CUTAWAY_ATTENTION": "kernel",  # which are slow like this, so that torch's would be taken
    }
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", ["native", "avx2"])
def test_the_kernels_touch_nothing_else(target: str, tmp_path: Path) -> None:
    done = run(target, tmp_path, "-m", "pytest", "-q", *TESTS, "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_the_sanitizers_would_tell(tmp_path: Path) -> None:
    done = run("native", tmp_path, "-c", PAST_THE_END)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
