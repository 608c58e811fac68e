"""Score predictions on hosts of several GPUs: all-reduces, torch.nn.DataParallel, and tf_cnn_benchmarks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import Cluster
from scalewise.hardware.collectives import Backend, Collective
from scalewise.hardware.transfers import Send
from scalewise.predict.collective_seconds import collective_seconds, link_bytes
from scalewise.predict.link_factors import MeasuredStep, calibrate_links, class_of, with_factors
from scalewise.predict.memory import profile_footprint
from scalewise.predict.network import Layout, Network, packed
from scalewise.predict.predictor import Predictor
from scalewise.predict.simulator import TENSORFLOW
from scalewise.published.gpu_steps import (
    ALL_REDUCE_CLUSTERS,
    DATA_PARALLEL_STEPS,
    NCCL,
    AllReduceRow,
    DataParallelRow,
    data_parallel_profile,
    load_all_reduces,
    load_data_parallel,
)
from scalewise.published.tables import TENSORFLOW as SOURCE
from scalewise.published.tables import TensorFlowRow, load_tensorflow, outlined_profile
from scalewise.strategies.base import Strategy
from scalewise.strategies.data_parallel import REPLICATION, DataParallel, ReplicationCost
from scalewise.strategies.mirrored import buckets_of
from scalewise.strategies.plan import Footprint, Plan, PlanBuilder, share_sizes
from scalewise.strategies.registry import strategy_of
from scalewise.validation.scores import Cell, Table, by

FloatArray = npt.NDArray[np.float64]
LINK_ERROR = 0.1
"""Relative half-width of the 90 % interval of an all-reduce with measured or interpolated constants."""
NVLINK_GBps = {"A100": 300.0, "V100": 150.0}
"""NVLink bandwidth of one GPU in each direction."""


def all_reduce_tables() -> list[Table]:
    clusters = {gpu: cluster_of(name) for gpu, name in ALL_REDUCE_CLUSTERS.items()}
    rows = load_all_reduces()
    cells = [_all_reduce_cell(row, clusters[row.gpu]) for row in rows]
    names = [
        f"{row.gpu}, {'fitted' if _is_fitted(row, clusters[row.gpu]) else 'other'} numbers of GPUs" for row in rows
    ]
    return [
        Table(
            "nccl all-reduce",
            cells,
            "partly",
            "bandwidth and latency of the catalogue's [[measured]] entries, on all-reduces of 2, 4 and 8 A100 and of "
            "2 to 8 V100; other numbers of A100 are interpolated",
            NCCL.citation,
            {"median": 10},
            by(cells, names),
        )
    ]


def _is_fitted(row: AllReduceRow, cluster: Cluster) -> bool:
    return cluster.measured_for("all_reduce", "nccl", row.devices, 1, row.bytes) is not None


def _all_reduce_cell(row: AllReduceRow, cluster: Cluster) -> Cell:
    collective = Collective("all_reduce", "nccl", row.devices, row.bytes)
    seconds = collective_seconds(collective, Network(replace(cluster, hosts=1), packed(cluster, row.devices)))
    specified = link_bytes("all_reduce", row.devices, row.bytes) / (NVLINK_GBps[row.gpu] * 1e9)
    return Cell(
        label=f"all-reduce of {row.bytes:,} bytes on {row.devices} {row.gpu}",
        measured=row.seconds,
        predicted=seconds,
        low=seconds * (1 - LINK_ERROR),
        high=seconds * (1 + LINK_ERROR),
        alone=0.0,
        baselines={"bytes / specification": specified},
    )


CLUSTERS = {
    "A100-SXM4-40GB": "4 x a100-nvlink",
    "V100-DGXS-16GB": "4 x v100-nvlink",
    "TITAN Xp": "4 x titan-xp",
    "RTX 2080 Ti": "4x-rtx-2080-ti",
    "GTX 1080 Ti": "4 x titan-xp",
}
"""Cluster of the catalogue for each GPU of the table."""
HOST_GBps = {"A100-SXM4-40GB": 300.0, "V100-DGXS-16GB": 150.0}
"""Specified bandwidth of NVLink in each direction; all others have PCIe 3.0."""
PCIE3_GBps = 15.75
IRREGULAR = ("RTX 2080 Ti", 3)
"""GPU and number of devices that are scored apart: the bandwidth of this machine halves there."""


@dataclass(frozen=True)
class FittedThreads(DataParallel):
    """torch.nn.DataParallel with host times that were fitted to some machines."""

    engine: Literal["ranks", "threads"] = "threads"
    fitted: ReplicationCost = REPLICATION

    @property
    def replication(self) -> ReplicationCost:
        return self.fitted


@dataclass(frozen=True)
class DataParallelFit:
    """Constants of torch.nn.DataParallel that predict the steps of some machines best."""

    strategy: FittedThreads
    pcie: float
    """Bandwidth of PCIe 3.0, relative to the catalogue."""

    def cluster(self, gpu: str) -> Cluster:
        cluster = _cluster(gpu)
        if gpu in HOST_GBps:
            return cluster
        return with_factors(cluster, {class_of(link): math.log(self.pcie) for link in cluster.links})

    def text(self, gpu: str) -> str:
        cost = self.strategy.fitted
        text = (
            f"{cost.copy_us:g} us per module, {cost.call_us:g} per call, exponent {cost.exponent:g}, launch "
            f"{cost.launch_us:g} us"
        )
        if gpu not in HOST_GBps:
            link = self.cluster(gpu).link("devices")
            text += f", PCIe {link.both_ways_GBps:.1f} GB/s" if link and link.both_ways_GBps else ""
        return text


COPY_us, CALL_us, EXPONENTS = range(80, 161, 10), range(40, 101, 10), (0.9, 1.0, 1.1, 1.2, 1.3)
LAUNCH_us, PCIE_FACTORS = (200, 225, 250, 275, 300, 325), (0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4)
"""Values that are compared with the steps of the other machines."""


@cache
def fit_without(gpu: str) -> DataParallelFit:
    """Constants with the smallest mean error of the steps of all machines but one."""
    rows = [row for row in load_data_parallel() if row.gpu != gpu and not _is_irregular(row)]
    compute, transfers = np.array([_linear_seconds(row) for row in rows]).T
    by_pcie = np.array([row.gpu not in HOST_GBps for row in rows])
    without = {factor: compute + transfers / np.where(by_pcie, factor, 1.0) for factor in PCIE_FACTORS}
    measured = np.array([row.seconds for row in rows])
    best = math.inf, REPLICATION, 1.0
    for copy_us, call_us, exponent, launch_us in product(COPY_us, CALL_us, EXPONENTS, LAUNCH_us):
        cost = ReplicationCost(copy_us, call_us, exponent, launch_us)
        host = _host_seconds(rows, cost)
        for factor, seconds in without.items():
            error = float(np.abs(np.log((seconds + host) / measured)).mean())
            best = min(best, (error, cost, factor), key=lambda fit: fit[0])
    return DataParallelFit(FittedThreads(fitted=best[1]), best[2])


def _host_seconds(rows: Sequence[DataParallelRow], cost: ReplicationCost) -> FloatArray:
    """Same as `ReplicationCost.work` for all rows at once."""
    modules, calls, devices, alone = _sizes(tuple(rows))
    growth = (devices / 2) ** cost.exponent
    slack = np.maximum(0.0, alone - 1e-6 * cost.launch_us * calls)
    call_seconds = 1e-6 * cost.call_us * calls * growth
    return 1e-6 * cost.copy_us * modules * growth + call_seconds - np.minimum(call_seconds, slack)


@cache
def _sizes(rows: tuple[DataParallelRow, ...]) -> tuple[FloatArray, ...]:
    footprints = [profile_footprint(data_parallel_profile(row)) for row in rows]
    return (
        np.array([float(footprint.modules) for footprint in footprints]),
        np.array([float(footprint.module_calls) for footprint in footprints]),
        np.array([float(row.devices) for row in rows]),
        np.array([row.one_gpu_seconds for row in rows]),
    )


@cache
def _linear_seconds(row: DataParallelRow) -> tuple[float, float]:
    """Seconds of a step without its transfers and without the host's work, and of its transfers."""
    cluster = _cluster(row.gpu)
    free = FittedThreads(fitted=replace(REPLICATION, copy_us=0.0, call_us=0.0))
    slower = with_factors(cluster, {class_of(link): -math.log(2) for link in cluster.links})
    once, twice = (_simulated(row, links, free) for links in (cluster, slower))
    return 2 * once - twice, twice - once


def data_parallel_tables() -> list[Table]:
    fits = {gpu: fit_without(gpu) for gpu in CLUSTERS}
    rows = load_data_parallel()
    cells = [_data_parallel_cell(row, fits[row.gpu].cluster(row.gpu), fits[row.gpu].strategy) for row in rows]
    scored = [(row, cell) for row, cell in zip(rows, cells, strict=True) if not _is_irregular(row)]
    apart = [cell for row, cell in zip(rows, cells, strict=True) if _is_irregular(row)]
    texts = "; ".join(f"{gpu}: {fit.text(gpu)}" for gpu, fit in fits.items())
    return [
        Table(
            "data-parallel",
            [cell for _, cell in scored],
            "no",
            f"host times and the bandwidth of PCIe 3.0, on the four other machines ({texts}); the kinds of host "
            "times were chosen after looking at all machines",
            DATA_PARALLEL_STEPS.citation,
            {"median": 12, "p90": 25},
            by([cell for _, cell in scored], [row.gpu for row, _ in scored]),
        ),
        Table("3 x RTX 2080 Ti", apart, "no", "as in data-parallel", DATA_PARALLEL_STEPS.citation),
        _fitted_data_parallel_table(fits),
    ]


FITTED_ROWS = 2
"""Every row of this number is used for a fit, which is enough for two constants."""


def _fitted_data_parallel_table(fits: Mapping[str, DataParallelFit]) -> Table:
    """Score each half of the models with links and host calibrated to the other half, on the same machine."""
    models = sorted({row.model for row in load_data_parallel()})
    halves = [set(models[::2]), set(models[1::2])]
    cells, names = list[Cell](), list[str]()
    for gpu in CLUSTERS:
        rows = [row for row in load_data_parallel() if row.gpu == gpu and not _is_irregular(row)]
        for scored, fitting in (halves, halves[::-1]):
            strategy = fits[gpu].strategy
            steps = [_measured_step(row, strategy) for row in rows if row.model in fitting][::FITTED_ROWS]
            cluster = calibrate_links(fits[gpu].cluster(gpu), steps).cluster
            half = [_data_parallel_cell(row, cluster, strategy) for row in rows if row.model in scored]
            cells += half
            names += [gpu] * len(half)
    return Table(
        "data-parallel, fitted",
        cells,
        "other models",
        "bandwidth between devices and host time of each machine, on every second row of the other half of the models; "
        "ratios of the host times, on the four other machines",
        DATA_PARALLEL_STEPS.citation,
        {"median": 6.5},
        by(cells, names),
    )


def _measured_step(row: DataParallelRow, strategy: FittedThreads) -> MeasuredStep:
    def predicted(cluster: Cluster) -> float:
        return _simulated(row, cluster, strategy)

    return MeasuredStep(row.model, row.seconds, row.one_gpu_seconds, predicted, row.model)


def _is_irregular(row: DataParallelRow) -> bool:
    return (row.gpu, row.devices) == IRREGULAR


@cache
def _cluster(gpu: str) -> Cluster:
    return cluster_of(CLUSTERS[gpu])


def _simulated(row: DataParallelRow, cluster: Cluster, strategy: FittedThreads) -> float:
    return Predictor(data_parallel_profile(row), cluster).simulate(strategy, row.devices, row.batch).step_seconds


def _data_parallel_cell(row: DataParallelRow, cluster: Cluster, strategy: FittedThreads) -> Cell:
    profile = data_parallel_profile(row)
    prediction = Predictor(profile, cluster).predict(strategy, row.devices, row.batch, samples=row.batch)
    alone = row.one_gpu_seconds * row.devices
    moved = 2 * profile.parameter_bytes * (row.devices - 1) / row.devices
    specified = HOST_GBps.get(row.gpu, PCIE3_GBps)
    return Cell(
        label=f"{row.model} {row.precision} on {row.devices} {row.gpu}",
        measured=row.seconds,
        predicted=prediction.seconds,
        low=prediction.low,
        high=prediction.high,
        alone=alone,
        devices=row.devices,
        baselines={
            "linear scaling": row.one_gpu_seconds,
            "bytes / specification": row.one_gpu_seconds + moved / (specified * 1e9),
        },
    )


PIECE_MB = 25.0


@dataclass(frozen=True)
class OnHost(Strategy):
    """Keep all variables in host memory; every device pulls them and pushes its gradients in each step."""

    name: ClassVar[str] = "variables on host"
    summary: ClassVar[str] = "TensorFlow's parameter_server on the CPU"
    exact: ClassVar[bool] = True

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "nccl") -> Plan:  # noqa: ARG002
        builder = PlanBuilder()
        groups = buckets_of(footprint.parameter_bytes, PIECE_MB)
        sizes = [sum(footprint.parameter_bytes[position] for position in group) for group in groups]
        shares = footprint.backward_shares(groups)
        memory = devices
        pushed: tuple[int, ...] = ()
        for rank, samples in enumerate(share_sizes(batch, devices)):
            done: tuple[int, ...] = ()
            for size, share in zip(reversed(sizes), reversed(shares), strict=True):
                fetched = builder.transfer("pull", [Send(memory, rank, size)], {})
                done = builder.compute("forward", rank, samples, done + fetched[rank], share)
            for size, share in zip(sizes, shares, strict=True):
                done = builder.compute("backward", rank, samples, done, share)
                pushed += builder.transfer("push", [Send(rank, memory, size)], {rank: done})[memory]
        builder.compute("update", memory, batch, pushed)
        return builder.plan()


@dataclass(frozen=True)
class OnServers(Strategy):
    """All-reduce gradients inside each host, push each part to the host that owns it, and pull the updated part."""

    name: ClassVar[str] = "distributed servers"
    summary: ClassVar[str] = "TensorFlow's distributed_replicated"
    exact: ClassVar[bool] = True

    hosts: int = 1

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "nccl") -> Plan:
        builder = PlanBuilder()
        per_host = devices // self.hosts
        samples = -(-batch // devices)
        done = builder.compute("forward", 0, samples, count=devices)
        groups = buckets_of(footprint.parameter_bytes, PIECE_MB)
        for group, share in zip(groups, footprint.backward_shares(groups), strict=True):
            size = sum(footprint.parameter_bytes[position] for position in group)
            done = builder.compute("backward", 0, samples, done, share, count=devices)
            added = builder.collective("reduce", Collective("all_reduce", backend, per_host, size), done)
            part = -(-size // self.hosts)
            pairs = [(one, other) for one in range(self.hosts) for other in range(self.hosts) if one != other]
            arrived = dict.fromkeys(range(self.hosts), added)
            for one, other in pairs:
                sent = builder.transfer("push", [Send(one * per_host, devices + other, part)], {one * per_host: added})
                arrived[other] += sent[devices + other]
            updated = {
                devices + host: builder.compute("update", devices + host, batch, after)
                for host, after in arrived.items()
            }
            for one, other in pairs:
                builder.transfer("pull", [Send(devices + one, other * per_host, part)], updated)
        return builder.plan()


def strategy_for(variables: str, hosts: int) -> Strategy:
    """Return the strategy of a placement of variables. Variables spread over the devices send as many bytes over every
    link as an all-reduce, so they are predicted as `mirrored`."""
    if variables == "variables on host":
        return OnHost()
    return OnServers(hosts) if variables == "distributed servers" else strategy_of("mirrored")


SPECIFIED_GBps = {"8x-p100-nvlink": 20.0, "8x-k80": 15.75, "8x-k80-gce": 15.75}
"""Specified bandwidth of NVLink 1.0 and PCIe 3.0 x16."""
SPECIFIED_NETWORK_GBps = 1.25
ROUNDS = 2
Alone = dict[tuple[str, ...], float]
"""Step seconds of one GPU, by series."""


def tensorflow_tables() -> list[Table]:
    return [catalogue_table(), fitted_table()]


def _measured() -> tuple[list[TensorFlowRow], Alone]:
    """Return the rows on several devices whose series has a single-device row, and the single-device step times."""
    alone = {row.series: row.step_seconds for row in load_tensorflow() if row.devices == 1}
    return [row for row in load_tensorflow() if row.devices > 1 and row.series in alone], alone


def catalogue_table() -> Table:
    rows, alone = _measured()
    cells = [_tensorflow_cell(row, alone[row.series], _tensorflow_cluster(row)) for row in rows]
    return Table(
        "tensorflow",
        cells,
        "partly",
        "overlap and slowdown of TensorFlow, on this table; links are from the catalogue",
        SOURCE.citation,
        {"median": 4, "p90": 10},
        by(cells, [row.variables for row in rows]),
    )


def fitted_table() -> Table:
    """Score rows with links fitted to other models on the same machine with the same placement of variables."""
    rows, alone = _measured()
    cells: list[Cell] = []
    names: list[str] = []
    for machine, variables, model in sorted({(row.machine, row.variables, row.model) for row in rows}):
        series = [row for row in rows if (row.machine, row.variables) == (machine, variables)]
        fitting = _largest_runs([row for row in series if row.model != model])
        if not fitting:
            continue
        steps = [_tensorflow_step(row, alone) for row in fitting]
        fitted = calibrate_links(_tensorflow_cluster(fitting[0]), steps).cluster
        for row in series:
            if row.model == model:
                # Links fitted to other models are less certain than measured ones.
                cluster = replace(fitted, hosts=row.hosts, knowledge="catalogue")
                cells.append(_tensorflow_cell(row, alone[row.series], cluster))
                names.append(variables)
    return Table(
        "tensorflow, fitted",
        cells,
        "other models",
        "each machine's links, on the largest runs of its other models; overlap and slowdown as in tensorflow",
        SOURCE.citation,
        {"median": 3.5},
        by(cells, names),
    )


def _largest_runs(rows: list[TensorFlowRow]) -> list[TensorFlowRow]:
    """Return the run on most devices of every model, with synthetic data if there is one."""
    largest: dict[str, TensorFlowRow] = {}
    for row in sorted(rows, key=lambda row: (row.data != "files", row.devices)):
        largest[row.model] = row
    return list(largest.values())


def _tensorflow_step(row: TensorFlowRow, alone: Alone) -> MeasuredStep:
    batch, layout = row.devices * row.batch_per_device, Layout((row.devices // row.hosts,) * row.hosts)
    strategy, one_gpu_seconds = strategy_for(row.variables, row.hosts), alone[row.series]

    def predicted(cluster: Cluster) -> float:
        predictor = _tensorflow_predictor(row, one_gpu_seconds, replace(cluster, hosts=row.hosts))
        return predictor.simulate(strategy, row.devices, batch, layout).step_seconds

    return MeasuredStep(row.model, row.step_seconds, one_gpu_seconds, predicted, row.model)


def _tensorflow_cluster(row: TensorFlowRow) -> Cluster:
    return replace(cluster_of(row.machine), hosts=row.hosts)


def _tensorflow_predictor(row: TensorFlowRow, alone: float, cluster: Cluster) -> Predictor:
    """Build the predictor of a row. One GPU also pulls variables from the host; the rest of its step is compute."""
    compute = alone
    for _ in range(ROUNDS):
        profile = outlined_profile(row.model, cluster.devices[0].name, {row.batch_per_device: compute})
        predictor = Predictor(profile, cluster, TENSORFLOW)
        if row.variables != "variables on host":
            return predictor
        compute *= alone / predictor.simulate(OnHost(), 1, row.batch_per_device, Layout((1,))).step_seconds
    return predictor


def _tensorflow_cell(row: TensorFlowRow, alone: float, cluster: Cluster) -> Cell:
    predictor = _tensorflow_predictor(row, alone, cluster)
    batch = row.devices * row.batch_per_device
    layout = Layout((row.devices // row.hosts,) * row.hosts)
    prediction = predictor.predict(strategy_for(row.variables, row.hosts), row.devices, batch, layout, samples=batch)
    moved = 2 * predictor.profile.parameter_bytes * (row.devices - 1) / row.devices
    specified = SPECIFIED_NETWORK_GBps if row.hosts > 1 else SPECIFIED_GBps[row.machine]
    return Cell(
        label=f"{row.model} {row.variables}, {row.devices} GPUs of {row.machine}, {row.batch_per_device} each",
        measured=row.step_seconds,
        predicted=prediction.seconds,
        low=prediction.low,
        high=prediction.high,
        alone=alone * row.devices,
        devices=row.devices,
        baselines={"linear scaling": alone, "bytes / specification": alone + moved / (specified * 1e9)},
        rivals=f"{row.model}, {row.devices} GPUs of {row.machine}, {row.batch_per_device} each, {row.data}",
    )
