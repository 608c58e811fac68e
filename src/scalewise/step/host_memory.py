"""Memory of the host that all ranks of one machine see, and that its GPUs can copy from and to."""

from __future__ import annotations

import math
import mmap
import os
import weakref

import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from scalewise.errors import RunFailed


def shared_zeros(shape: tuple[int, ...], dtype: torch.dtype, rank: int, world: int) -> Tensor:
    """The same zeros on every rank; all ranks ask for them in the same order.

    Not a file: it has no name that a killed run could leave behind, and /dev/shm, small in containers, is no bound.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes == 0:
        return torch.zeros(shape, dtype=dtype)
    if rank == 0:
        free = psutil.virtual_memory().available
        if nbytes > free:
            raise RunFailed(
                f"central-storage needs {nbytes / 1e9:.2f} GB more of host memory, {free / 1e9:.2f} are free"
            )
        descriptor = os.memfd_create("scalewise", os.MFD_CLOEXEC)
        os.posix_fallocate(descriptor, 0, nbytes)  # all of it now: what is only promised may be missing later
        _tell(f"/proc/{os.getpid()}/fd/{descriptor}", world)
    else:
        descriptor = os.open(_hear(), os.O_RDWR | os.O_CLOEXEC)
    memory = mmap.mmap(descriptor, nbytes)
    if world > 1:
        dist.barrier()  # until then the others open the first rank's descriptor
    os.close(descriptor)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def pin(tensor: Tensor) -> None:
    """Let the GPU copy from and to it by itself, as long as the tensor lives."""
    if tensor.numel() == 0:
        return
    address, nbytes = tensor.data_ptr(), tensor.nbytes
    cuda = torch.cuda.cudart()
    code = int(cuda.cudaHostRegister(address, nbytes, 0))
    if code:
        raise RunFailed(f"CUDA could not pin {nbytes / 1e9:.2f} GB of host memory for central-storage (error {code})")
    weakref.finalize(tensor, cuda.cudaHostUnregister, address).atexit = False


def _tell(path: str, world: int) -> None:
    if world > 1:
        dist.broadcast_object_list([path])


def _hear() -> str:
    told: list[str | None] = [None]
    dist.broadcast_object_list(told)
    assert told[0] is not None
    return told[0]
