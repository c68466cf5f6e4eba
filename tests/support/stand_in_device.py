"""A device that is not there: tensors on `standin` carry real values, kept on the CPU, and refuse all others.

It is torch's own device for backends of others (PrivateUse1), filled in by a tensor subclass. An operation on it checks
that all its tensors are there, computes on the CPU, and gives tensors that are there again. As on a GPU, a tensor of no
axes may come from the CPU in operations that go number by number, copies cross devices, and kernels for CPUs do not
know the device. It is stricter than a GPU in one thing: indices must be there too. Nothing here says how a real GPU
rounds, waits or runs out of memory.

`Unread` is the other way: torch's fake tensors, on `cuda` if need be, which have a shape, a dtype and a device only.

Both want a process of their own (`alone`): torch counts its devices when it first makes a gradient.
"""

import ctypes
import multiprocessing as mp
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "standin"
CROSSING = ("aten::copy_", "aten::_to_copy")
"""What moves values between devices."""
SCALARS = ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::fill_")
"""What takes a tensor of no axes from the CPU, besides the operations that go number by number."""

WITH_LENGTHS = ("aten::_pack_padded_sequence", "aten::_pack_padded_sequence_backward")
"""What takes the lengths of sequences, and gives the sizes of batches, on the CPU."""


class StandIn(Tensor):
    """A tensor on the device; its values are those of `plain`, a tensor on the CPU."""

    plain: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, plain: Tensor) -> "StandIn":
        device = torch.device(NAME, 0)
        made = Tensor._make_wrapper_subclass(cls, plain.shape, plain.stride(), dtype=plain.dtype, device=device)
        made.plain = plain
        return made

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(operation, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> "StandIn":
        if id(self) not in memo:
            made = StandIn(self.plain.detach().clone()).requires_grad_(self.requires_grad)
            made._is_param = getattr(self, "_is_param", False)
            memo[id(self)] = made
        return memo[id(self)]

    def __repr__(self) -> str:
        return f"StandIn({self.plain!r})"

    def __setitem__(self, key: Any, value: Any) -> None:
        key = torch.tensor(key, device=self.device) if isinstance(key, list) else key  # past the dispatcher, too
        super().__setitem__(key, value)

    # torch has these of tensors with memory of their own only
    def tolist(self) -> Any:
        return self.plain.tolist()

    def data_ptr(self) -> int:
        return self.plain.data_ptr()

    def numpy(self) -> Any:
        raise TypeError(f"a tensor on {self.device} has no numpy array; copy it with .cpu()")


def compute(operation: Any, args: Any, kwargs: Any) -> Any:
    """The operation on the CPU, unless a tensor is on the wrong device."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(operation.name(), "CompositeImplicitAutograd"):
        return operation.decompose(*args, **kwargs)  # of others, which come here one by one
    name, tensors = operation._schema.name, [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    takes_scalars = torch.Tag.pointwise in operation.tags or name in SCALARS
    for tensor in tensors:
        if (
            not isinstance(tensor, StandIn)
            and name not in (*CROSSING, *WITH_LENGTHS)
            and not (takes_scalars and tensor.dim() == 0)
        ):
            raise RuntimeError(f"{name}: a tensor {list(tensor.shape)} is on {tensor.device}, others are on {NAME}")
    to = kwargs.get("device")
    kwargs = kwargs if to is None else {**kwargs, "device": torch.device("cpu")}
    plain = tree_map(lambda x: x.plain if isinstance(x, StandIn) else x, (args, kwargs))
    found = CELLS.get(name, operation)(*plain[0], **plain[1])
    leaves = (to is not None and torch.device(to).type == "cpu") or (
        name == "aten::copy_" and not isinstance(args[0], StandIn)
    )
    known = {id(tensor.plain): tensor for tensor in tensors if isinstance(tensor, StandIn)}
    known |= {id(tensor): tensor for tensor in tensors}

    def there(x: Any) -> Any:
        if not isinstance(x, Tensor) or leaves:
            return x
        return known[id(x)] if id(x) in known else StandIn(x)

    if torch.Tag.inplace_view in operation.tags:  # another shape of the same tensor
        args[0].data = StandIn(args[0].plain)
        return args[0]
    if operation.is_view and not tensors[0].is_inference():
        with torch.inference_mode(False):  # as torch has it: a part of an ordinary tensor is one
            return tree_map(there, found)
    if name == WITH_LENGTHS[0]:
        return there(found[0]), found[1]
    return tree_map(there, found)


def lstm_cell(x: Tensor, h: Tensor, c: Tensor, b: Tensor | None = None, b_h: Tensor | None = None) -> Any:
    """What GPUs have as one kernel, and CPUs have not."""
    gates = x + h if b is None else x + b + h + b_h
    i, f, g, o = gates.chunk(4, 1)
    cell = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell, gates


def gru_cell(x: Tensor, h: Tensor, state: Tensor, b: Tensor | None = None, b_h: Tensor | None = None) -> Any:
    x, h = (x, h) if b is None else (x + b, h + b_h)
    (r, z, n), (r_h, z_h, n_h) = x.chunk(3, 1), h.chunk(3, 1)
    z = (z + z_h).sigmoid()
    new = (n + (r + r_h).sigmoid() * n_h).tanh()
    return new + z * (state - new), torch.cat((x, h), 1)


CELLS = {"aten::_thnn_fused_lstm_cell": lstm_cell, "aten::_thnn_fused_gru_cell": gru_cell}


class Module:
    """`torch.standin`"""

    is_available = is_initialized = staticmethod(lambda: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    manual_seed_all = staticmethod(lambda seed: None)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])


class _Making(TorchFunctionMode):
    """torch.tensor copies its data past the dispatcher; here it makes the tensor on the CPU and moves it."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and (device := kwargs.pop("device", None)) is not None:
            return function(*args, **kwargs).to(device)
        if function is Tensor.new_tensor:
            return torch.tensor(args[1], dtype=args[0].dtype).to(args[0].device)
        return function(*args, **kwargs)


@cache
def _registered() -> torch.library.Library:
    _setup_privateuseone_for_python_backend(NAME, Module())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda operation, *args, **kwargs: compute(operation, args, kwargs), "PrivateUse1")
    return library


@contextmanager
def standing_in() -> Iterator[torch.device]:
    """While this lasts, `device="standin"` is one that torch can use."""
    library, before = _registered(), torch.__future__.get_overwrite_module_params_on_conversion()
    assert library is not None
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # values are not in the tensor that torch swaps
    try:
        with _Making():
            yield torch.device(NAME, 0)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


class Unread(FakeTensorMode):
    """Tensors without values. Where one is read, the answer is made up: False, 1 or 1.0; and no number is 0."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func is aten._local_scalar_dense.default:
            dtype = args[0].dtype
            return False if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1
        if func is aten.nonzero.default:
            return args[0].new_empty(args[0].numel(), args[0].dim(), dtype=torch.int64)
        if func in (aten._thnn_fused_gru_cell.default, aten._thnn_fused_gru_cell_backward.default):
            return self._gru(*[each for each in args if isinstance(each, Tensor)])
        return super().dispatch(func, types, args, kwargs)

    def _gru(self, first: Tensor, second: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        """torch does not know the shapes of this one."""
        assert len({each.device for each in (first, second, *more)}) == 1, "tensors of one cell are on several devices"
        if more:
            return torch.empty_like(more[0]), first.new_empty(len(first), 5 * more[0].shape[1])
        n_rows, n = first.shape
        shapes = ((n_rows, 3 * n), (n_rows, 3 * n), (n_rows, n), (3 * n,), (3 * n,))
        return tuple(first.new_empty(shape) for shape in shapes)

    @staticmethod
    def cuda() -> str:
        """The device `cuda:0`, for tensors without gradients.

        A torch that was built for CPUs alone has no guard for it ("which device is the current one?"), though indexing
        asks for one; the CPU's, which does nothing, is put in its place. The stand-in's name where that can't be done.
        """
        libraries = list((Path(torch.__file__).parent / "lib").glob("libc10.*"))
        try:
            library = ctypes.CDLL(str(libraries[0]))
            guards = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
        except (IndexError, OSError, ValueError):
            return f"{NAME}:0"
        guards[1] = guards[1] or guards[0]
        return "cuda:0"

    def moved(self, tensor: Tensor, device: str) -> Tensor:
        return self.from_tensor(tensor).to(device)

    def network(self, made: nn.Module, device: str) -> nn.Module:
        """A network that was built here, moved: Module.to can't move what has no values."""
        weights: dict[int, nn.Parameter] = {}
        for module in made.modules():
            for name, weight in module._parameters.items():
                if weight is not None:
                    there = weights.setdefault(id(weight), nn.Parameter(weight.detach().to(device)))
                    module._parameters[name] = there
        return made


def alone(function: Callable[..., None], *given: Any) -> None:
    """Runs a test in a process of its own, forked from the server of tests/support/commands.py."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.commands"])
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(send, function, given))
    process.start()
    send.close()
    try:
        said = receive.recv()
    except EOFError:
        said = "the process died"
    process.join()
    if said is not None:
        pytest.fail(said, pytrace=False)


def _report(send: Connection, function: Callable[..., None], given: tuple[Any, ...]) -> None:
    try:
        torch.set_num_threads(1)
        _registered()
        function(*given)
        send.send(None)
    except BaseException:
        send.send(traceback.format_exc())
