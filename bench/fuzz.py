"""Broken and hostile files, by the thousand: `python -m bench.fuzz --inputs 50000`.

A good folder is made once; each input is that folder with config.json, tokenizer.json, the weights' header or another
file changed at random: values of other types and sizes, keys dropped, doubled or renamed, bytes flipped, cut or added.
Whatever comes, `cutaway.load` must give a model or a CheckpointError of one line: no other exception, no hang, and no
more memory than twice the files' size (and a little for Python itself).
"""

import argparse
import json
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cutaway
from cutaway.errors import CheckpointError
from cutaway.model import Model
from cutaway.models.config import TransformerConfig
from cutaway.text.train import train_tokenizer

SECONDS = 20.0  # for one input; a load takes milliseconds
SPARE = 64_000_000  # bytes beyond twice the files: torch's and Python's own

FAMILIES = ("gpt2", "t5-small", "bert-tiny", "llama-3.2-1b")
SIZES: dict[str, Any] = {"n_blocks": 2, "d_model": 8, "n_heads": 2, "d_ff": 12, "vocabulary": 300}


class Found(Exception):  # noqa: N818  # what a fuzzer looks for
    """An input that did what none may do."""


def make_folder(name: str, folder: Path) -> None:
    """A small model of that family, as Hugging Face keeps it, with a tokenizer."""
    config = cutaway.preset(name)
    assert isinstance(config, TransformerConfig)
    small = SIZES | {"d_head": 4} | ({"n_kv_heads": 1} if "llama" in name else {})
    halves = {half: replace(stack, **small) for half in ("encoder", "decoder") if (stack := getattr(config, half))}
    network = cutaway.build(replace(config, **halves))
    tokenizer = train_tokenizer(["the cat sat on the mat", "a dog ate the cat"] * 3, kind="bpe", vocabulary=290)
    Model(network, tokenizer).save(folder, format="huggingface")


def odd(rng: random.Random) -> Any:
    """A JSON value that nobody expects."""
    return rng.choice([
        None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**63, 2**64, -(2**63), 10**40, 0.0, -0.5, 1e308, 1e-320, "", "a",
        "x" * 10_000, "../../etc/passwd", "/dev/zero", "https://x.invalid", "\x00", "\ud800", "𝔘", "gelu", "gpt2",
        [], [[]], [1], [0, 0], [-1, 5], ["a", "b"], {}, {"a": 1}, {"type": "BPE"}, {"auto_map": "x.py"},
    ])  # fmt: skip


def places(data: Any, found: list[tuple[Any, Any]] | None = None) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    found = [] if found is None else found
    keys = list(data) if isinstance(data, dict) else list(range(len(data))) if isinstance(data, list) else []
    for key in keys[:200]:
        found.append((data, key))
        places(data[key], found)
    return found


def mutate_json(data: Any, rng: random.Random) -> Any:
    """One to four changes of a parsed JSON value."""
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        spots = places(data)
        if not spots:
            return odd(rng)
        container, key = rng.choice(spots)
        what = rng.random()
        if what < 0.5:
            container[key] = odd(rng)
        elif what < 0.65:
            del container[key]
        elif what < 0.75 and isinstance(container[key], int | float) and not isinstance(container[key], bool):
            container[key] = container[key] * rng.choice([0, -1, 2, 10**6, 10**12]) + rng.choice([0, 1, -1])
        elif what < 0.85 and isinstance(container, dict):
            container[str(key) + rng.choice(["", "_", "x"])] = odd(rng)
        else:
            other, name = rng.choice(spots)
            container[key] = other[name] if not _inside(other[name], container) else None
    return data


def _inside(value: Any, container: Any) -> bool:
    """Whether `container` is part of `value`, so that putting one into the other would make a circle."""
    return value is container or any(holder is container for holder, _ in places(value))


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to four changes of bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(changed) + 1)
        what = rng.random()
        if what < 0.4 and at < len(changed):
            changed[at] = rng.randrange(256)
        elif what < 0.6:
            del changed[at : at + rng.choice([1, 2, 100, 10_000])]
        elif what < 0.8:
            changed[at:at] = rng.randbytes(rng.choice([1, 3, 100]))
        else:
            changed[at:at] = rng.choice([b"{", b"[" * 5000, b'"a":1,', b"}", b"\x00", b"\xff\xfe", b"1e999", b"NaN"])
    return bytes(changed)


def dump(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=True).encode()


def change_json(path: Path, rng: random.Random) -> None:
    good = path.read_bytes()
    path.write_bytes(mutate_bytes(good, rng) if rng.random() < 0.3 else dump(mutate_json(json.loads(good), rng)))


def change_header(path: Path, rng: random.Random) -> None:
    """The header of a safetensors file, or the length before it, or the data behind it."""
    good = path.read_bytes()
    n = struct.unpack("<Q", good[:8])[0]
    header, data = good[8 : 8 + n], good[8 + n :]
    what = rng.random()
    if what < 0.5:
        header = dump(mutate_json(json.loads(header), rng))
        n = len(header)
    elif what < 0.7:
        header = mutate_bytes(header, rng)
        n = len(header) if rng.random() < 0.5 else n
    elif what < 0.85:
        n = rng.choice([0, 1, 7, n - 1, n + 1, n + 8, 10**8, 10**8 + 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
    else:
        data = mutate_bytes(data, rng)
    path.write_bytes(struct.pack("<Q", n) + header + data)


CHANGES: dict[str, Callable[[Path, random.Random], None]] = {
    "config.json": change_json,
    "tokenizer.json": change_json,
    "tokenizer_config.json": change_json,
    "model.safetensors": change_header,
}


def attempt(folder: Path) -> str:
    """Loads; "loaded" or "refused". Anything else is Found."""

    def late(number: int, frame: Any) -> None:
        raise Found(f"took more than {SECONDS} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    allowed = 2 * sum(file.stat().st_size for file in folder.iterdir()) + SPARE
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        model = cutaway.load(folder)
        if model.tokenizer is not None:
            model.tokenizer.encode("the cat sat")
        outcome = "loaded"
    except CheckpointError as error:
        if "\n" in str(error) or len(str(error)) > 2000:
            raise Found(f"message of {len(str(error))} characters: {str(error)[:300]!r}") from error
        outcome = "refused"
    except Found:
        raise
    except BaseException as error:  # a panic of a library is no Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        raise Found(f"{type(error).__name__}: {str(error)[:300]}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    if grown > allowed:
        raise Found(f"needed {grown:,} bytes more for files of {allowed:,}")
    return outcome


def run(
    n_inputs: int, seed: int, show: Callable[[str], None], keep: Path | None = None
) -> tuple[Counter[str], dict[str, str]]:
    """How often each file was loaded and refused, and what was found: a seed to an exception."""
    counts: Counter[str] = Counter()
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as place:
        good = {name: Path(place) / name for name in FAMILIES}
        for name, folder in good.items():
            make_folder(name, folder)
            attempt(folder)
        folder = Path(place) / "changed"
        started = time.monotonic()
        for number in range(n_inputs):
            rng = random.Random(f"{seed}:{number}")
            file = rng.choice(list(CHANGES))
            shutil.copytree(good[rng.choice(FAMILIES)], folder)
            CHANGES[file](folder / file, rng)
            try:
                counts[f"{file} {attempt(folder)}"] += 1
            except Found as error:
                found[f"{seed}:{number} {file}"] = str(error)
                counts[f"{file} FOUND"] += 1
                if keep is not None:
                    shutil.copytree(folder, keep / str(number), dirs_exist_ok=True)
            shutil.rmtree(folder)
            if number % 500 == 499:
                rate = (number + 1) / (time.monotonic() - started)
                show(f"{number + 1:,} of {n_inputs:,}, {rate:.0f}/s, {len(found)} found")
    return counts, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="copy what was found into this folder")
    arguments = parser.parse_args()
    counts, found = run(
        arguments.inputs, arguments.seed, lambda line: print(line, file=sys.stderr, flush=True), arguments.keep
    )  # fmt: skip
    for name, count in sorted(counts.items()):
        print(f"{count:8,}  {name}")
    for name, error in list(found.items())[:50]:
        print(f"{name}: {error}")
    print(f"{arguments.inputs:,} inputs, {len(found)} found")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
