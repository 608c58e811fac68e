"""What cuDNN takes beside tensors, asked of a real GPU."""

from __future__ import annotations

import pytest
import torch

from scalewise.workloads.gpu_memory import SEGMENT_BYTES, CudnnWorkspaces

CONVOLUTION = torch.ops.aten.convolution.default
LAYER = "encoder.0"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cudnn_makes_do_with_the_room_there_is() -> None:
    """Asked with all there is first, in the same process: what it chose then is not what counts."""
    device = torch.device("cuda")
    taken, weight = torch.empty(8, 256, 128, 128, device="meta"), torch.empty(256, 256, 3, 3, device="meta")
    args = (taken, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    free = CudnnWorkspaces(device, {}, {}).copied_by(CONVOLUTION, args, LAYER)
    assert free.of_taken > 64 * 2**20
    allowed = torch.cuda.get_per_process_memory_fraction(0)
    for room in (free.of_taken // 2, 0):
        tight = CudnnWorkspaces(device, {}, {(LAYER, "forward"): room}).copied_by(CONVOLUTION, args, LAYER)
        assert tight.of_taken <= room + SEGMENT_BYTES
    assert torch.cuda.get_per_process_memory_fraction(0) == allowed
