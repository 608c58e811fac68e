"""Operators of one training step: kernels, flops, bytes, and chains that a compiler fuses. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

Phase = Literal["forward", "backward", "update"]
Kind = Literal[
    "matmul",
    "conv",
    "attention",
    "recurrent",
    "elementwise",
    "normalization",
    "softmax",
    "reduction",
    "pooling",
    "embedding",
    "copy",
    "loss",
    "optimizer",
    "fused",
    "unknown",
]
Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]

MATRIX_KINDS = frozenset({"matmul", "conv", "attention", "recurrent"})
"""Kinds that are limited by arithmetic; all others are limited by memory bandwidth."""


@dataclass(frozen=True)
class Operator:
    """One operator call of a training step."""

    name: str
    """PyTorch name, such as `aten.mm`; a fused chain carries the name of its first operator."""
    kind: Kind
    phase: Phase
    precision: Precision
    flops: float
    bytes_read: float
    bytes_written: float
    kernels: float = 1.0
    """GPU kernels launched."""
    calls: float = 1.0
    """Calls that the host issues; views count as calls without kernels."""
    count: float = 1.0
    """Number of calls of this operator in the step."""
    shape: tuple[float, ...] = ()
    """Matrix product (batch, m, n, k) of matmul, conv, attention; (steps, rows, columns, k) of recurrent layers."""
    window: tuple[int, ...] = ()
    """Convolution kernel size, such as (3, 3)."""
    image: tuple[int, ...] = ()
    """Size of the convolution's output, such as (56, 56)."""
    stride: int = 1
    """Largest convolution stride."""
    role: Literal["", "input gradient", "weight gradient"] = ""
    """Gradient that a convolution or matrix product computes in backward; empty in forward."""
    channels_last: bool = False

    @property
    def bytes(self) -> float:
        return self.bytes_read + self.bytes_written


def merged(operators: Iterable[Operator]) -> list[Operator]:
    """Join equal operators: one record with the sum of their counts, in order of first appearance."""
    counts: dict[Operator, float] = {}
    for operator in operators:
        key = replace(operator, count=1.0)
        counts[key] = counts.get(key, 0.0) + operator.count
    return [replace(operator, count=count) for operator, count in counts.items()]


@dataclass(frozen=True)
class BatchLine:
    """Operators of one model, counted at two batches and interpolated linearly to others."""

    low_batch: int
    high_batch: int
    low: tuple[Operator, ...]
    high: tuple[Operator, ...]

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high) or self.low_batch >= self.high_batch:
            raise ValueError("a BatchLine needs the same operators at two increasing batches")

    def at(self, batch: float) -> list[Operator]:
        """Return the operators of one step at this batch."""
        weight = (batch - self.low_batch) / (self.high_batch - self.low_batch)

        def between(low: float, high: float) -> float:
            return low + (high - low) * weight

        return [
            replace(
                low,
                flops=between(low.flops, high.flops),
                bytes_read=between(low.bytes_read, high.bytes_read),
                bytes_written=between(low.bytes_written, high.bytes_written),
                kernels=between(low.kernels, high.kernels),
                calls=between(low.calls, high.calls),
                shape=tuple(map(between, low.shape, high.shape)),
            )
            for low, high in zip(self.low, self.high, strict=True)
        ]

    def merged(self) -> BatchLine:
        """Join operators that are equal at both batches."""
        pairs: dict[tuple[Operator, Operator], float] = {}
        for low, high in zip(self.low, self.high, strict=True):
            key = replace(low, count=1.0), replace(high, count=1.0)
            pairs[key] = pairs.get(key, 0.0) + low.count
        return BatchLine(
            self.low_batch,
            self.high_batch,
            tuple(replace(low, count=count) for (low, _), count in pairs.items()),
            tuple(replace(high, count=count) for (_, high), count in pairs.items()),
        )


FUSIBLE = frozenset({"elementwise", "normalization", "softmax", "reduction", "copy", "loss"})

Access = tuple[int, int]
"""Storage that an operator reads or writes, and the number of elements."""


@dataclass(frozen=True)
class Event:
    """One recorded operator and the storages that it reads and writes."""

    operator: Operator
    inputs: tuple[Access, ...] = ()
    outputs: tuple[Access, ...] = ()

    def with_more_calls(self, calls: float) -> Event:
        return replace(self, operator=replace(self.operator, calls=self.operator.calls + calls))


def fused_chains(events: Sequence[Event]) -> list[list[int]]:
    """Return the positions of the events of every chain, in the order of execution.

    A fusible operator joins the chain that wrote one of its inputs, when both work on the same number of elements in
    the same phase, and nothing that cannot be fused comes between them.
    """
    chains: list[list[int]] = []
    chain_of: list[int] = []
    writer: dict[int, int] = {}
    for number, event in enumerate(events):
        producers = [writer[storage] for storage, _ in event.inputs if storage in writer]
        joined = next((chain_of[producer] for producer in reversed(producers) if _joins(events[producer], event)), None)
        if joined is not None and any(
            chain_of[producer] != joined
            and producer > chains[joined][0]
            and events[producer].operator.kind not in FUSIBLE
            for producer in producers
        ):
            joined = None
        if joined is None:
            chains.append([])
            joined = len(chains) - 1
        chains[joined].append(number)
        chain_of.append(joined)
        for storage, _ in event.outputs:
            writer[storage] = number
    return sorted(chains, key=lambda chain: chain[-1])


def fused_operators(events: Sequence[Event], chains: Sequence[Sequence[int]]) -> list[Operator]:
    """Return one operator per chain: it reads every input once and writes only what later events read."""
    readers: dict[int, set[int]] = {}
    for chain, numbers in enumerate(chains):
        for number in numbers:
            for storage, _ in events[number].inputs:
                readers.setdefault(storage, set()).add(chain)
    return [
        _fused([events[number] for number in numbers], chain, readers)
        if len(numbers) > 1
        else events[numbers[0]].operator
        for chain, numbers in enumerate(chains)
    ]


def _joins(producer: Event, event: Event) -> bool:
    return (
        producer.operator.kind in FUSIBLE
        and event.operator.kind in FUSIBLE
        and producer.operator.phase == event.operator.phase
        and _elements(producer) == _elements(event)
    )


def _elements(event: Event) -> int:
    return max((elements for _, elements in (*event.inputs, *event.outputs)), default=0)


def _fused(members: Sequence[Event], chain: int, readers: dict[int, set[int]]) -> Operator:
    first = members[0].operator
    if len(members) == 1:
        return first
    written = {storage for event in members for storage, _ in event.outputs}
    read: dict[int, float] = {}
    wrote: dict[int, float] = {}
    for event in members:
        sizes_in = dict(event.inputs)
        total = sum(sizes_in.values()) or 1
        for storage, elements in sizes_in.items():
            if storage not in written:
                read[storage] = max(read.get(storage, 0.0), event.operator.bytes_read * elements / total)
        sizes_out = dict(event.outputs)
        total = sum(sizes_out.values()) or 1
        for storage, elements in sizes_out.items():
            if readers.get(storage, set()) - {chain} or event is members[-1]:
                wrote[storage] = max(wrote.get(storage, 0.0), event.operator.bytes_written * elements / total)
    return replace(
        first,
        kind="fused",
        flops=sum(event.operator.flops for event in members),
        bytes_read=sum(read.values()),
        bytes_written=sum(wrote.values()),
        kernels=max(event.operator.kernels for event in members),
        calls=1.0,
    )


def in_pure_half(operators: Iterable[Operator], precision: Literal["bf16", "fp16"]) -> list[Operator]:
    """Return the operators of a model that was converted to 16 bits (`model.half()`): half the bytes everywhere."""
    return [
        replace(
            operator, precision=precision, bytes_read=operator.bytes_read / 2, bytes_written=operator.bytes_written / 2
        )
        if operator.precision in ("fp32", "tf32")
        else operator
        for operator in operators
    ]


def in_tf32(operators: Iterable[Operator]) -> list[Operator]:
    """Return the operators with fp32 matrix products computed in TF32."""
    return [
        replace(operator, precision="tf32")
        if operator.kind in MATRIX_KINDS and operator.precision == "fp32"
        else operator
        for operator in operators
    ]


def totals(operators: Iterable[Operator]) -> dict[str, float]:
    """Sums over one step: flops, bytes, kernels and calls."""
    sums = {"flops": 0.0, "bytes": 0.0, "kernels": 0.0, "calls": 0.0}
    for operator in operators:
        for key in sums:
            sums[key] += operator.count * float(getattr(operator, key))
    return sums


def unknown_operators(operators: Iterable[Operator]) -> list[str]:
    """Names of the operators that are counted by bytes because no rule describes them, sorted."""
    return sorted({operator.name for operator in operators if operator.kind == "unknown"})


def unknown_bytes_share(operators: Sequence[Operator]) -> float:
    """Share of all bytes that unknown operators move, from 0 to 1."""
    total = sum(operator.count * operator.bytes for operator in operators)
    unknown = sum(operator.count * operator.bytes for operator in operators if operator.kind == "unknown")
    return unknown / total if total else 0.0


def to_row(operator: Operator) -> dict[str, Any]:
    """Return the fields that differ from their defaults, for a JSON file."""
    defaults = {field.name: field.default for field in fields(Operator)}
    return {key: value for key, value in asdict(operator).items() if value != defaults[key]}


def from_row(row: dict[str, Any]) -> Operator:
    """Return the operator that `to_row` has written."""
    tuples: dict[str, Any] = {key: tuple(row[key]) for key in ("shape", "window", "image") if key in row}
    return Operator(**{**row, **tuples})
