"""Exchange values between ranks as data.

`torch.distributed.all_gather_object` unpickles what it receives, which can run any code of whoever sent it. These
functions send JSON, and build only basic types, tensors and dataclasses of Scalewise from it.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path, PosixPath
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_TYPE, _CONTENT = "type", "content"
_MOST_BYTES = 2**30
"""Largest value of a rank."""


def all_gather_values(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Return the values of all ranks of the group, in rank order."""
    encoded = to_bytes(value)
    device = _device(group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(encoded)], device=device), group=group)
    counts = [int(size) for size in sizes]
    if max(counts) > _MOST_BYTES:
        raise ValueError(f"a rank sends {max(counts):,} bytes; the largest value has {_MOST_BYTES:,}")
    padded = torch.zeros(max(counts), dtype=torch.uint8, device=device)
    padded[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8).to(device)
    received = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(received, padded, group=group)
    return [from_bytes(data[:count].cpu().numpy().tobytes()) for data, count in zip(received, counts, strict=True)]


def broadcast_value(value: Any, source: int, group: dist.ProcessGroup | None = None) -> Any:
    """Return the value of the rank `source` on every rank of the group."""
    device = _device(group)
    is_source = dist.get_rank() == source
    encoded = to_bytes(value) if is_source else b""
    size = torch.tensor([len(encoded)], device=device)
    dist.broadcast(size, source, group=group)
    if not 0 < int(size) <= _MOST_BYTES:
        raise ValueError(f"rank {source} sends {int(size):,} bytes; valid: 1 to {_MOST_BYTES:,}")
    data = (
        torch.frombuffer(bytearray(encoded), dtype=torch.uint8).to(device)
        if is_source
        else torch.empty(int(size), dtype=torch.uint8, device=device)
    )
    dist.broadcast(data, source, group=group)
    return from_bytes(data.cpu().numpy().tobytes())


def _device(group: dist.ProcessGroup | None) -> torch.device:
    on_gpu = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def to_bytes(value: Any) -> bytes:
    return json.dumps(_encoded(value)).encode()


def from_bytes(data: bytes) -> Any:
    return _decoded(json.loads(data))


def _encoded(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return _typed("array", [_encoded(value.dtype), list(value.shape), base64.b64encode(flat).decode()])
    if isinstance(value, torch.dtype):
        return _typed("dtype", str(value).removeprefix("torch."))
    if isinstance(value, bytes):
        return _typed("bytes", base64.b64encode(value).decode())
    if isinstance(value, Path):
        return _typed("path", str(value))
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    if isinstance(value, tuple):
        return _typed("tuple", [_encoded(item) for item in value])
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, Counter) else "dict"
        return _typed(kind, [[_encoded(key), _encoded(item)] for key, item in value.items()])
    if is_dataclass(value) and not isinstance(value, type) and type(value).__module__.startswith("scalewise."):
        content = {field.name: _encoded(getattr(value, field.name)) for field in fields(value)}
        return _typed(f"{type(value).__module__}:{type(value).__qualname__}", content)
    raise TypeError(f"a {type(value).__name__} cannot be sent to other ranks as data")


def _typed(kind: str, content: Any) -> dict[str, Any]:
    return {_TYPE: kind, _CONTENT: content}


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, content = value[_TYPE], value[_CONTENT]
    if kind == "array":
        dtype, shape, data = content
        flat = torch.frombuffer(bytearray(base64.b64decode(data)) or bytearray(1), dtype=torch.uint8)
        empty = not data
        return torch.empty(shape, dtype=_decoded(dtype)) if empty else flat.view(_decoded(dtype)).reshape(shape)
    if kind == "dtype":
        dtype = getattr(torch, content)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"torch.{content} is not a dtype")
        return dtype
    if kind == "bytes":
        return base64.b64decode(content)
    if kind == "path":
        return PosixPath(content)
    if kind == "tuple":
        return tuple(_decoded(item) for item in content)
    if kind in ("dict", "counter"):
        entries = {_decoded(key): _decoded(item) for key, item in content}
        return Counter(entries) if kind == "counter" else entries
    return _dataclass(kind, {name: _decoded(item) for name, item in content.items()})


def _dataclass(kind: str, content: dict[str, Any]) -> Any:
    """Build a dataclass of Scalewise from its fields, without calling any of its code."""
    module, _, name = kind.partition(":")
    if not module.startswith("scalewise."):
        raise ValueError(f"'{kind}' is not a type of Scalewise")
    cls = getattr(import_module(module), name)
    if not (isinstance(cls, type) and is_dataclass(cls) and cls.__module__ == module):
        raise ValueError(f"'{kind}' is not a type of Scalewise")
    instance = object.__new__(cls)
    for field in fields(cls):
        object.__setattr__(instance, field.name, content[field.name])
    return instance
