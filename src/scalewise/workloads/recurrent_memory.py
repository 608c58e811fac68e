"""What oneDNN keeps for the backward of an LSTM on the CPU, and takes while it runs; as torch 2.11 to 2.13 have it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from scalewise.workloads.convolution_memory import Copied

_aten = torch.ops.aten
FORWARD, BACKWARD = _aten.mkldnn_rnn_layer.default, _aten.mkldnn_rnn_layer_backward.default
GATES = 4
PAGE_BYTES = 4096
LINE, CONFLICTING = 16, 256
"""Numbers to which rows are filled up, and a multiple that is avoided, because such rows share places in the cache."""


def with_workspace(function: Any, args: Any, result: Any) -> Any:
    """The result with a workspace of its real size, of which torch knows nothing without numbers."""
    if function is not FORWARD:
        return result
    taken, _, recurrent = args[:3]
    outputs, hidden, cell, workspace = result
    size = _workspace_bytes(*_sizes(outputs), taken.shape[-1], recurrent.shape[-1], taken.element_size())
    return outputs, hidden, cell, torch.empty(size, dtype=torch.uint8, device=workspace.device)


def copied_by_recurrent(function: Any, args: Any, result: Any) -> Copied:
    """By either of the two functions: weights in a layout of its own, and all gates once more."""
    weights, recurrent = args[1:3]
    outputs = result[0] if function is FORWARD else args[7]
    steps, samples = _sizes(outputs)
    gates = steps * samples * _filled(GATES * recurrent.shape[-1]) * outputs.element_size()
    return Copied(weights.nbytes + recurrent.nbytes + gates)


def _sizes(outputs: Tensor) -> tuple[int, int]:
    """Steps and samples: torch gives oneDNN the steps first."""
    return outputs.shape[0], outputs.shape[1]


def _workspace_bytes(steps: int, samples: int, taken: int, hidden: int, element_bytes: int) -> int:
    """The gates of every step, states of both sides and their gradients, cells and theirs, one on whole pages each."""
    row = samples * element_bytes
    both_sides = 2 * (steps + 1) * row
    return (
        _paged(steps * row * _filled(GATES * hidden))
        + 3 * _paged(both_sides * _filled(max(taken, hidden)))
        + 2 * _paged(both_sides * hidden)
        + _paged(steps * row * _filled(hidden))
    )


def _filled(numbers: int) -> int:
    filled = -(-numbers // LINE) * LINE
    return filled + LINE if filled % CONFLICTING == 0 else filled


def _paged(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
