"""docs/clusters.md: what its script writes now; its commands and its run.toml are read; its sums are the paper's."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cutaway.kernels import attention, choice
from cutaway.models.build import build
from cutaway.models.config import StackConfig
from cutaway.training.defaults import with_model, with_steps
from cutaway.training.toml import read_config
from docs import clusters

PAGE = clusters.PATH.read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    assert clusters.page() == PAGE, "run: python -m docs.clusters"


@pytest.mark.parametrize("run", clusters.RUNS, ids=lambda run: run.model)
def test_the_papers_figures_come_out(run: clusters.Run) -> None:
    assert clusters.papers_estimate(run) == pytest.approx(run.flops, rel=0.02)
    assert 0.2 < clusters.work(run) / run.flops < 0.5  # what was needed is part of what the GPUs could do


def test_the_run_of_the_page_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    config = read_config(tmp_path / "run.toml")
    assert config.batches.tokens == clusters.BATCH
    assert config.batches.shares == clusters.RANKS
    chosen = with_model(with_steps(config, clusters.PAIRS, 10**8, print), clusters.PAIRS, print)
    assert (chosen.model.norm_place, chosen.optimizer.kind, chosen.averaging.ema) == ("post", "adamw", 0.0), (
        "the paper's"
    )


def launches() -> list[str]:
    blocks = re.findall(r"^```\n(torchrun .*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [block.replace("\\\n", " ").strip() for block in blocks]


def test_there_are_launches() -> None:
    assert len(launches()) == 3


@pytest.mark.parametrize("line", launches())
def test_torchrun_understands_the_page(line: str) -> None:
    from torch.distributed.run import parse_args

    found = parse_args(shlex.split(line)[1:])
    assert found.module
    assert found.training_script == "cutaway"
    assert found.training_script_args[0] in ("train", "resume")
    ranks = int(found.nnodes.split(":")[-1]) * int(found.nproc_per_node)
    assert clusters.RANKS % ranks == 0


def test_the_cpu_of_the_page_is_the_one_of_performance() -> None:
    page = (clusters.PATH.parent / "performance.md").read_text(encoding="utf-8")
    training = page.split("transformer-base, forward+backward\n")[1]
    assert re.search(r"^fp32  cutaway +(\d+) ", training, re.MULTILINE)[1] == str(clusters.CPU_TOKENS)


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_activations_are_what_autograd_keeps(precision: clusters.Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths are such that no activation has the shape of a weight."""
    monkeypatch.setattr(attention, "torch_is_faster", lambda q, k, dropout: True)  # as on a GPU,
    monkeypatch.setattr(choice, "kernels", lambda: None)  # which has no kernels of ours: they keep less
    n_words, n_rows, n_source, n_target = 100, 7, 33, 21

    def small(stack: StackConfig | None) -> StackConfig | None:
        return stack and replace(stack, vocabulary=n_words, n_blocks=2, d_model=64, n_heads=2, d_ff=256)

    config = clusters.config_of("transformer-base")
    config = replace(config, encoder=small(config.encoder), decoder=small(config.decoder))
    network = build(config, 1).train()
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor  # which also keeps its memory from being used again
        return tensor

    source, target = torch.randint(n_words, (n_rows, n_source)), torch.randint(n_words, (n_rows, n_target))
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"),
    ):
        hidden = network.hidden(source, target, mask=torch.ones_like(source, dtype=torch.bool))
        found = sum(
            tensor.untyped_storage().nbytes()
            for tensor in kept.values()
            if tensor.shape[0] in (n_rows, n_rows * n_source, n_rows * n_target)
        )
    assert hidden.shape == (n_rows, n_target, 64)
    of_source, of_target = clusters.activation_bytes(config, precision)
    assert n_rows * (n_source * of_source + n_target * of_target) == pytest.approx(found, rel=0.03)
