"""Two ranks under torchrun learn what one process learns: with whole models (DDP), with parts (FSDP2), across restarts.

The ranks add the gradients of two shares, as one process does, and a sum of two is the same whichever comes first.
Clipping adds the squares of parts in another order, so a tolerance of 1e-5 is left for rounding in float32. In bfloat16
that last bit decides now and then how a weight is rounded, to 8 bits: what is left of the promise there is the loss.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from cutaway.data.encoding import EncodedTexts
from cutaway.errors import ConfigError
from cutaway.models.build import build
from cutaway.training.config import ModelChoice
from cutaway.training.defaults import network_config
from cutaway.training.distributed import Objective, check_micro_batches, gather, shard
from cutaway.training.tasks.translate import PairBatch, Pairs, Translation
from tests.support import commands

STEPS = 12
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-3}
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of made-up sentences: every word has a translation, and the order is turned round."""
    folder = tmp_path_factory.mktemp("distributed")
    chance = random.Random(0)
    for name, n in (("train", 400), ("valid", 20)):
        sentences = [[chance.randrange(40) for _ in range(chance.randrange(3, 9))] for _ in range(n)]
        (folder / f"{name}.src").write_text("".join(" ".join(f"wa{w}" for w in s) + "\n" for s in sentences))
        (folder / f"{name}.tgt").write_text("".join(" ".join(f"zo{w}" for w in s[::-1]) + "\n" for s in sentences))
    return folder


def command(corpus: Path, out: Path, *more: str) -> list[str]:
    sizes = ("model.d_model=32", "model.n_heads=2", "model.d_ff=64", "model.n_blocks=1", "batches.tokens=256",
             "validation.every=4", "saving.minutes=0.0001", "averaging.ema=0.9", "batches.micro_batches=2",
             "machine.precision=float32", *more)  # fmt: skip
    files = {"source": "train.src", "target": "train.tgt", "valid-source": "valid.src", "valid-target": "valid.tgt"}
    settings = [part for size in sizes for part in ("--set", size)]
    return [
        "train", "translate", *(f"--{name}={corpus / file}" for name, file in files.items()), "--vocabulary=300",
        f"--steps={STEPS}", *settings, f"--out={out}",
    ]  # fmt: skip


def together(corpus: Path, words: list[str], n: int, *, dies_after: int | None = None) -> list[commands.Done]:
    """`n` ranks, told who they are as torchrun tells them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = []
    for rank in range(n):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": n, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        told = ENVIRONMENT | {name: str(value) for name, value in place.items()}
        ranks.append(commands.Command(words, corpus / f"log{rank}", environment=told, dies_after=dies_after))
    return [rank.wait(180) for rank in ranks]


def wait_for(out: Path, step: int, process: "subprocess.Popen[str]") -> None:
    """Until the run has saved this step."""
    deadline = time.monotonic() + 120
    while not (out / "training" / f"step-{step:08}").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def losses(out: Path) -> dict[int, float]:
    """Of the validation at each look."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["valid"]["loss"] for line in lines if "valid" in line}


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "training" / f"step-{STEPS:08}" / "weights.safetensors")


def assert_alike(out: Path, reference: Path, precision: str = "float32") -> None:
    assert list(losses(reference)) == [4, 8, 12]
    assert losses(out) == pytest.approx(losses(reference), rel=TOLERANCE[precision])
    if precision == "bfloat16":
        return
    expected = weights(reference)
    for name, weight in weights(out).items():
        if not name.endswith("k.bias"):  # softmax does not see it: its gradient is rounding, which Adam makes steps of
            torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def reference(corpus: Path) -> Path:
    done = commands.run(command(corpus, corpus / "alone"), environment=ENVIRONMENT)
    assert done.code == 0, done.err
    return corpus / "alone"


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_ranks_learn_what_one_process_learns(corpus: Path, reference: Path, sharding: str) -> None:
    """Killed twice, each time continued by the other number of ranks; first and last look: two ranks."""
    out = corpus / sharding
    settings = (f"machine.sharding={sharding}", "saving.keep=20")
    together(corpus, command(corpus, out, *settings), 2, dies_after=5)
    assert list(losses(out)) == [4]
    together(corpus, ["resume", str(out)], 1, dies_after=9)
    assert list(losses(out)) == [4, 8]
    for done in together(corpus, ["resume", str(out)], 2):
        assert done.code == 0, done.err
    assert_alike(out, reference)


def test_two_ranks_in_bfloat16(corpus: Path) -> None:
    """Over five seeds the losses were within 3e-5 of one process's."""
    half = ("machine.precision=bfloat16", "machine.sharding=fsdp")
    alone = commands.run(command(corpus, corpus / "half", *half), environment=ENVIRONMENT)
    assert alone.code == 0, alone.err
    for done in together(corpus, command(corpus, corpus / "halves", *half), 2):
        assert done.code == 0, done.err
    assert_alike(corpus / "halves", corpus / "half", "bfloat16")


def test_a_lost_rank_comes_back(corpus: Path, reference: Path) -> None:
    """torchrun starts both ranks again, and they go on from the last state."""
    out = corpus / "lost"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    process = subprocess.Popen(
        [*launch, "-m", "cutaway", *command(corpus, out)],
        env=os.environ | ENVIRONMENT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for(out, 3, process)
    ranks = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout.split()
    assert len(ranks) == 2
    os.kill(int(ranks[1]), signal.SIGKILL)
    _, told = process.communicate(timeout=180)
    assert process.returncode == 0, told
    assert "going on after step" in told
    assert_alike(out, reference)


@pytest.mark.parametrize("preset", ["bahdanau-gru", "transformer-tiny"])
def test_every_kind_of_model_in_parts(preset: str) -> None:
    """On one rank, which has all parts, the gradients are those of the whole model."""
    source, tokens, labels = (torch.randint(50, shape) for shape in ((2, 5), (2, 4), (2, 4)))
    gradients = []
    for in_parts in (False, True):
        config = network_config("translate", ModelChoice(preset=preset, d_model=16, dropout=0.0), (50, 50))
        network = build(config, seed=1)
        task = Translation(pairs := Pairs(EncodedTexts.of([[1]]), EncodedTexts.of([[1]])), pairs, [], start=0, pad=0)
        objective = Objective(network, task)
        if in_parts:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            if in_parts:
                shard(network, objective)
            objective(PairBatch(source, torch.ones_like(source, dtype=torch.bool), tokens, labels)).backward()
            gradients.append({name: gather(weight.grad) for name, weight in network.named_parameters()})
        finally:
            if in_parts:
                dist.destroy_process_group()
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        # a table that is used twice may get its two gradients in another order
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-5, atol=1e-6)


def test_shares_must_divide() -> None:
    """Every rank counts for itself and sees the same mistake, so none is left waiting."""
    check_micro_batches(6, 3)
    with pytest.raises(ConfigError, match=r"2 micro-batches \(batches\.micro_batches\), which 3 ranks can't"):
        check_micro_batches(2, 3)
