"""Predict the rows of one cluster, and compare several clusters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from scalewise.advice.budget import Budget
from scalewise.advice.comparison import Candidate, Comparison, candidate_of, compare
from scalewise.advice.given_figures import MeasuredFile
from scalewise.advice.inputs import HERE
from scalewise.advice.one_device import ProfileRequest, profile_of_steps, profile_one_device
from scalewise.advice.rows import OmittedStrategy, Question, Row, rows_of
from scalewise.core.errors import UserError
from scalewise.formats.profile import Profile, ProfileDocument
from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import Cluster
from scalewise.hardware.gpu_prices import Price, prices_of
from scalewise.predict.link_factors import LinkCalibration
from scalewise.predict.predictor import Predictor
from scalewise.published.tables import OUTLINES
from scalewise.strategies.base import Strategy
from scalewise.strategies.registry import STRATEGIES

COMMON_GPUS = ("1 x l4", "1 x rtx-4090", "1 x a100-80gb", "1 x h100", "8 x h100-nvlink")
"""Clusters that are compared if none is given and this machine has no GPU."""


@dataclass(frozen=True)
class Task:
    """What is predicted on every cluster."""

    request: ProfileRequest
    """Workload and how to get its profile; the cluster, numbers of devices and batches are set for each cluster."""
    strategies: Sequence[Strategy]
    """Strategies that the user named; empty: all."""
    devices: Sequence[int]
    """Numbers of devices that the user gave; empty: chosen for each cluster."""
    batches: Sequence[int]
    batch_per_device: int | None
    samples: int | None
    """Samples per epoch; None: those of the profile."""
    save_profile: Path | str | None = None
    calibrate: Path | str | None = None
    measured: MeasuredFile | None = None
    """Measured steps, to which the links of the first cluster are calibrated."""


@dataclass(frozen=True)
class PredictedCluster:
    """Rows of one cluster, with what they were predicted from."""

    predictor: Predictor
    source: str
    """Origin of the profile and of the links, as in 'predicted from ...'."""
    rows: Sequence[Row]
    omitted: Sequence[OmittedStrategy]
    graph_profile: ProfileDocument | None
    calibration: LinkCalibration | None = None

    @property
    def cluster(self) -> Cluster:
        return self.predictor.cluster

    @property
    def document(self) -> ProfileDocument:
        return self.predictor.profile

    @property
    def rows_of_verdict(self) -> list[Row]:
        """Rows of the first global batch, or all rows of a fixed batch per device."""
        batch = self.rows[0].prediction.batch
        return [row for row in self.rows if row.weak_scaling or row.prediction.batch == batch]


def predict_cluster(task: Task, cluster: Cluster, links: str, every_count: bool) -> PredictedCluster:
    """Predict all strategies on 1, 2, 4, ... devices, or only on one and on all."""
    counts = _device_counts(task, cluster, every_count)
    batches = list(task.batches)
    if task.batch_per_device is not None:
        batches = [task.batch_per_device * count for count in sorted(counts, reverse=True)]
    one_device = profile_one_device(replace(task.request, cluster=cluster, counts=counts, batch=batches))
    document = one_device.document
    strategies = parallel_strategies(task.strategies or _default_strategies(cluster))
    if max(counts) > 1 and any(strategy.in_stages for strategy in strategies):
        document = _with_stages(document, task.request)
    if every_count and task.save_profile is not None:
        Profile(document).write(Path(task.save_profile))
    if task.samples is not None:
        document = document.model_copy(update={"samples_per_epoch": task.samples})
    calibration = None
    if every_count and task.calibrate is not None:
        from scalewise.advice.inputs import calibrated

        calibration, links, document = calibrated(cluster, Path(task.calibrate), document)
        cluster = calibration.cluster
    if every_count and task.measured is not None:
        profile_of = partial(profile_of_steps, cluster)
        calibration, text = task.measured.calibrated(cluster, profile_of, document)
        cluster, links = (calibration.cluster, text) if calibration else (cluster, links + text)
    predictor = Predictor(document, cluster)
    question = Question(
        strategies,
        counts,
        batches or [one_device.default_batch],
        task.batch_per_device,
        epoch_known=task.samples is not None or document.epoch_told,
        strategies_given=bool(task.strategies) and every_count,
        devices_given=bool(task.devices),
    )
    rows, omitted = rows_of(predictor, question)
    source = f"{one_device.source}; {links}"
    return PredictedCluster(predictor, source, rows, omitted, one_device.graph_profile, calibration)


def _device_counts(task: Task, cluster: Cluster, every_count: bool) -> list[int]:
    given = list(dict.fromkeys(task.devices))
    if not every_count:
        return [count for count in given if 1 <= count <= cluster.size] or [cluster.size]
    for count in given:
        if not 1 <= count <= cluster.size:
            raise UserError(
                f"--devices is {count}, but {cluster.name} has {cluster.size} devices; give 1 to {cluster.size}"
            )
    powers = {2**power for power in range(int(math.log2(cluster.size)) + 1)}
    return given or sorted(powers | {cluster.size})


def parallel_strategies(strategies: Sequence[Strategy]) -> list[Strategy]:
    """Return the strategies without duplicates and without the one for a single device."""
    return [strategy for strategy in dict.fromkeys(strategies) if not strategy.reference]


def _default_strategies(cluster: Cluster) -> list[Strategy]:
    """Return every parallel strategy with its default options for the cluster."""
    return [kind().default_on(cluster.backend, cluster.hosts) for kind in STRATEGIES.values() if not kind.reference]


def _with_stages(document: ProfileDocument, request: ProfileRequest) -> ProfileDocument:
    """Add where the model can be split into stages, if that is not known and the model is."""
    workload = request.workload
    known = not document.footprint or document.footprint.get("sections")
    if known or request.profile is not None or workload is None or workload in OUTLINES:
        return document
    from scalewise.probe.untimed_profile import with_stages

    path = Path(request.data) if request.data else None
    return with_stages(document, workload, path, request.input_shape, request.classes)


def compare_clusters(
    task: Task,
    budget: Budget,
    first: PredictedCluster,
    clusters: Sequence[tuple[str, Cluster, str]],
    prices: Sequence[Price | None],
    note: str = "",
) -> Comparison:
    """Rank clusters, given as (name, cluster, origin of its links); the rows of the first one are known."""
    epoch_known, samples = first.rows[0].epoch_known, task.samples
    if budget.epochs is not None and not epoch_known:
        raise UserError("--epochs needs the number of samples per epoch, which is not known; add --samples")
    if epoch_known and samples is None:
        samples = first.document.samples_per_epoch  # so that all clusters train equally many
    task = replace(task, samples=samples)
    candidates: list[Candidate] = []
    for (name, cluster, links), price in zip(clusters, prices, strict=True):
        is_first = not candidates
        result = first if is_first else predict_cluster(task, cluster, links, every_count=False)
        epochs = budget.number_of_epochs
        candidates.append(candidate_of(name, result.predictor, result.rows_of_verdict, epochs, price))
    return compare(candidates, budget, note)


def compare_with_common_gpus(task: Task, budget: Budget, first: PredictedCluster) -> Comparison:
    """Compare this machine with common GPUs, predicted from their specifications."""
    task = replace(
        task,
        request=replace(task.request, load="auto", data=None),
        devices=(),
        batches=task.batches or [first.rows[0].prediction.batch],
        strategies=task.strategies,
    )
    clusters = [(HERE, first.cluster, "")]
    clusters += [(name, cluster_of(name), f"links of {name}") for name in COMMON_GPUS]
    prices: list[Price | None] = [None, *prices_of([cluster for _, cluster, _ in clusters[1:]], (), budget.spot)]
    note = "This machine has no GPU; common GPUs are predicted from their specifications."
    return compare_clusters(task, budget, first, clusters, prices, note)
