"""Whether two ways to compute something give the same numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def largest_difference(found: Tensor, expected: Tensor) -> str:
    """In words, where it is more than rounding; else nothing. Half the digits of a type may be lost to rounding."""
    if found.shape != expected.shape:
        return f"{_shape(found)} instead of {_shape(expected)}"
    if not expected.numel():
        return ""
    if not expected.is_floating_point():
        return "" if torch.equal(found, expected) else "other whole numbers"
    same = (found == expected) | (found.isnan() & expected.isnan())
    if same.all():
        return ""
    largest = float((found.double() - expected.double()).abs()[~same].max())
    size = float(expected.double().abs().nan_to_num(0.0).max())
    if largest <= math.sqrt(torch.finfo(expected.dtype).eps) * max(size, torch.finfo(expected.dtype).tiny):
        return ""
    return f"largest difference {largest:.3g}, where the largest value is {size:.3g}"


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"
