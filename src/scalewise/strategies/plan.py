"""Plan of one training step: operations, their dependencies, and the bytes sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal

from scalewise.hardware.collectives import Collective
from scalewise.hardware.transfers import Send, busiest_bytes, total_bytes


def split(count: int, parts: int, part: int) -> slice:
    """Slice of part number `part` when `count` items are split into `parts` runs whose sizes differ by at most one.

    The slice is empty if there are fewer items than parts.
    """
    size, longer = divmod(count, parts)
    start = part * size + min(part, longer)
    return slice(start, start + size + (part < longer))


def share_sizes(count: int, parts: int) -> list[int]:
    """Sizes of the parts of `split`: 7 samples on 3 devices -> [3, 2, 2]."""
    slices = [split(count, parts, part) for part in range(parts)]
    return [part.stop - part.start for part in slices]


def alike_shares(count: int, parts: int) -> list[tuple[int, int, int]]:
    """Group equal shares as (first part, number of parts, samples of each): 7 samples on 3 devices -> [(0, 1, 3),
    (1, 2, 2)]."""
    size, longer = divmod(count, parts)
    return [group for group in ((0, longer, size + 1), (longer, parts - longer, size)) if group[1]]


@dataclass(frozen=True)
class SplittableLayer:
    """A linear or convolutional layer that can be split by columns (output features) or rows (input features)."""

    name: str
    role: Literal["columns", "rows", ""]
    """Split that the model declares, empty: none. The output of a layer split by columns stays split until a layer
    split by rows reads it."""
    group: str
    """Name of the group of layers that is split together."""
    columns: int
    """Number of output features."""
    rows: int
    """Number of input features."""
    unit: int = 1
    """Number of columns or rows that must stay on one device (the head width)."""
    source: int = 0
    """Number of the input tensor; layers with the same number read the same tensor."""
    input_bytes: int = 0
    """Input bytes per sample."""
    output_bytes: int = 0
    """Output bytes per sample."""
    input_learns: bool = True
    """Backward computes the gradient of the input, which is not needed for the data itself."""
    flops: int = 0
    """Flops of forward per sample."""


@dataclass(frozen=True)
class Section:
    """Smallest part of a model that can be a stage. Sections are in the order of forward.

    Flops, and bytes of activations, are per sample.
    """

    name: str
    flops: int
    """Flops of forward."""
    parameter_bytes: int
    kept_bytes: int
    """Bytes of activations kept for backward."""
    passed_bytes: tuple[int, ...]
    """Bytes of every tensor passed to the next section, including those that only pass through (skip connections)."""
    returned_bytes: tuple[int, ...]
    """Bytes of every gradient received from the next section."""
    seconds: float = 0.0
    """Measured seconds of forward and backward, for the same number of samples in all sections; 0: not measured."""
    frozen_bytes: int = 0
    """Bytes of the parameters that are not trained."""
    operations: int = 0
    """Number of kernels of the forward pass; 0 if unknown."""

    @property
    def trained_bytes(self) -> int:
        return self.parameter_bytes - self.frozen_bytes


@dataclass(frozen=True)
class FrozenParameter:
    """A parameter of a called layer that no step changes, because it is frozen or backward never reaches it."""

    name: str
    bytes: int
    shape: tuple[int, ...]
    after: int
    """Number of trained parameters before it in the order of forward."""


@dataclass(frozen=True)
class Footprint:
    """Sizes and costs of a workload's model, which plans are made from, without torch."""

    parameter_bytes: tuple[int, ...]
    """Bytes of every trained parameter, in the order in which gradients become ready: roughly the model's, reversed.
    The other fields about parameters use the same order."""
    input_bytes: int
    """Input bytes per sample."""
    target_bytes: int
    """Target bytes per sample."""
    output_bytes: int
    """Output bytes per sample."""
    parameter_shapes: tuple[tuple[int, ...], ...] = ()
    """Shape of every trained parameter."""
    ready: tuple[float, ...] = ()
    """Fraction of backward after which each gradient is complete; empty: proportional to the bytes."""
    read_again: tuple[bool, ...] = ()
    """Whether backward reads each parameter, which it does not for a bias or an embedding; empty: it reads all."""
    parameter_names: tuple[str, ...] = ()
    """Name of every trained parameter; empty: not known."""
    matrices: tuple[SplittableLayer, ...] = ()
    """Layers that can be split, in the order of their calls."""
    sections: tuple[Section, ...] = ()
    """Sections of which stages can be made; empty: the model cannot be split into stages, or not known."""
    exported: bool = False
    """Sections were found by torch.export; the engine then chooses micro-batches before it knows the costs."""
    not_in_stages: str = ""
    """Reason why the model cannot be split into stages; empty: it can, or this was not tried."""
    frozen: tuple[FrozenParameter, ...] = ()
    """Frozen parameters, in the order of forward."""
    room_bytes: int | None = None
    """Memory of a device that stages must fit; None: not limited."""
    state_copies: int = 2
    """Copies of the weights in the optimizer state: two for Adam."""
    on_gpu: bool = False
    """Devices are GPUs, which compute small operations faster than the host launches them."""
    microbatches: int | None = None
    """Number of micro-batches chosen by the engine of a pipeline, or of parts accumulated by `layers`; None: the plan
    chooses."""
    modules: int = 0
    """Number of innermost modules; 0: not known."""
    module_calls: int = 0
    """Calls of innermost modules in forward; 0: not known."""
    norms_batches: bool = False
    """A layer, such as batch norm, computes statistics over the samples of a batch."""

    def backward_shares(self, groups: Sequence[range]) -> list[float]:
        """Part of backward between the completion of the previous group of gradients and that of each group."""
        total = sum(self.parameter_bytes)
        if not self.ready:
            return [sum(self.parameter_bytes[position] for position in group) / total for group in groups]
        ends = [max(self.ready[position] for position in group) for group in groups]
        ends[-1] = 1.0
        return [max(0.0, end - before) for before, end in pairwise([0.0, *accumulate(ends, max)])]


@dataclass(frozen=True)
class HostWork:
    """Python code that one step runs on the host, such as replicating modules. Its times are those of a host of the
    published tables."""

    us: float
    hidden_us: float
    """Part that the host can do while the device computes, in the time that launching the device's step leaves."""
    launch_us: float
    """Time in which the host launches the step of one device."""

    def seconds(self, step_seconds: float) -> float:
        """Seconds by which the host's work lengthens a step that takes one device `step_seconds`."""
        hidden_us = min(self.hidden_us, max(0.0, 1e6 * step_seconds - self.launch_us))
        return (self.us - hidden_us) * 1e-6


@dataclass(frozen=True)
class Operation:
    """Compute on one rank, a send between two ranks, or a collective of several."""

    phase: str
    rank: int
    after: tuple[int, ...] = ()
    """Positions in the plan of the operations that must have ended before this one starts."""
    samples: int = 0
    """Number of samples computed; a profile gives the seconds."""
    share: float = 1.0
    """Fraction of the phase's seconds that this operation takes, such as a bucket's part of backward."""
    send: Send | None = None
    collective: Collective | None = None
    """Collective of all its ranks, the first of which is `rank`."""
    count: int = 1
    """Number of consecutive ranks that do the same, starting at `rank`; of a send, at the lower of its two ranks."""
    moved_bytes: int = 0
    """Bytes read and written in device memory in addition to the phase, such as gradients copied into buckets."""
    in_host_memory: bool = False
    """`moved_bytes` are in host memory."""
    calls: int = 0
    """Number of device calls in addition to those of the phase; each takes the launch time of a small kernel."""
    called_share: float = 0.0
    """Fraction of the phase's own device calls that this operation makes: split layers launch smaller kernels, not
    fewer."""
    host_work: HostWork | None = None
    """Python code on the host that the device waits for."""


@dataclass(frozen=True)
class Plan:
    """Operations of one step on all ranks."""

    operations: tuple[Operation, ...]

    @property
    def sends(self) -> list[Send]:
        sends: list[Send] = []
        for operation in self.operations:
            if operation.send:
                sends += alike_sends(operation.send, operation.count)
            elif operation.collective:
                sends += sends_among(operation.collective, operation.rank)
        return sends

    @property
    def bytes_per_step(self) -> int:
        """Bytes sent by all ranks together."""
        return total_bytes(self.sends)

    @property
    def busiest_bytes(self) -> int:
        """Largest number of bytes that one rank sends plus receives."""
        return busiest_bytes(self.sends)


def alike_sends(send: Send, count: int) -> list[Send]:
    """Repeat a send for `count` consecutive ranks at its lower end."""
    if send.source < send.target:
        return [replace(send, source=send.source + number) for number in range(count)]
    return [replace(send, target=send.target + number) for number in range(count)]


def sends_among(collective: Collective, first: int) -> Sequence[Send]:
    """Sends of a collective whose first rank is `first`."""
    if not first and collective.stride == 1:
        return collective.sends
    stride = collective.stride
    return [
        replace(send, source=first + stride * send.source, target=first + stride * send.target)
        for send in collective.sends
    ]


Ends = dict[int, tuple[int, ...]]
"""For each rank, the operations that must have ended before it continues."""


class PlanBuilder:
    """Builder of a plan. Methods add operations and return the positions that later operations wait for."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def compute(
        self,
        phase: str,
        rank: int,
        samples: int,
        after: Iterable[int] = (),
        share: float = 1.0,
        count: int = 1,
        moved_bytes: int = 0,
        *,
        in_host_memory: bool = False,
        calls: int = 0,
        called_share: float = 0.0,
        host_work: HostWork | None = None,
    ) -> tuple[int]:
        self.operations.append(
            Operation(
                phase,
                rank,
                tuple(after),
                samples,
                share,
                count=count,
                moved_bytes=moved_bytes,
                in_host_memory=in_host_memory,
                calls=calls,
                called_share=called_share,
                host_work=host_work,
            )
        )
        return (len(self.operations) - 1,)

    def meet(self, ranks: int, backend: str, after: Iterable[int]) -> tuple[int, ...]:
        """Add a barrier, which sends no payload."""
        if ranks == 1:
            return tuple(after)
        barrier = Collective("all_reduce", backend, ranks, 0)
        self.operations.append(Operation("idle", 0, tuple(after), collective=barrier, count=ranks))
        return (len(self.operations) - 1,)

    def collective(self, phase: str, collective: Collective, after: Iterable[int], first: int = 0) -> tuple[int, ...]:
        """Add a collective of the ranks from `first` on, unless it has a single rank or no bytes."""
        if collective.ranks == 1 or collective.bytes == 0:
            return tuple(after)
        self.operations.append(Operation(phase, first, tuple(after), collective=collective, count=collective.ranks))
        return (len(self.operations) - 1,)

    def transfer(self, phase: str, sends: Iterable[Send], after: Mapping[int, tuple[int, ...]], count: int = 1) -> Ends:
        """Add sends, each of which starts when the operations in `after` of its source have ended.

        Every send represents `count` sends whose lower ranks are consecutive.
        """
        first = len(self.operations)
        ends: dict[int, list[int]] = defaultdict(list)
        for send in sends:
            before = (*after.get(send.source, ()), *(first + position for position in send.after))
            self.operations.append(Operation(phase, send.source, before, send=send, count=count))
            for rank in (send.source, send.target):
                ends[rank].append(len(self.operations) - 1)
        return {rank: tuple(positions) for rank, positions in ends.items()}

    def plan(self) -> Plan:
        return Plan(tuple(self.operations))


def units_of(names: Sequence[str]) -> dict[str, list[int]]:
    """Group parameters, given by name, into units: unit name -> positions of its parameters, in the order given.

    A unit is an element of a sequence of layers; parameters outside of sequences belong to the model itself, '':
    ('1.query.weight', '1.key.weight', 'head.bias') -> {'1': [0, 1], '': [2]}. The units of a model without sequences
    are its children.
    """
    owners = [_sequence_element(name) for name in names]
    if not any(owners):
        owners = [name.partition(".")[0] if "." in name else "" for name in names]
    units: dict[str, list[int]] = {}
    for position, unit in enumerate(owners):
        units.setdefault(unit, []).append(position)
    return units


def _sequence_element(name: str) -> str:
    """Outermost sequence element that contains a parameter: 'decoder.layers.3.mlp.0.weight' -> 'decoder.layers.3'."""
    path = name.split(".")[:-1]
    for depth, step in enumerate(path, 1):
        if step.isdigit():
            return ".".join(path[:depth])
    return ""
