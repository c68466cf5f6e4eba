"""Choices forced from outside: the environment variables CUTAWAY_*, each of which overrules a measurement."""

import os
from dataclasses import dataclass

from cutaway.checks import parse_int
from cutaway.errors import ConfigError


@dataclass(frozen=True)
class Variable:
    """An environment variable and its values; no values: a whole number of at least 1."""

    name: str
    values: tuple[str, ...]
    meaning: str


PRECISION = Variable(
    "CUTAWAY_PRECISION", ("float32", "bfloat16"), "the precision of training, and of running weights stored in bfloat16"
)
KERNELS = Variable(
    "CUTAWAY_KERNELS",
    ("off", "native", "avx2"),
    "no kernels of our own; those built for this processor; those built for any with AVX2",
)
ATTENTION = Variable(
    "CUTAWAY_ATTENTION", ("kernel", "fused", "steps"), "our kernel, torch's, or the written-out steps, wherever it can"
)
ENGINE = Variable("CUTAWAY_ENGINE", ("native", "ctranslate2"), "the engine that writes text, unless one is given")
THREADS = Variable("CUTAWAY_THREADS", (), "cores to use at most")

VARIABLES = (PRECISION, KERNELS, ATTENTION, ENGINE, THREADS)
OTHERS = ("CUTAWAY_CACHE", "CUTAWAY_DEVICE")
"""Variables of the same family that are read elsewhere: files.py, devices.py."""


def forced(variable: Variable) -> str | None:
    """The value of a variable, checked; None if it is not set, empty or "auto"."""
    value = os.environ.get(variable.name, "").strip().lower()
    if value in ("", "auto"):
        return None
    if variable is KERNELS and value == "0":
        return "off"
    if not variable.values and not 1 <= (parse_int(value) or 0) <= 4096:
        raise ConfigError(f"{variable.name}={value[:60]!r} is no number of cores; give 1 to 4096, or unset it")
    if variable.values and value not in variable.values:
        known = ", ".join(variable.values)
        raise ConfigError(f"{variable.name}={value[:60]!r} is no choice; set it to auto, {known}, or unset it")
    return value


def unknown_variables() -> str | None:
    """A warning about unknown variables named CUTAWAY_…, usually misspelt; None if there are none."""
    known = [*(variable.name for variable in VARIABLES), *OTHERS]
    unknown = sorted(name for name in os.environ if name.startswith("CUTAWAY_") and name not in known)
    return f"cutaway reads no {', '.join(unknown)} (known: {', '.join(known)})" if unknown else None
