"""The loss by chunks is cross-entropy, label smoothing and R-Drop as anybody would write them, and needs no [N, V]."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import cutaway
from cutaway.models.build import build
from cutaway.models.config import LanguageModel, MaskedLanguageModel, TransformerConfig
from cutaway.models.network import Network
from cutaway.training import loss as loss_module
from cutaway.training.loss import IGNORED, language_loss

B, T, D, V = 4, 5, 6, 11
HEADS = {
    "tied": LanguageModel(tied=True, bias=False),
    "tied, bias": LanguageModel(tied=True, bias=True),
    "untied": LanguageModel(tied=False, bias=True),
    "scaled": LanguageModel(tied=True, bias=False, scaled=True),
    "masked": MaskedLanguageModel(),
}
EXACT = {"rtol": 1e-10, "atol": 1e-11}  # sums of 20 · 11 numbers of size 1 in float64, added in another order


def network(head: LanguageModel | MaskedLanguageModel, words: int = V, dtype: torch.dtype = torch.float64) -> Network:
    """Only its table and its head are asked."""
    config = cutaway.preset("bert-base" if isinstance(head, MaskedLanguageModel) else "gpt2")
    assert isinstance(config, TransformerConfig)
    stack = replace(
        config.last, vocabulary=words, n_blocks=1, d_model=D, n_heads=2, d_ff=8, max_positions=8, dropout=0.0,
        attention_dropout=0.0, ff_dropout=0.0,
    )  # fmt: skip
    half = "encoder" if config.decoder is None else "decoder"
    made = build(replace(config, **{half: stack}, head=head)).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in made.parameters():  # biases are 0 when they are new, which would hide them
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return made


def inputs(n_ignored: int = 6, batch: int = B, words: int = V) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(batch, T, D, generator=generator, dtype=torch.float64)
    labels = torch.randint(words, (batch, T), generator=generator)
    labels.view(-1)[torch.randperm(batch * T, generator=generator)[:n_ignored]] = IGNORED
    return hidden, labels


def gradients(total: Tensor, of: Network, hidden: Tensor) -> dict[str, Tensor]:
    weights = {f"network.{name}": weight for name, weight in of.named_parameters()} | {"hidden": hidden}
    found = torch.autograd.grad(3.0 * total, list(weights.values()), allow_unused=True)  # 3: it comes from further on
    return {name: grad for name, grad in zip(weights, found, strict=True) if grad is not None}


@pytest.mark.parametrize("rows", [512, 7, 1])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("head", HEADS)
def test_is_cross_entropy(head: str, smoothing: float, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "_ROWS", rows)
    model, (hidden, labels) = network(HEADS[head]), inputs()
    hidden.requires_grad_()
    logits, wanted = model.apply_head(hidden).flatten(0, 1), labels.flatten()
    total = F.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    nll = F.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum")
    ours = language_loss(model, hidden, labels, smoothing=smoothing)
    torch.testing.assert_close(ours.total, total, **EXACT)
    assert ours.nll == pytest.approx(float(nll.detach()), rel=1e-10)
    assert ours.n == B * T - 6
    expected, found = gradients(total, model, hidden), gradients(ours.total, model, hidden)
    assert found.keys() == expected.keys()
    n_tensors = {"tied": 2, "tied, bias": 3, "untied": 3, "scaled": 2, "masked": 7}[head]
    assert len(found) == n_tensors, "hidden, table, bias, and what the masked head has before them"
    for name, grad in found.items():
        torch.testing.assert_close(grad, expected[name], **EXACT, msg=lambda text, name=name: f"{name}: {text}")


def test_nothing_counts() -> None:
    model, (hidden, labels) = network(HEADS["tied"]), inputs(n_ignored=B * T)
    hidden.requires_grad_()
    ours = language_loss(model, hidden, labels, smoothing=0.1)
    assert (float(ours.total.detach()), ours.nll, ours.n) == (0.0, 0.0, 0)
    assert gradients(ours.total, model, hidden)["hidden"].abs().max() == 0.0


def test_without_gradients() -> None:
    model, (hidden, labels) = network(HEADS["tied, bias"]), inputs()
    expected = language_loss(model, hidden, labels, smoothing=0.1)
    with torch.no_grad():
        found = language_loss(model, hidden, labels, smoothing=0.1)
    assert not found.total.requires_grad
    assert torch.equal(found.total, expected.total.detach())
    assert found.nll == expected.nll


@pytest.mark.parametrize("rows", [512, 7])
def test_agreement_is_r_drop(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """α · ½ (KL(p‖q) + KL(q‖p)), written out, on top of both halves' cross-entropy."""
    monkeypatch.setattr(loss_module, "_ROWS", rows)
    model, alpha = network(HEADS["tied, bias"]), 5.0
    hidden, labels = inputs(batch=6)
    labels = torch.cat((labels[:3], labels[:3]))  # the same once more, dropped out otherwise
    hidden.requires_grad_()
    logits, wanted = model.apply_head(hidden).flatten(0, 1), labels.flatten()
    total = F.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum", label_smoothing=0.1)
    log_p, log_q = logits.log_softmax(-1)[wanted != IGNORED].chunk(2)
    p_to_q = (log_p.exp() * (log_p - log_q)).sum()
    q_to_p = (log_q.exp() * (log_q - log_p)).sum()
    total = total + alpha * 0.5 * (p_to_q + q_to_p)
    ours = language_loss(model, hidden, labels, smoothing=0.1, r_drop=alpha)
    torch.testing.assert_close(ours.total, total, **EXACT)
    expected, found = gradients(total, model, hidden), gradients(ours.total, model, hidden)
    assert len(found) == 3
    for name, grad in found.items():
        torch.testing.assert_close(grad, expected[name], **EXACT, msg=lambda text, name=name: f"{name}: {text}")


def test_bfloat16_is_close() -> None:
    """Logits in bfloat16 have 8 bits: each is off by up to 2^-9 of itself. Logits here reach 6, so log p is off by
    about 0.01, either way; over 300 tokens that mostly cancels. Gradients are rounded once more."""
    model, (hidden, labels) = network(HEADS["tied, bias"], dtype=torch.float32), inputs(batch=60)
    hidden = hidden.float().requires_grad_()
    exact = language_loss(model, hidden, labels, smoothing=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = language_loss(model, hidden, labels, smoothing=0.1)
    assert rounded.total.dtype == torch.float32, "sums are not rounded"
    assert rounded.nll / rounded.n == pytest.approx(exact.nll / exact.n, abs=5e-3)
    assert rounded.nll != exact.nll, "bfloat16 was used"
    expected, found = gradients(exact.total, model, hidden), gradients(rounded.total, model, hidden)
    for name, grad in found.items():
        assert grad.dtype == torch.float32
        error = (grad - expected[name]).norm() / expected[name].norm()
        assert error < 2 * 2**-8, name


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that was made."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().nbytes():
                self.most = max(self.most, tensor.untyped_storage().nbytes() // tensor.element_size())
        return made


@pytest.mark.parametrize("agreement", [0.0, 1.0])
def test_logits_never_exist_all_at_once(agreement: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "_ROWS", 16)
    words, batch = 500, 40
    model, (hidden, labels) = network(HEADS["tied"], words), inputs(0, batch, words)
    hidden.requires_grad_()
    with Largest() as seen:
        language_loss(model, hidden, labels, smoothing=0.1, r_drop=agreement).total.backward()
    assert seen.most == 16 * words, "the logits of one chunk; the table has 6 · 500 numbers, all logits have 200 · 500"
    with Largest() as seen:
        F.cross_entropy(model.apply_head(hidden).flatten(0, 1), labels.flatten()).backward()
    assert seen.most == batch * T * words, "which this would see"
