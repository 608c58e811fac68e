"""Recognize the errors of torch and gloo by their text."""

from __future__ import annotations

import torch
from torch.distributed import DistStoreError

# Contained in communication errors, which are plain RuntimeErrors (also when DDP passes on the error of a hook).
_LIBRARY_WORDS = ("gloo", "nccl", "processgroup", "tcpstore", "scalewise ring", "scalewise store")
_TIMEOUT_WORDS = ("timed out", "timeout")
_LOST_WORDS = (
    "connection closed",
    "connection reset",
    "broken pipe",
    "connection refused",
    "remote process exited",
    "pair is not connected",
)
_MEMORY_WORDS = ("defaultcpuallocator: can't allocate memory", "not enough memory")
_STAGE_WORDS = ("failed to run forward:", "failed to run stage backward")
_CAST = ("Unable to cast ", " to Tensor")


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or _mentions(error, _MEMORY_WORDS)


def mentions_timeout(error: BaseException) -> bool:
    """Return whether an error of gloo or a store is a timeout."""
    return _mentions(error, _TIMEOUT_WORDS)


def mentions_lost_connection(error: BaseException) -> bool:
    """Return whether an error of gloo or a store is a lost connection."""
    return _mentions(error, _LOST_WORDS)


def is_communication_error(error: BaseException) -> bool:
    return isinstance(error, DistStoreError) or (isinstance(error, RuntimeError) and _mentions(error, _LIBRARY_WORDS))


def is_stage_error(error: BaseException) -> bool:
    """Return whether torch's pipeline raised the error because a stage failed; its cause is the error of the stage."""
    return _mentions(error, _STAGE_WORDS)


def short_message(error: BaseException) -> str:
    """Return the first line of the message, without torch's advice on its allocator."""
    message = _without_cast(str(error).strip().partition("\n")[0])
    first, _, rest = message.partition(". Tried to allocate ")
    if rest:
        return f"{first}, tried to allocate {rest.partition('. ')[0]}"
    _, _, size = message.partition("you tried to allocate ")
    if not size:
        return message
    megabytes = int(size.split()[0]) / 1e6
    return f"tried to allocate {f'{megabytes:,.0f}' if megabytes >= 100 else f'{megabytes:.3g}'} MB more"


def _without_cast(message: str) -> str:
    """Remove the text that DDP adds when it fails to convert the exception of a hook to a tensor."""
    start, end = _CAST
    is_cast = message.startswith(start) and message.endswith(end)
    return message[len(start) : -len(end)] if is_cast else message


def _mentions(error: BaseException, words: tuple[str, ...]) -> bool:
    text = str(error).lower()
    return any(word in text for word in words)
