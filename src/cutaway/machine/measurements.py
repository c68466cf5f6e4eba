"""Measurements of this machine: made on first use, kept in the user's cache, made again when the processor, torch or
the number of threads changes."""

import hashlib
import json
import math
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread

import torch

from cutaway.cache import cache_folder
from cutaway.files import parse_json
from cutaway.machine import processor

FORMAT = 2
"""The version of the file and of the measurements: with another one every machine measures again."""
_LARGEST = 100_000  # bytes of a file of measurements
_ROUNDS = 8  # of a comparison, at most

Numbers = dict[str, float]
"""Results of a measurement by name: seconds, or products a second."""

_known: dict[str, Numbers] = {}
_locks: defaultdict[str, Lock] = defaultdict(Lock)


def measured(name: str, measure: Callable[[], Mapping[str, float]]) -> Numbers:
    """The numbers that `measure` gives on this machine, from the cache if it has them.

    `measure` runs in a thread of its own, where no autocast, no fake tensors and no inference mode of the caller hold.
    """
    key = f"{_machine()} {name}"
    if key not in _known:
        with _locks[key]:
            if key not in _known:
                found = _read().get(name)
                if found is None:
                    found = _in_a_thread(measure)
                    _keep(name, found)
                _known[key] = found
    return _known[key]


def best_of(
    ways: Mapping[str, Callable[[], object]], seconds: float, clock: Callable[[], float] = time.thread_time
) -> Numbers:
    """The shortest time of each way, in turns: a warm-up round, then two or more until time is up.

    The default clock counts this thread's processor time, without the time that other programs had the core. Ways that
    use several threads need another clock.
    """
    began = time.perf_counter()
    for way in ways.values():
        way()
    found = dict.fromkeys(ways, math.inf)
    for i in range(_ROUNDS):
        for name, way in ways.items():
            start = clock()
            way()
            found[name] = min(found[name], clock() - start)
        if i > 0 and time.perf_counter() - began > seconds:
            break
    return found


def forget() -> None:
    """Drops the measurements of this process and of the cache; they are made again on next use."""
    _known.clear()
    with suppress(OSError):
        _path().unlink(missing_ok=True)


def facts() -> dict[str, object]:
    """The facts that measurements depend on; the key of their file."""
    return {
        "format": FORMAT, "processor": list(processor.identity()), "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }  # fmt: skip


def _machine() -> str:
    return hashlib.sha256(json.dumps(facts()).encode()).hexdigest()[:16]


def _path() -> Path:
    return cache_folder("machine") / f"{_machine()}.json"


def _read() -> dict[str, Numbers]:
    """This machine's measurements in the cache; none if the file is damaged, of another machine or unreadable."""
    try:
        path = _path()
        if path.stat().st_size > _LARGEST:
            return {}
        data = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict) or data.get("machine") != facts() or not isinstance(data.get("measured"), dict):
        return {}
    return {name: numbers for name, numbers in data["measured"].items() if _is_sound(numbers)}


def _is_sound(numbers: object) -> bool:
    """Whether these are measurements: positive numbers by name."""
    return isinstance(numbers, dict) and all(
        type(value) in (int, float) and math.isfinite(value) and value > 0 for value in numbers.values()
    )


def _keep(name: str, numbers: Numbers) -> None:
    """Adds a measurement to the file, atomically; where it can't be written, every process measures for itself."""
    with suppress(OSError):
        path = _path()
        contents = {"machine": facts(), "measured": {**_read(), name: numbers}}
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=".", suffix=".json", delete=False, encoding="utf-8"
        ) as file:
            json.dump(contents, file, indent=2)
        os.replace(file.name, path)


def _in_a_thread(measure: Callable[[], Mapping[str, float]]) -> Numbers:
    found: list[Numbers] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append({name: float(value) for name, value in measure().items()})
        except BaseException as error:  # raised again by the caller's thread
            failed.append(error)

    n = torch.get_num_threads()
    thread = Thread(target=work, name="measure")
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:  # a thread that is still in torch when Python ends aborts the process
        thread.join()
        raise
    torch.set_num_threads(n)  # part of this setting holds for all threads
    if failed:
        raise failed[0]
    return found[0]
