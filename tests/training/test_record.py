"""What a run writes down is what happened: TensorBoard's file says what metrics.jsonl says."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from cutaway.training.run import train
from tests.support import toy_runs as toy


def events(path: Path) -> Iterator[Event]:
    """Records: 8 bytes of length, 4 of checksum, the event, 4 of checksum."""
    data = path.read_bytes()
    while data:
        (n,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + n])
        data = data[16 + n :]


def test_tensorboard_says_what_the_log_says(tmp_path: Path) -> None:
    train(toy.config(toy.corpus(tmp_path / "data", 60)), tmp_path / "out")
    (file,) = (tmp_path / "out" / "training" / "tensorboard").iterdir()
    found = {(value.tag, event.step): value.simple_value for event in events(file) for value in event.summary.value}
    lines = toy.metrics(tmp_path / "out")
    looks = [
        (f"valid/{name}", line["step"], score)
        for line in lines
        if "valid" in line
        for name, score in line["valid"].items()
    ]
    steps = [
        (f"train/{name}", line["step"], line[name])
        for line in lines
        if "loss" in line
        for name in ("loss", "nll", "gradient")
    ]
    assert len(looks) == 4 * 3
    assert len(steps) == 3
    for tag, step, value in (*looks, *steps):
        assert found[tag, step] == pytest.approx(value, rel=1e-6), (tag, step)  # kept in float32
