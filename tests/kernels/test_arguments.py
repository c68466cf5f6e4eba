"""C reads and writes wherever it is told to: what a kernel is given is checked, and buffers are large enough."""

import ctypes
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from cutaway import kernels as c
from cutaway.decoding.top import log_total, top
from cutaway.engines.fused_modules import FusedAttention, FusedRMSNorm, FusedRotation
from cutaway.engines.int8_layers import Int8Linear
from cutaway.engines.quantization import quantized
from cutaway.kernels.arguments import address, attention_sizes, axes
from cutaway.kernels.attention import train
from cutaway.kernels.dropout import add_dropped
from cutaway.kernels.loss import agreeing_loss, vocabulary_loss
from cutaway.kernels.norms import add_norm
from cutaway.parts.kv_cache import KV
from cutaway.parts.masks import Bias
from cutaway.parts.positions import rotary

BUILT = c.kernels()
if BUILT is None:
    pytest.skip("the kernels are off, or no C compiler built them: nothing is given to them", allow_module_level=True)


@pytest.fixture
def default_dtype(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(before)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def with_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y.sum(), leaves)]


def attention() -> list[Tensor]:
    q, k, v = (numbers(37, 4, 12, 32, seed=i) for i in range(3))
    return with_gradients(lambda q, k, v: train(q, k, v, None, 0.2, 30, 7), q, k, v)


def norms() -> list[Tensor]:
    x, f, weight, bias = numbers(300, 64), numbers(300, 64, seed=1), numbers(64), numbers(64, seed=2)
    return with_gradients(lambda *tensors: add_norm(*tensors, 1e-5, 30, 7), x, f, weight, bias)


def dropped() -> list[Tensor]:
    return with_gradients(lambda x, f: add_dropped(x, f, 30, 7), numbers(999), numbers(999, seed=1))


def losses() -> list[Tensor]:
    logits, labels = numbers(500, 300), torch.arange(500) % 300
    return [*vocabulary_loss(logits.clone(), labels, 0.1), *agreeing_loss(logits, labels, 0.1, 0.5)]


def running() -> list[Tensor]:
    q, k, v = (numbers(8, 4, 9, 32, seed=i) for i in range(3))
    norm = FusedRMSNorm(32, 1e-6)
    norm.weight.data = numbers(32)
    rotation = rotary(torch.arange(9), 32)
    rotated = FusedRotation(rotation.cos, rotation.sin).rotate(q)
    attention = FusedAttention(4 * 32, 4)
    attention.kernels = BUILT
    return [attention.kernel(q, KV(k, v), Bias(None), 0.0), norm(q).detach(), rotated]


def search() -> list[Tensor]:
    return [*top(numbers(40, 5000), 9), log_total(numbers(40, 5000))]


def int8() -> list[Tensor]:
    return [Int8Linear(quantized(numbers(70, 200)), numbers(70))(numbers(400, 200))]


WORKS = (attention, norms, dropped, losses, running, search, int8)


@pytest.mark.usefixtures("default_dtype")
@pytest.mark.parametrize("default_dtype", [torch.float16, torch.float64], indirect=True)
@pytest.mark.parametrize("work", WORKS)
def test_another_default_dtype_changes_nothing(work: Callable[[], list[Tensor]]) -> None:
    """Buffers of torch's default dtype were half as large as what kernels wrote: `munmap_chunk(): invalid pointer`."""
    found = work()
    torch.set_default_dtype(torch.float32)
    for one, other in zip(found, work(), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (torch.zeros(3, 4, dtype=torch.float64), (3, 4)),
        (torch.zeros(3, 4), (3, 5)),
        (torch.zeros(3, 4), (12,)),
        (torch.zeros(4, 3).t(), (3, 4)),
        (torch.zeros(3, 4, device="meta"), (3, 4)),
    ],
)
def test_other_tensors_than_expected_are_refused(x: Tensor, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"a kernel was given a tensor of shape \[.*expected shape"):
        address(x, shape)


@pytest.mark.parametrize(
    "x", [torch.zeros(2, 3, 4, 5, dtype=torch.bfloat16), torch.zeros(3, 4, 5), torch.zeros(2, 3, 5, 4).mT]
)
def test_heads_have_four_axes_of_float32_the_last_without_gaps(x: Tensor) -> None:
    with pytest.raises(ValueError, match="expected four axes, dtype torch.float32, the last axis contiguous"):
        axes(x)
    axes(torch.zeros(2, 3, 1, 5).mT)  # one number has no gaps


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((2, 4, 3, 8), (2, 4, 5, 8), (2, 4, 6, 8)),
        ((2, 4, 3, 8), (1, 4, 5, 8), (1, 4, 5, 8)),
        ((2, 4, 3, 8), (2, 3, 5, 8), (2, 3, 5, 8)),
        ((2, 4, 3, 8), (2, 4, 5, 6), (2, 4, 5, 6)),
        ((2, 4, 3, 8), (2, 4, 0, 8), (2, 4, 0, 8)),
    ],
)
def test_heads_that_do_not_belong_together_are_refused(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="do not match"):
        attention_sizes(torch.zeros(q), torch.zeros(k), torch.zeros(v))


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected shape \[3, 20\]"):
        Int8Linear(quantized(numbers(7, 20)), None)(numbers(3, 21))


TOO_MANY = 2**50


def test_want_of_memory_is_an_error() -> None:
    """Not a crash: each kernel that needs memory of its own says that there was none."""
    x = axes(torch.zeros(1, 1, 1, 8))
    for queries in (1, 2):
        sizes = c.Sizes(1, 1, 1, queries, TOO_MANY, 8, 1)
        with pytest.raises(MemoryError, match="no memory for the kernel attend"):
            BUILT.attend(x, x, x, None, None, None, sizes, 1.0)
    sizes, dropout = c.Sizes(1, 1, 1, 1, 2**26, 8, 1), c.DropoutRecord(0, 0)  # the square of the keys
    with pytest.raises(MemoryError, match="attend_forward"):
        BUILT.attend_forward(x, x, x, None, None, x, sizes, 1.0, dropout)
    with pytest.raises(MemoryError, match="attend_backward"):
        BUILT.attend_backward(x, x, x, None, x, x, x, x, sizes, 1.0, dropout)
    stack = c.StackRecord(n_blocks=1, width=TOO_MANY, heads=1, kv_heads=1, d_head=8, d_ff=8)
    call = c.CallRecord(rows=1, queries=1)
    with pytest.raises(MemoryError, match="run_stack"):
        BUILT.run_stack(stack, call, ctypes.c_void_p(None))
