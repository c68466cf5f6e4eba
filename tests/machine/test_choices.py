"""What follows from measurements, with the numbers of machines that were seen; and what forces it."""

import ctypes
import hashlib
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import cutaway
from cutaway.engines import choose
from cutaway.engines import timing as engine_timing
from cutaway.errors import ConfigError
from cutaway.kernels import _built, _functions, _loaded, choice, compiler, kernels, why_not
from cutaway.kernels import timing as kernel_timing
from cutaway.kernels.choice import ANY, USUAL, KernelChoice, kernels_for
from cutaway.machine import environment, processor
from cutaway.models.presets import preset
from cutaway.training import precision
from cutaway.training.config import MachineChoice
from cutaway.training.precision import fastest_precision, kernel_choice
from cutaway.training.run import resume, train
from cutaway.training.toml import read_config
from tests.support import toy_runs as toy

CPU = torch.device("cpu")
TINY, BASE = preset("transformer-tiny"), preset("transformer-base")


@pytest.fixture(autouse=True)
def _as_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in environment.VARIABLES:
        if variable is not environment.KERNELS:
            monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setattr(processor, "has_bfloat16", lambda: True)
    choice.default.cache_clear()


@pytest.fixture
def _fresh_choice() -> object:
    yield
    choice.default.cache_clear()


def times(narrow: float, wide: float) -> dict[str, float]:
    """bfloat16 so many times as fast as float32."""
    return {"narrow float32": narrow, "narrow bfloat16": 1.0, "wide float32": wide, "wide bfloat16": 1.0}


@pytest.mark.parametrize(
    ("narrow", "wide", "tiny", "base"),
    [
        (0.52, 0.49, "float32", "float32"),  # a Xeon with avx512_bf16: products at 137 GFLOP/s instead of 282
        (1.8, 2.6, "bfloat16", "bfloat16"),  # an EPYC (Zen 5): 954 instead of 213
        (1.1, 2.0, "float32", "bfloat16"),
        (1.29, 1.29, "float32", "float32"),  # not clearly faster
        (1.31, 1.31, "bfloat16", "bfloat16"),
    ],
)
def test_the_precision_of_training(
    monkeypatch: pytest.MonkeyPatch, narrow: float, wide: float, tiny: str, base: str
) -> None:
    monkeypatch.setattr(precision, "step_times", lambda: times(narrow, wide))
    assert fastest_precision(CPU, TINY)[0] == tiny
    assert fastest_precision(CPU, BASE) == (base, f"bfloat16 measured {wide:.2f} × as fast as float32")


def test_without_instructions_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "has_bfloat16", lambda: False)
    monkeypatch.setattr(precision, "step_times", lambda: pytest.fail("it was measured"))
    assert fastest_precision(CPU, TINY)[0] == "float32"
    assert not engine_timing.bfloat16_runs_faster()


def test_an_lstm_stays_in_float32_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "has_bfloat16", lambda: False)
    monkeypatch.setenv("CUTAWAY_PRECISION", "bfloat16")
    assert fastest_precision(CPU, preset("lstm-seq2seq"))[0] == "float32"
    assert fastest_precision(CPU, preset("gru-seq2seq"))[0] == "bfloat16"


@pytest.mark.parametrize(("gain", "expected"), [(0.9, "float32"), (1.2, "float32"), (1.4, "bfloat16")])
def test_weights_in_bfloat16_run_in_it_only_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, gain: float, expected: str
) -> None:
    monkeypatch.setattr(engine_timing, "running_times", lambda: {"float32": gain, "bfloat16": 1.0})
    network = cutaway.build("bert-tiny")
    assert choose.as_stored(network) == "float32"
    assert choose.as_stored(network.to(torch.bfloat16)) == expected


ATTENTION = {
    "float32 kernel 16": 1.0, "float32 fused 16": 2.0, "float32 kernel 128": 1.0, "float32 fused 128": 1.2,
    "bfloat16 steps 16": 1.0, "bfloat16 fused 16": 5.0, "bfloat16 steps 128": 1.0, "bfloat16 fused 128": 1.3,
    "norm kernel 16": 1.1, "norm fused 16": 1.0,
    "running kernel 16": 1.0, "running fused 16": 2.0, "running kernel 64": 1.0, "running fused 64": 1.0,
    "wide kernel 16": 1.0, "wide fused 16": 1.0, "wide kernel 64": 1.0, "wide fused 64": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, USUAL),
        ({"float32 fused 128": 0.7}, KernelChoice(kernel=16)),
        ({"float32 fused 128": 0.8}, USUAL),  # not clearly faster
        ({"bfloat16 fused 128": 0.5}, KernelChoice(half_steps=16)),
        ({"bfloat16 fused 128": 0.5, "bfloat16 fused 16": 0.5}, KernelChoice(half_steps=0)),
        ({"running fused 64": 0.5}, KernelChoice(running=16)),
        ({"wide fused 16": 1.5}, KernelChoice(running_wide=16)),
        ({"wide fused 16": 1.5, "wide fused 64": 1.5}, KernelChoice(running_wide=64)),
        ({"norm fused 16": 0.5}, KernelChoice(own=False)),
    ],
)
def test_borders_of_attention(changes: dict[str, float], expected: KernelChoice) -> None:
    assert kernel_timing.choice_of(ATTENTION | changes) == expected
    assert kernel_timing.choice_of({}) == USUAL  # nothing to compare


@pytest.mark.parametrize(
    ("n_weights", "narrow", "wide", "expected"),
    [(2e5, 3.0, 1.0, True), (2e5, 1.2, 3.0, False), (1.5e6, 3.0, 1.0, False), (1.5e6, 1.0, 1.5, True),
     (7e6, 9.0, 9.0, False)],
)  # fmt: skip
def test_the_engine(
    monkeypatch: pytest.MonkeyPatch, n_weights: float, narrow: float, wide: float, expected: bool
) -> None:
    found = {"native narrow": narrow, "ctranslate2 narrow": 1.0, "native wide": wide, "ctranslate2 wide": 1.0}
    monkeypatch.setattr(engine_timing, "engine_times", lambda: found)
    assert engine_timing.ctranslate2_is_faster(n_weights) is expected


# Forced


def needs_kernels(value: str) -> None:
    if value == "kernel" and kernels() is None:
        pytest.skip("there are no kernels to force: they are off, or can't be built here")


@pytest.mark.parametrize("value", ["float32", "bfloat16"])
def test_a_forced_precision(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CUTAWAY_PRECISION", value.upper())
    monkeypatch.setattr(precision, "step_times", lambda: pytest.fail("it was measured"))
    assert fastest_precision(CPU, TINY) == (value, "by CUTAWAY_PRECISION")
    assert engine_timing.bfloat16_runs_faster() is (value == "bfloat16")


@pytest.mark.usefixtures("_fresh_choice")
@pytest.mark.parametrize(
    ("value", "expected"),
    [("kernel", (ANY, 191)), ("fused", (0, 0)), ("steps", (0, ANY)), ("auto", None)],
)
def test_a_forced_attention(monkeypatch: pytest.MonkeyPatch, value: str, expected: tuple[int, int] | None) -> None:
    needs_kernels(value)
    monkeypatch.setenv("CUTAWAY_ATTENTION", value)
    choice.default.cache_clear()
    found = choice.default()
    assert (found.kernel, found.half_steps) == (
        expected or (kernel_timing.fastest().kernel, kernel_timing.fastest().half_steps)
    )


@pytest.mark.usefixtures("_fresh_choice")
@pytest.mark.parametrize("value", ["kernel", "fused", "steps"])
def test_every_attention_is_the_same(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    needs_kernels(value)
    stack = replace(TINY.decoder, dropout=0.0, vocabulary=50)
    network = cutaway.build(replace(TINY, encoder=stack, decoder=stack)).train()
    source, target = torch.arange(5)[None], torch.arange(7)[None]
    expected = network(source, target)
    monkeypatch.setenv("CUTAWAY_ATTENTION", value)
    choice.default.cache_clear()
    # other orders of the same float32 sums
    torch.testing.assert_close(network(source, target), expected, rtol=1e-4, atol=1e-4)


def test_a_forced_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_timing, "engine_times", lambda: pytest.fail("it was measured"))
    for value in ("native", "ctranslate2"):
        monkeypatch.setenv("CUTAWAY_ENGINE", value)
        assert cutaway.load("en-fr").engine().name == value
    monkeypatch.setattr(choose, "has_ctranslate2", lambda: False)
    with pytest.raises(ConfigError, match=r"CUTAWAY_ENGINE=ctranslate2, which is not installed; pip install"):
        cutaway.load("en-fr").engine()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CUTAWAY_PRECISION", "half", "'half' is no choice; set it to auto, float32, bfloat16, or unset it"),
        ("CUTAWAY_KERNELS", "sse", "'sse' is no choice; set it to auto, off, native, avx2, or unset it"),
        ("CUTAWAY_THREADS", "0", "'0' is no number of cores; give 1 to 4096, or unset it"),
        ("CUTAWAY_THREADS", "all", "'all' is no number of cores; give 1 to 4096, or unset it"),
    ],
)
def test_a_forced_choice_that_is_none(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv(name, value)
    variable = next(each for each in environment.VARIABLES if each.name == name)
    with pytest.raises(ConfigError) as caught:
        environment.forced(variable)
    assert str(caught.value) == f"{name}={message}"


def test_kernels_that_can_not_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    _loaded.cache_clear()
    kernels.cache_clear()
    try:
        monkeypatch.delenv("CUTAWAY_KERNELS", raising=False)
        assert kernels() is None
        kernels.cache_clear()
        assert why_not() == "there is no C compiler (cc, gcc or clang)"
        monkeypatch.setenv("CUTAWAY_KERNELS", "avx2")
        with pytest.raises(ConfigError, match=r"CUTAWAY_KERNELS=avx2, but (there is no C compiler|this processor)"):
            kernels()
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": False})
        with pytest.raises(ConfigError, match="CUTAWAY_KERNELS=avx2, but this processor has no AVX2; mend that"):
            kernels()
    finally:
        _loaded.cache_clear()
        kernels.cache_clear()


def test_the_kernel_can_not_be_forced_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTAWAY_ATTENTION", "kernel")
    monkeypatch.setattr(choice, "kernels", lambda: None)
    with pytest.raises(ConfigError, match="CUTAWAY_ATTENTION=kernel, but there are no kernels of our own here"):
        choice.default()


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-8192]),
    "empty": lambda path: path.write_bytes(b""),
    "another library": lambda path: path.write_bytes(b"\x7fELF" + path.read_bytes()[4:-1] + b"?"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_library_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """Loading half a library ends the process without a word."""
    if (built := kernels()) is None:
        pytest.skip("there is no library to damage: kernels are off, or can't be built here")
    cache = Path(os.environ["CUTAWAY_CACHE"]) / "kernels"
    copied = tmp_path / "kernels"
    shutil.copytree(cache, copied)
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path))
    (library,) = copied.glob(f"{built.digest}-*.so")
    DAMAGES[damage](library)
    damaged = library.read_bytes()
    target = "avx2" if environment.forced(environment.KERNELS) == "avx2" else "native"
    again = _built(target)
    assert again.read_bytes() != damaged
    ctypes.CDLL(str(again))
    assert list(copied.glob(f"{built.digest}-*.so")) == [again]


PLANTED = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((constructor)) static void run(void) { fclose(fopen(getenv("TESTS_PLANTED"), "w")); }
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of somebody else under the right name, in a cache of several users; whoever loads it makes a file."""
    if (built := kernels()) is None:
        pytest.skip("there is no library to plant: kernels are off, or can't be built here")
    monkeypatch.setenv("CUTAWAY_CACHE", str(tmp_path / "shared"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("TESTS_PLANTED", str(tmp_path / "was loaded"))
    folder = tmp_path / "shared" / "kernels"
    folder.mkdir(parents=True, mode=0o700)
    (tmp_path / "planted.c").write_text(PLANTED)
    library = tmp_path / "planted.so"
    subprocess.run([*compiler(), "-shared", "-fPIC", tmp_path / "planted.c", "-o", library], check=True)
    digest = hashlib.sha256(library.read_bytes()).hexdigest()[:16]
    return library.rename(folder / f"{built.digest}-{digest}.so")


def _load(monkeypatch: pytest.MonkeyPatch, made: Path) -> Path:
    """The library that is loaded; instead of building one, `made` is taken."""

    def built(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        shutil.copyfile(made, command[command.index("-o") + 1])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("cutaway.kernels.subprocess.run", built)
    target = "avx2" if environment.forced(environment.KERNELS) == "avx2" else "native"
    found = _built(target)
    assert _functions(found).digest == found.name.split("-")[0]
    return found


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has other rights")
@pytest.mark.parametrize("whose", ["the file", "the folder", "a link"])
def test_a_library_that_others_may_have_written_is_not_loaded(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str, built_library: Path
) -> None:
    match whose:
        case "the file":
            planted.chmod(0o775)
        case "the folder":
            planted.parent.chmod(0o770)
        case "a link":
            planted.symlink_to(planted.rename(tmp_path / planted.name))
    found = _load(monkeypatch, built_library)
    assert not (tmp_path / "was loaded").exists()
    assert found.parent == (planted.parent if whose != "the folder" else tmp_path / "own" / "cutaway" / "kernels")
    assert found.stat().st_mode & 0o077 == 0


@pytest.fixture(scope="module")
def built_library() -> Path:
    if (built := kernels()) is None:
        pytest.skip("there is no library to load: kernels are off, or can't be built here")
    return next((Path(os.environ["CUTAWAY_CACHE"]) / "kernels").glob(f"{built.digest}-*.so"))


@pytest.mark.usefixtures("planted")
def test_a_whole_library_of_ones_own_is_loaded(tmp_path: Path) -> None:
    """The test above can fail: what is planted runs where nothing speaks against it."""
    target = "avx2" if environment.forced(environment.KERNELS) == "avx2" else "native"
    with pytest.raises(AttributeError, match="undefined symbol"):
        _functions(_built(target))
    assert (tmp_path / "was loaded").exists()


# Trainings


@pytest.mark.usefixtures("_fresh_choice")
def test_a_run_goes_on_as_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was chosen stands in run.toml, and no later measurement flips it."""
    monkeypatch.setenv("CUTAWAY_PRECISION", "float32")
    monkeypatch.setattr(kernel_timing, "fastest", lambda: KernelChoice(kernel=16, half_steps=77))
    choice.default.cache_clear()
    data = toy.corpus(tmp_path / "data", 60)
    config = toy.config(data, "machine.precision=auto")
    steps = iter(range(100))
    train(config, tmp_path / "out", stop=lambda: "enough" if next(steps) > 3 else None)
    kept = read_config(tmp_path / "out" / "run.toml").machine
    assert (kept.precision, kept.kernel_length, kept.steps_length) == ("float32", 16, 77)
    monkeypatch.setenv("CUTAWAY_PRECISION", "bfloat16")
    monkeypatch.setattr(kernel_timing, "fastest", lambda: KernelChoice(own=False, kernel=0, half_steps=0))
    choice.default.cache_clear()
    resume(tmp_path / "out")
    assert read_config(tmp_path / "out" / "run.toml").machine == kept
    train(config, tmp_path / "whole", stop=lambda: None)  # in bfloat16, by torch
    assert read_config(tmp_path / "whole" / "run.toml").machine.precision == "bfloat16"


def test_a_run_decides_about_kernels() -> None:
    own = kernel_choice(MachineChoice(kernels="own", kernel_length=3, steps_length=4))
    assert (own.own, own.kernel, own.half_steps) == (True, 3, 4)
    assert not kernel_choice(MachineChoice(kernels="torch")).own
    with choice.using(kernel_choice(MachineChoice(kernels="torch"))):
        assert kernels_for(torch.ones(2)) is None
