"""Feed batches to a rank: resident on the device or streamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from scalewise.core.errors import UserError
from scalewise.core.training_options import read_load
from scalewise.core.units import bytes_text
from scalewise.data.dataset import Data
from scalewise.models.parameters import trainable
from scalewise.predict.memory import OPTIMIZER_COPIES
from scalewise.runtime.device_memory import free_bytes
from scalewise.runtime.process_settings import end_with_owner
from scalewise.strategies.plan import split

MAX_DATA_FRACTION = 0.5
"""Fraction of the free device memory, after weights and optimizer states, that samples may use."""

Batch = tuple[Tensor, Tensor]


class Feed(Protocol):
    """Provides batches (inputs, targets) on the device, given the row numbers of each batch."""

    @property
    def kind(self) -> str: ...

    @property
    def why(self) -> str:
        """Sentence that explains why samples do not fit on the device; empty otherwise."""
        ...

    def batches(self, rows: list[Tensor]) -> Iterator[Batch]:
        """Yield one batch for each element of `rows`."""
        ...

    def as_asked(self, rows: Iterator[Tensor]) -> Iterator[Batch]:
        """Yield batches like `batches`, but take rows only when they are loaded: one batch ahead per loader process."""
        ...


@dataclass(frozen=True)
class Resident:
    """All samples on the device."""

    inputs: Tensor
    targets: Tensor
    kind: str = "device"
    why: str = ""

    def batches(self, rows: list[Tensor]) -> Iterator[Batch]:
        """Yield batches with one gather each; the row numbers of the epoch are copied to the device once."""
        if not rows:
            return
        on_device = torch.cat(rows).to(self.inputs.device, non_blocking=True)
        for batch_rows in on_device.split([len(batch) for batch in rows]):
            yield self.inputs.index_select(0, batch_rows), self.targets.index_select(0, batch_rows)

    def as_asked(self, rows: Iterator[Tensor]) -> Iterator[Batch]:
        for batch in rows:
            yield from self.batches([batch])


@dataclass(frozen=True)
class Streamed:
    """Samples loaded by a DataLoader while the device computes the previous batch."""

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
        """Load batches; on a GPU, copy the next batch from pinned memory while the current one is computed."""
        on_gpu = self.device.type == "cuda"
        loader = DataLoader(
            self.dataset,
            batch_sampler=rows,
            num_workers=self.workers,
            pin_memory=on_gpu,
            prefetch_factor=ahead if self.workers else None,
            worker_init_fn=_end_with_rank,
            generator=torch.Generator(),  # not the generator of dropout, whose numbers must not change on a resume
        )
        if not on_gpu:
            yield from map(tuple, loader)
            return
        copy_stream = torch.cuda.Stream(self.device)
        copied_ahead: Batch | None = None
        for inputs, targets in loader:
            with torch.cuda.stream(copy_stream):
                copied = inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)
            if copied_ahead is not None:
                yield copied_ahead
            torch.cuda.current_stream(self.device).wait_stream(copy_stream)
            for tensor in copied:
                tensor.record_stream(torch.cuda.current_stream(self.device))
            copied_ahead = copied
        if copied_ahead is not None:
            yield copied_ahead


def make_feed(data: Data, load: str, device: torch.device, beside_bytes: int = 0) -> Feed:
    """Create a feed for a `--load` option: 'auto', 'device', 'stream:workers=4' or 'files'.

    `beside_bytes`: bytes that the model will keep on the device but has not allocated yet.
    """
    name, workers = read_load(load)
    if name == "files":
        if data.items is None:
            raise UserError(f"--load files needs samples stored in files; these are not ({data.source})")
        return Streamed(data.items, device, workers, "files")
    why = ""
    if (
        name == "auto" and data.tensors is not None and device.type == "cuda"
    ):  # on a CPU the samples are already in device memory
        why = why_not_resident(sum(tensor.nbytes for tensor in data.tensors), free_bytes(device), beside_bytes)
    if name == "device" or (name == "auto" and data.tensors is not None and not why):
        inputs, targets = whole(data)
        return Resident(inputs.to(device), targets.to(device))
    samples: Any = data.items if data.tensors is None else TensorDataset(*data.tensors)
    return Streamed(samples, device, workers, "stream", why)


def why_not_resident(data_bytes: int, free_bytes: int, beside_bytes: int) -> str:
    """Explain in a sentence why samples do not fit on the device; empty if they do."""
    left = max(0, free_bytes - beside_bytes)
    if data_bytes <= MAX_DATA_FRACTION * left:
        return ""
    beside = f" next to {bytes_text(beside_bytes)} of weights and optimizer states" if beside_bytes else ""
    return (
        f"samples are streamed from host memory: their {bytes_text(data_bytes)} exceed half of the "
        f"{bytes_text(left)} free on the device{beside} (--load device keeps them on the device anyway)"
    )


def kept_bytes(model: nn.Module, optimizer: str | None) -> int:
    """Bytes of weights, gradients and optimizer states of a model on one device; no states without an optimizer."""
    trained = sum(parameter.nbytes for parameter in trainable(model))
    weights = sum(tensor.nbytes for tensor in chain(model.parameters(), model.buffers()))
    return weights + trained * (1 + (OPTIMIZER_COPIES.get(optimizer, 0) if optimizer else 0))


def whole(data: Data) -> Batch:
    """Return all samples as two tensors; decodes samples that are stored in files."""
    if data.tensors is not None:
        return data.tensors
    samples = [data.items[number] for number in range(len(data))]  # type: ignore[index]
    return torch.stack([sample[0] for sample in samples]), torch.stack(
        [torch.as_tensor(sample[1]) for sample in samples]
    )


def _end_with_rank(_loader: int) -> None:
    """End this loader process with its rank: torch's check watches the parent, which is a forkserver on a rank."""
    end_with_owner()


def epoch_order(seed: int, epoch: int, samples: int) -> Tensor:
    """Return the shuffled sample numbers of an epoch, equal for every rank, strategy and resumed run."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(samples, generator=generator)


@dataclass(frozen=True)
class Shard:
    """Samples that one rank computes at once, and their weight in the global batch."""

    rows: Tensor
    weight: float
    """Samples of the shard / samples of the global batch: weight of the shard's mean loss in the loss of the batch."""


def shards_of(rows: Tensor, parts: int, part: int, accumulate: int = 1) -> list[Shard]:
    """Return a rank's share of one global batch, split into `accumulate` shards.

    A rank without samples must still take part in collectives, so it gets the first sample with weight zero.
    """
    share = rows[split(len(rows), parts, part)]
    pieces = [share[split(len(share), accumulate, piece)] for piece in range(min(accumulate, max(len(share), 1)))]
    return [Shard(piece, len(piece) / len(rows)) if len(piece) else Shard(rows[:1], 0.0) for piece in pieces]
