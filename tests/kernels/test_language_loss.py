"""The loss of a training step, with the kernel and without, against torch's cross-entropy in float64."""

import pytest
import torch
from torch.nn import functional as F

from cutaway.training.loss import _VocabularyLoss

pytestmark = pytest.mark.usefixtures("either")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [False, True])
def test_value_and_gradients(smoothing, biased):
    """1100 tokens are three chunks. Sums of 1100 float32 numbers, each good to 6e-8 of itself."""
    torch.manual_seed(0)
    hidden, table, bias = (torch.randn(*shape, requires_grad=True) for shape in ((1100, 5), (11, 5), (11,)))
    labels = torch.randint(0, 11, (1100,))
    inputs = (hidden, table, bias) if biased else (hidden, table)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    logits = exact[0] @ exact[1].T + (exact[2] if biased else 0.0)
    wanted = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
    total, nll = _VocabularyLoss.apply(hidden, table, bias if biased else None, labels, smoothing, 0.0)
    torch.testing.assert_close(total.double(), wanted, rtol=1e-5, atol=0)
    torch.testing.assert_close(nll.double(), F.cross_entropy(logits, labels, reduction="sum"), rtol=1e-5, atol=0)
    gradients = torch.autograd.grad(wanted / 1100, exact)
    for found, want in zip(torch.autograd.grad(total / 1100, inputs), gradients, strict=True):
        torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=1e-7)
