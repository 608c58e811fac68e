"""fp32, tf32 or bf16: what the matrix units compute in; weights and updates stay float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from scalewise.errors import UserError
from scalewise.step.settings import Precision


def set_precision(precision: Precision, device: torch.device) -> None:
    """Torch lets cuDNN round to tf32 unless told; fp32 here means fp32."""
    if precision == "tf32" and device.type != "cuda":
        raise UserError("--precision tf32 needs a CUDA device; valid on the CPU: fp32, bf16")
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """What forward and loss run under."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
