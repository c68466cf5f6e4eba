"""The loss over a vocabulary: its value and its gradients."""

import pytest
import torch
from torch.nn import functional as F

from cutaway.errors import InputError
from cutaway.kernels.training import VocabularyLoss, vocabulary_loss

# Sums of V numbers in float32: a few times the 24th bit of what is added up, in any order.
CLOSE = {"rtol": 1e-5, "atol": 2e-6}

pytestmark = pytest.mark.usefixtures("either")


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(("N", "V"), [(1, 1), (3, 7), (5, 64), (2, 1003)])
def test_a_row_is_torchs_cross_entropy_and_its_gradient(N, V, smoothing):
    torch.manual_seed(0)
    logits, labels = torch.randn(N, V) * 5, torch.randint(0, V, (N,))
    exact = logits.double().requires_grad_()
    F.cross_entropy(exact, labels, label_smoothing=smoothing, reduction="sum").backward()
    of_label, of_all = vocabulary_loss(logits, labels, smoothing)
    losses = F.cross_entropy(exact, labels, label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(((1 - smoothing) * of_label + smoothing * of_all).double(), losses, **CLOSE)
    torch.testing.assert_close(of_label.double(), F.cross_entropy(exact, labels, reduction="none"), **CLOSE)
    torch.testing.assert_close(logits.double(), exact.grad, **CLOSE)


def test_logits_that_are_far_apart():
    """e¹⁰⁰⁰ has no float32; a word without hope costs its distance, and what is hidden (-inf) gets no gradient."""
    logits = torch.tensor([[1000.0, 0.0, -1000.0], [3.0, -torch.inf, 3.0]])
    of_label, _ = vocabulary_loss(logits, torch.tensor([2, 0]))
    torch.testing.assert_close(of_label, torch.tensor([2000.0, 0.6931472]))
    torch.testing.assert_close(logits, torch.tensor([[1.0, 0.0, -1.0], [-0.5, 0.0, 0.5]]), rtol=0, atol=1e-37)


@pytest.mark.parametrize("lost", [torch.nan, torch.inf])
def test_a_lost_number_is_seen_in_the_loss(lost):
    """Compilers that are told of finite numbers may let a NaN pass; the loss must not."""
    logits = torch.zeros(1, 40)
    logits[0, 17] = lost
    of_label, of_all = vocabulary_loss(logits, torch.tensor([3]), 0.0)
    assert not bool((1.0 * of_label + 0.0 * of_all).isfinite())


@pytest.mark.parametrize("together", [2, 3, 64])
def test_the_whole_loss_in_any_chunks(together):
    torch.manual_seed(0)
    hidden, table = torch.randn(7, 5, dtype=torch.float64), torch.randn(11, 5, dtype=torch.float64)
    labels = torch.randint(0, 11, (7,))
    hidden.requires_grad_(), table.requires_grad_()
    exact = F.cross_entropy(hidden @ table.T, labels, label_smoothing=0.1, reduction="sum") / 7
    wanted = torch.autograd.grad(exact, (hidden, table))
    inputs = hidden.detach().float().requires_grad_(), table.detach().float().requires_grad_()
    loss = VocabularyLoss.apply(*inputs, labels, 0.1, together) / 7
    torch.testing.assert_close(loss.double(), exact, **CLOSE)
    for found, want in zip(torch.autograd.grad(loss, inputs), wanted, strict=True):
        torch.testing.assert_close(found.double(), want, **CLOSE)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, -100]), r"label -100 is outside the vocabulary of 5 \(0 to 4\); leave out"),
        (torch.tensor([5, 0]), r"label 5 is outside the vocabulary of 5 \(0 to 4\)"),
        (torch.tensor([1]), r"labels have shape \[1\] and dtype int64; expected \[2\] and int64"),
        (torch.tensor([1, 1], dtype=torch.int32), r"dtype int32; expected \[2\] and int64"),
    ],
)
def test_labels_that_are_none(labels, message):
    with pytest.raises(InputError, match=message):
        vocabulary_loss(torch.zeros(2, 5), labels)
