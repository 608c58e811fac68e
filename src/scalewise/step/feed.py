"""Where a rank's samples come from, batch by batch: resident on the device, or streamed past it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import psutil
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from scalewise.data.data import Data
from scalewise.errors import UserError
from scalewise.spec import parse_spec, unknown
from scalewise.step.lifeline import end_with_owner

LOADS = {
    "auto": "resident on the device if it fits, else streamed",
    "device": "all data lives on the device; one gather per batch",
    "stream": "a DataLoader with pinned memory and prefetch: stream:workers=4",
    "files": "every sample read and decoded from its file, each epoch, as the study did: files:workers=0",
}
ROOM = 0.5
"""The part of a device's free memory that data may take; the rest is for the model."""

Batch = tuple[Tensor, Tensor]


class Feed(Protocol):
    """Gives (inputs, targets) on the device for each list of rows it is told beforehand."""

    @property
    def kind(self) -> str: ...

    def batches(self, rows: list[Tensor]) -> Iterator[Batch]: ...

    def as_asked(self, rows: Iterator[Tensor]) -> Iterator[Batch]:
        """Rows are asked for when they are to be loaded: loaders ask for one batch each, ahead of the one at work."""
        ...


@dataclass(frozen=True)
class Resident:
    """All samples on the device."""

    inputs: Tensor
    targets: Tensor
    kind: str = "device"

    def batches(self, rows: list[Tensor]) -> Iterator[Batch]:
        """One gather per batch; the epoch's row numbers travel to the device once."""
        if not rows:
            return
        on_device = torch.cat(rows).to(self.inputs.device, non_blocking=True)
        for chosen in on_device.split([len(batch) for batch in rows]):
            yield self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen)

    def as_asked(self, rows: Iterator[Tensor]) -> Iterator[Batch]:
        for batch in rows:
            yield from self.batches([batch])


@dataclass(frozen=True)
class Streamed:
    """Samples fetched by a DataLoader while the device works on the batch before."""

    dataset: Dataset[Any]
    device: torch.device
    workers: int
    kind: str

    def batches(self, rows: list[Tensor]) -> Iterator[Batch]:
        return self._loaded([batch.tolist() for batch in rows], ahead=2)

    def as_asked(self, rows: Iterator[Tensor]) -> Iterator[Batch]:
        return self._loaded((batch.tolist() for batch in rows), ahead=1)

    def _loaded(self, rows: Iterable[list[int]], ahead: int) -> Iterator[Batch]:
        """Pinned memory and asynchronous copies where there is a GPU; one batch is copied ahead."""
        on_gpu = self.device.type == "cuda"
        loader = DataLoader(
            self.dataset,
            batch_sampler=rows,
            num_workers=self.workers,
            pin_memory=on_gpu,
            prefetch_factor=ahead if self.workers else None,
            worker_init_fn=_settle_in,
            generator=torch.Generator(),  # else it draws from the one that dropout uses, and a resumed run differs
        )
        if not on_gpu:
            yield from map(tuple, loader)
            return
        side = torch.cuda.Stream(self.device)
        copied_ahead: Batch | None = None
        for inputs, targets in loader:
            with torch.cuda.stream(side):
                copied = inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)
            if copied_ahead is not None:
                yield copied_ahead
            torch.cuda.current_stream(self.device).wait_stream(side)
            for tensor in copied:
                tensor.record_stream(torch.cuda.current_stream(self.device))
            copied_ahead = copied
        if copied_ahead is not None:
            yield copied_ahead


def make_feed(data: Data, load: str, device: torch.device) -> Feed:
    """`load` as the user wrote it: 'auto', 'device', 'stream:workers=4', 'files'."""
    spec = parse_spec(load)
    if spec.name not in LOADS:
        raise unknown("way to load", spec.name, LOADS)
    workers = _workers(spec.options, load) if spec.name in ("stream", "files") else 0
    if spec.options and spec.name in ("auto", "device"):
        raise UserError(f"--load {spec.name} takes no options, got '{load}'")
    if spec.name == "files":
        if data.items is None:
            raise UserError(f"--load files needs samples that lie in files; these do not ({data.source})")
        return Streamed(data.items, device, workers, "files")
    if spec.name == "device" or (spec.name == "auto" and _fits(data, device)):
        inputs, targets = whole(data)
        return Resident(inputs.to(device), targets.to(device))
    return Streamed(data.items if data.tensors is None else TensorDataset(*data.tensors), device, workers, "stream")  # type: ignore[arg-type]


def whole(data: Data) -> Batch:
    """All samples as two tensors, decoding them if need be."""
    if data.tensors is not None:
        return data.tensors
    samples = [data.items[number] for number in range(len(data))]  # type: ignore[index]
    return torch.stack([sample[0] for sample in samples]), torch.stack(
        [torch.as_tensor(sample[1]) for sample in samples]
    )


def _settle_in(_loader: int) -> None:
    """torch's own loaders only watch their parent: on a rank that is a forkserver, which they would keep alive."""
    end_with_owner()


def _fits(data: Data, device: torch.device) -> bool:
    if data.tensors is None:
        return False
    needed = sum(tensor.nbytes for tensor in data.tensors)
    if device.type == "cuda":
        return needed < ROOM * torch.cuda.mem_get_info(device)[0]
    return needed < ROOM * psutil.virtual_memory().available


def _workers(options: Any, load: str) -> int:
    for key in options:
        if key != "workers":
            raise unknown(f"option of --load {load.partition(':')[0]}", key, ["workers"])
    text = options.get("workers", "0")
    if not text.isdecimal():
        raise UserError(f"--load {load}: workers is '{text}'; it must be a whole number from 0")
    return int(text)
