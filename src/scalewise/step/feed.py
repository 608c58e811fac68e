"""Where a rank's samples come from, batch by batch: resident on the device, or streamed past it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from scalewise.data.data import Data
from scalewise.errors import UserError
from scalewise.prediction.memory import OPTIMIZER_COPIES
from scalewise.results.units import bytes_text
from scalewise.spec import parse_spec, unknown
from scalewise.step.flat import trainable
from scalewise.step.lifeline import end_with_owner
from scalewise.step.room import free_bytes

LOADS = {
    "auto": "resident on the device if it fits there beside the model, else streamed",
    "device": "all data lives on the device; one gather per batch",
    "stream": "a DataLoader with pinned memory and prefetch: stream:workers=4",
    "files": "every sample read and decoded from its file, each epoch, as the study did: files:workers=0",
}
ROOM = 0.5
"""The part of the memory that a device has left beside the model's states which data may take; the rest is for what the
model computes."""

Batch = tuple[Tensor, Tensor]


class Feed(Protocol):
    """Gives (inputs, targets) on the device for each list of rows it is told beforehand."""

    @property
    def kind(self) -> str: ...

    @property
    def why(self) -> str:
        """A sentence, where samples stay on the host because the device has no room for them."""
        ...

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
    why: str = ""

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
    why: str = ""

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


def read_load(load: str) -> tuple[str, int]:
    """The way to load and its number of workers; a UserError where there is no such way, whatever the data."""
    spec = parse_spec(load)
    if spec.name not in LOADS:
        raise unknown("way to load", spec.name, LOADS)
    if spec.name in ("stream", "files"):
        return spec.name, _workers(spec.options, load)
    if spec.options:
        raise UserError(f"--load {spec.name} takes no options, got '{load}'")
    return spec.name, 0


def make_feed(data: Data, load: str, device: torch.device, beside_bytes: int = 0) -> Feed:
    """`load` as the user wrote it: 'auto', 'device', 'stream:workers=4', 'files'.

    `beside_bytes`: what the model is going to keep on the device, of which nothing is there yet.
    """
    name, workers = read_load(load)
    if name == "files":
        if data.items is None:
            raise UserError(f"--load files needs samples that lie in files; these do not ({data.source})")
        return Streamed(data.items, device, workers, "files")
    why = ""
    if name == "auto" and data.tensors is not None and device.type == "cuda":  # a CPU has them already
        why = why_not_resident(sum(tensor.nbytes for tensor in data.tensors), free_bytes(device), beside_bytes)
    if name == "device" or (name == "auto" and data.tensors is not None and not why):
        inputs, targets = whole(data)
        return Resident(inputs.to(device), targets.to(device))
    samples: Any = data.items if data.tensors is None else TensorDataset(*data.tensors)
    return Streamed(samples, device, workers, "stream", why)


def why_not_resident(data_bytes: int, free_bytes: int, beside_bytes: int) -> str:
    """Why samples cannot live on the device, as a sentence; empty if they can."""
    left = max(0, free_bytes - beside_bytes)
    if data_bytes <= ROOM * left:
        return ""
    beside = f" beside {bytes_text(beside_bytes)} of weights and states" if beside_bytes else ""
    return (
        f"samples stay in host memory and are streamed: {bytes_text(data_bytes)} of them are more than half of the "
        f"{bytes_text(left)} that the device has left{beside} (--load device puts them there all the same)"
    )


def kept_bytes(model: nn.Module, optimizer: str | None) -> int:
    """Of a model that is whole on the device: weights, gradients and states; no states where others update."""
    trained = sum(parameter.nbytes for parameter in trainable(model))
    weights = sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))
    return weights + trained * (1 + (OPTIMIZER_COPIES.get(optimizer, 0) if optimizer else 0))


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


def _workers(options: Any, load: str) -> int:
    for key in options:
        if key != "workers":
            raise unknown(f"option of --load {load.partition(':')[0]}", key, ["workers"])
    text = options.get("workers", "0")
    if not text.isdecimal():
        raise UserError(f"--load {load}: workers is '{text}'; it must be a whole number from 0")
    return int(text)
