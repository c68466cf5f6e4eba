"""The loss over a vocabulary: its value and its gradients."""

import pytest
import torch
from torch.nn import functional as F

from cutaway.errors import InputError
from cutaway.kernels.loss import agreeing_loss, vocabulary_loss

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


@pytest.mark.parametrize(("smoothing", "agreement"), [(0.0, 1.0), (0.1, 5.0)])
@pytest.mark.parametrize(("N", "V"), [(2, 1), (6, 7), (4, 64), (2, 1003)])
def test_two_answers_are_pulled_together(N, V, smoothing, agreement):
    """R-Drop as its paper writes it, and as autograd derives it."""
    torch.manual_seed(0)
    logits, labels = torch.randn(N, V) * 3, torch.randint(0, V, (N // 2,)).repeat(2)
    exact = logits.double().requires_grad_()
    p, q = exact.log_softmax(-1).chunk(2)
    kl = [F.kl_div(one, other, log_target=True, reduction="none").sum(1) for one, other in ((p, q), (q, p))]
    wanted = 0.5 * (kl[0] + kl[1])
    (F.cross_entropy(exact, labels, label_smoothing=smoothing, reduction="sum") + agreement * wanted.sum()).backward()
    of_label, of_all, apart = agreeing_loss(logits, labels, smoothing, agreement)
    losses = F.cross_entropy(exact, labels, label_smoothing=smoothing, reduction="none")
    torch.testing.assert_close(((1 - smoothing) * of_label + smoothing * of_all).double(), losses, **CLOSE)
    torch.testing.assert_close(apart.double(), wanted, **CLOSE)
    torch.testing.assert_close(logits.double(), exact.grad, rtol=1e-5, atol=2e-6 * agreement * 10)  # p · log p / q


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
