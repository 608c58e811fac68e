"""What a convolution on one core of a CPU takes beside its tensors, while it runs; as torch 2.11 and 2.13 have it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

WIDE_VECTORS = torch.backends.cpu.get_cpu_capability() == "AVX512"
ONEDNN_BLOCK = 16 if WIDE_VECTORS else 8
"""Channels side by side in the layout of oneDNN's own kernels: those of one vector."""
COLOURS = 3
"""Channels of an image, which its kernels read as it is."""
WIDEST_PADDING = 14
"""That those know; beyond it oneDNN multiplies matrices."""
NATIVE_ELEMENTS, NATIVE_KERNEL = 20480, 3
"""Of a single sample of at most so many torch multiplies matrices itself, but for kernels wider than that both ways."""
NATIVE_POINTS = 15
"""Up to so many samples also for kernels of one point, which read what is there."""
MOST_SCRATCH_BYTES, MOST_SCRATCH_TIMES = 2**30, 15
"""That oneDNN allows a matrix product: in all, and of what the convolution reads and writes."""
SCRATCH_SHARES = 0.1, 0.05
"""Of that it takes where a whole sample's columns are more: for the gradient of the input, and of the weights."""


class Copied(NamedTuple):
    """Bytes on top of all that goes in and comes out."""

    of_taken: int = 0
    """As many as there are channels of what it takes in."""
    of_given: int = 0
    """As many as there are of what it puts out."""


def copied_by_convolution(function: Any, args: Any, result: Any) -> Copied:
    """Nothing by anything else."""
    if function is torch.ops.aten.convolution.default:
        taken, weight, _, stride, padding, _, transposed = args[:7]
        image = taken if transposed else result
        if _is_cast_in_vain(taken):
            of_columns = _all_columns(taken, weight, image, stride, padding)
            return Copied(of_given=result.nbytes) if transposed else Copied(of_columns)
        native = _native_columns(taken, weight, image, stride)
        return Copied(native) if native is not None else _in_forward(taken, weight, result, padding, transposed)
    if function is torch.ops.aten.convolution_backward.default:
        given, taken, weight, _, stride, padding, _, transposed = args[:8]
        image = taken if transposed else given
        if _is_cast_in_vain(taken):
            columns = _columns(weight, image) if transposed else _all_columns(taken, weight, image, stride, padding)
            return max(Copied(columns), Copied(of_given=2 * given.nbytes), key=sum)  # which is added up in float32
        native = _native_columns(taken, weight, image, stride)
        return Copied(native) if native is not None else _in_backward(taken, weight, given, padding)
    return Copied()


def _in_forward(taken: Tensor, weight: Tensor, given: Tensor, padding: list[int], transposed: bool) -> Copied:
    if max(padding) > WIDEST_PADDING:
        return Copied(of_given=given.nbytes)
    if transposed:  # what comes out is there in its own layout, in torch's, and with the bias
        return Copied(of_given=2 * _blocked(given))
    read = _blocked(taken) if taken.shape[1] >= ONEDNN_BLOCK else 0
    last, first = Copied(0, _blocked(given)), Copied(read, _blocked_weight(weight) + _blocked(given) - given.nbytes)
    return max(last, first, key=sum)


def _in_backward(taken: Tensor, weight: Tensor, given: Tensor, padding: list[int]) -> Copied:
    if max(padding) > WIDEST_PADDING:
        columns = _columns(weight, given)
        most = min(MOST_SCRATCH_BYTES, MOST_SCRATCH_TIMES * (taken.nbytes + weight.nbytes + given.nbytes))
        summed = weight.element_size() * weight.nbytes  # bytes taken for elements, there
        of_input, of_weights = (
            columns if columns <= room else round(share * room)
            for room, share in zip((most, most - summed), SCRATCH_SHARES, strict=True)
        )
        return Copied(max(of_input - weight.nbytes, summed + of_weights))
    blocked = _blocked_weight(weight)
    lower = weight.dim() > 3 and taken.shape[2] < weight.shape[2]
    if lower and not WIDE_VECTORS:  # than a kernel: a matrix product, for the weights
        return Copied(weight.element_size() * weight.nbytes + _columns(weight, given))
    # The gradient of what it takes in comes first, in a layout of its own; then the weights', from what it takes in.
    first = Copied(_blocked(taken) + blocked - taken.nbytes - weight.nbytes, _blocked(given))
    as_it_is = taken.shape[1] == COLOURS or (WIDE_VECTORS and 2 * taken.shape[1] <= ONEDNN_BLOCK)
    read = 0 if as_it_is else _blocked(taken)
    return max(Copied(blocked), first, Copied(read + blocked - weight.nbytes, _blocked(given)), key=sum)


def _is_cast_in_vain(taken: Tensor) -> bool:
    """To bf16, which not every CPU has: torch then multiplies matrices itself."""
    return taken.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _all_columns(taken: Tensor, weight: Tensor, image: Tensor, stride: list[int], padding: list[int]) -> int:
    """Of all samples at once; kernels of one point read what is there."""
    is_point = math.prod(weight.shape[2:]) == 1 and max(stride) == 1 and max(padding) == 0
    return 0 if is_point else len(taken) * _columns(weight, image)


def _native_columns(taken: Tensor, weight: Tensor, image: Tensor, stride: list[int]) -> int | None:
    """None where oneDNN is called."""
    if math.prod(weight.shape[2:]) == 1 and max(stride) == 1 and len(taken) <= NATIVE_POINTS:
        return 0
    wide = weight.dim() > 3 and min(weight.shape[2:]) > NATIVE_KERNEL
    return _columns(weight, image) if len(taken) == 1 and taken.numel() <= NATIVE_ELEMENTS and not wide else None


def _columns(weight: Tensor, image: Tensor) -> int:
    """What a sample's matrix product reads: a kernel's worth of numbers for every pixel."""
    return math.prod(weight.shape[1:]) * math.prod(image.shape[2:]) * weight.element_size()


def _blocked(tensor: Tensor) -> int:
    return tensor.nbytes // tensor.shape[1] * _rounded(tensor.shape[1])


def _blocked_weight(weight: Tensor) -> int:
    first, second = weight.shape[:2]
    return weight.nbytes // (first * second) * _rounded(first) * _rounded(second)


def _rounded(channels: int) -> int:
    return -(-channels // ONEDNN_BLOCK) * ONEDNN_BLOCK
