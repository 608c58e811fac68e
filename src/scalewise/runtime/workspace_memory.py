"""Measure the workspace of operations (oneDNN, cuDNN, cuBLAS) on this machine's device."""

from __future__ import annotations

from functools import cache
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map

from scalewise.runtime.device_memory import HostPeak, can_measure_host
from scalewise.runtime.torch_errors import is_out_of_memory

_aten = torch.ops.aten
MATRIX_PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
WITH_WORKSPACE = {
    _aten.convolution.default,
    _aten.convolution_backward.default,
    _aten.mkldnn_rnn_layer.default,
    _aten.mkldnn_rnn_layer_backward.default,
}
"""Operations whose workspace depends on the algorithm that oneDNN or cuDNN chooses."""
CUBLAS_BYTES, CUBLAS_HOPPER_BYTES = 8_519_680, 32 * 2**20
"""Workspace of each cuBLAS handle, as PyTorch documents it (CUDA semantics, "cuBLAS workspaces")."""
HOPPER = 9
UNUSUAL_SHAPES = (37, 41), (41, 43)
"""Shapes of a matrix product that models hardly have: large enough for oneDNN, with a result of negligible size."""
CUBLAS_HANDLES = 2
"""Number of cuBLAS handles: one in the thread that runs forward, one in autograd's thread."""


class Measured(NamedTuple):
    """Memory of one operation, measured by running it once on the device."""

    workspace_bytes: int = 0
    """Peak bytes beyond the arguments and results of the operation."""
    result_bytes: tuple[int, ...] = ()
    """Bytes of each returned value; 0 for values that are not tensors."""


class Workspaces:
    """Measures each operation that needs a workspace, once for every shape, by running it on the device.

    The workspace counts as 0 where the device is not present, where peaks cannot be measured (see `can_measure_host`),
    and for an operation that the device has no room for. Any other error of an operation is raised.
    """

    def __init__(self, device: torch.device, measures: bool = True) -> None:
        self.device = device
        self.is_present = torch.cuda.is_available() if device.type == "cuda" else can_measure_host()
        self.measures = measures and self.is_present
        self.host: HostPeak | None = None

    def __enter__(self) -> Workspaces:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self.host:
            self.host.close(keep_freed=True)

    def kept_by(self, function: Any, args: Any) -> dict[str, int]:
        """Bytes that a library keeps after the first call with these arguments, by purpose."""
        if not self.is_present or function not in MATRIX_PRODUCTS:
            return {}
        if self.device.type == "cuda":
            major, _ = torch.cuda.get_device_capability(self.device)
            return {"cuBLAS": CUBLAS_HANDLES * (CUBLAS_HOPPER_BYTES if major >= HOPPER else CUBLAS_BYTES)}
        kernel_bytes = self._kernel_bytes(args[0].dtype) if self.measures else 0
        return {self._key(function, args): kernel_bytes} if kernel_bytes else {}

    def of_call(self, function: Any, args: Any) -> Measured:
        """Workspace of a call. `args` may have shapes only; tensors of these shapes are allocated to measure it."""
        if not self.measures or function not in WITH_WORKSPACE:
            return Measured()
        key, known = self._key(function, args), _known()
        if key not in known:
            known[key] = self._measure(function, args)
        return known[key]

    def _key(self, function: Any, args: Any) -> str:
        return str((function, self.device, tree_map(lambda arg: _layout(arg) if _is_tensor(arg) else arg, args)))

    def _kernel_bytes(self, dtype: torch.dtype) -> int:
        """Bytes that oneDNN keeps for each shape of a matrix product, measured with UNUSUAL_SHAPES."""
        kernels = _kernels()
        if dtype not in kernels:
            with unset_fake_temporarily():
                first, second = (torch.zeros(shape, dtype=dtype) for shape in UNUSUAL_SHAPES)
                second.T @ first.T  # initializes the library
                before = self._reset_peak()
                result = first @ second
                assert self.host is not None
                kernels[dtype] = self.host.in_use() - before
                del result
        return kernels[dtype]

    def _measure(self, function: Any, args: Any) -> Measured:
        try:
            with unset_fake_temporarily():
                real = tree_map(lambda arg: self._real(arg) if _is_tensor(arg) else arg, args)
                if self.device.type == "cpu":
                    function(*real)  # compiles kernels, which oneDNN keeps
                before = self._reset_peak()
                result = function(*real)
                peak = self._peak() - before
        except RuntimeError as error:
            if is_out_of_memory(error):
                return Measured()
            raise
        sizes = tuple(leaf.untyped_storage().nbytes() if _is_tensor(leaf) else 0 for leaf in tree_leaves(result))
        return Measured(max(0, peak - sum(sizes)), sizes)

    def _reset_peak(self) -> int:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return torch.cuda.memory_allocated(self.device)
        self.host = self.host or HostPeak()
        return self.host.reset()

    def _peak(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        assert self.host is not None
        return self.host.read()

    def _real(self, like: Tensor) -> Tensor:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=self.device)


@cache
def _known() -> dict[str, Measured]:
    """Workspaces that this process has measured, by operation, device and arguments."""
    return {}


@cache
def _kernels() -> dict[torch.dtype, int]:
    """Bytes that oneDNN keeps for each shape of a matrix product in this process, by dtype."""
    return {}


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
