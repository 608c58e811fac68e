"""What libraries take on a GPU beside a model's tensors: cuBLAS for good, cuDNN while a convolution runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves, tree_map

from scalewise.strategies.cuts import Cut
from scalewise.workloads.convolution_memory import Copied

_aten = torch.ops.aten
PRODUCTS = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default}
CONVOLUTIONS = {_aten.convolution.default, _aten.convolution_backward.default}
CUBLAS_BYTES, CUBLAS_HOPPER_BYTES = 8_519_680, 32 * 2**20
"""That torch gives cuBLAS for each thread that multiplies, by generation of GPU."""
HOPPER = 9
THREADS = 2
"""Forward's, and autograd's for backward."""
SEGMENT_BYTES = 20 * 2**20
"""That torch reserves where less is asked for, so that a tensor of its own may need as much."""
Rooms = Mapping[tuple[str, str], int]
"""Bytes that are left, by a layer's path and forward or backward."""


def kept_by_product(function: Any, device: torch.device) -> int:
    """From the first product of matrices on, once for all of them."""
    if function not in PRODUCTS:
        return 0
    major, _ = torch.cuda.get_device_capability(device)
    return THREADS * (CUBLAS_HOPPER_BYTES if major >= HOPPER else CUBLAS_BYTES)


class _Taken(NamedTuple):
    workspace_bytes: int
    result_bytes: int = 0


class CudnnWorkspaces:
    """cuDNN chooses how to convolve, and what room that takes; so it is asked to, once for every shape. Where there is
    less room it chooses again."""

    def __init__(self, device: torch.device, cuts: Mapping[str, Cut], rooms: Rooms) -> None:
        self.device = device
        self.cuts = cuts
        """Layers of which a device computes a part."""
        self.rooms = rooms
        """All there is where nothing is said."""
        self.known: dict[str, _Taken] = {}

    def copied_by(self, function: Any, args: Any, layer: str) -> Copied:
        """Nothing by anything but a convolution."""
        if function not in CONVOLUTIONS:
            return Copied()
        share = 1.0
        if cut := self.cuts.get(layer):
            args = _part_of(function, args, cut)
            # As much of the whole as comes to this when what is taken in is shared out.
            share = cut.sizes[0] / sum(cut.sizes) if cut.role == "rows" else 1.0
        shapes = f"{function} {tree_map(lambda each: (each.shape, each.dtype) if _is_tensor(each) else each, args)}"
        if shapes not in self.known:
            self.known[shapes] = self._measured(function, args)
        taken = self.known[shapes]
        room = self.rooms.get((layer, "forward" if function is _aten.convolution.default else "backward"))
        if room is not None and taken.workspace_bytes > room:
            taken = self.known[shapes] = self._measured(function, args, taken.result_bytes + room)
        return Copied(round(taken.workspace_bytes / share))

    def _measured(self, function: Any, args: Any, room: int | None = None) -> _Taken:
        """With so many bytes to be had for what comes out of it and the workspace."""
        like = tree_map(lambda each: torch.empty_like(each) if _is_tensor(each) else each, args)
        try:
            with unset_fake_temporarily():
                given = tree_map(lambda each: self._real(each) if _is_tensor(each) else each, like)
                with self._at_most(room):
                    torch.cuda.reset_peak_memory_stats(self.device)
                    before = torch.cuda.memory_allocated(self.device)
                    result = function(*given)
                    peak = torch.cuda.max_memory_allocated(self.device)
        except torch.OutOfMemoryError:  # nor would there be room for it in a step: cuDNN then does without
            return _Taken(0)
        put_out = sum(each.nbytes for each in tree_leaves(result) if _is_tensor(each))
        return _Taken(peak - before - put_out, put_out)

    @contextmanager
    def _at_most(self, room: int | None) -> Iterator[None]:
        if room is None:
            yield
            return
        torch.cuda.empty_cache()
        whole = torch.cuda.get_device_properties(self.device).total_memory
        number = torch.cuda.current_device() if self.device.index is None else self.device.index
        allowed = torch.cuda.get_per_process_memory_fraction(number)
        wanted = (torch.cuda.memory_reserved(self.device) + room + SEGMENT_BYTES) / whole
        torch.cuda.set_per_process_memory_fraction(min(allowed, wanted), number)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(allowed, number)

    def _real(self, like: Tensor) -> Tensor:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=self.device)


def _part_of(function: Any, args: Any, cut: Cut) -> Any:
    """The convolution as the first device has it: fewer channels go in, or come out."""
    here = cut.sizes[0]
    columns = cut.role == "columns"
    if function is _aten.convolution.default:
        taken, weight, bias, *rest = args
        transposed = rest[3]
        bias = bias.narrow(0, 0, here) if columns and bias is not None else bias
        return (
            taken if columns else taken.narrow(1, 0, here),
            _narrow(weight, here, columns == transposed),
            bias,
            *rest,
        )
    given, taken, weight, bias_sizes, *rest = args
    transposed = rest[3]
    given, taken = (given.narrow(1, 0, here), taken) if columns else (given, taken.narrow(1, 0, here))
    bias_sizes = [here] if columns and bias_sizes else bias_sizes
    return (given, taken, _narrow(weight, here, columns == transposed), bias_sizes, *rest)


def _narrow(weight: Tensor, here: int, dimension: bool) -> Tensor:
    """Channels that come out are a weight's first dimension, and its second in a transposed convolution."""
    return weight.narrow(int(dimension), 0, here)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
