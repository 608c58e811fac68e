"""`scalewise advise`: whether more devices make training faster, and why."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scalewise.advice.budget import Budget
from scalewise.advice.cluster_prediction import Task, compare_clusters, compare_with_common_gpus, predict_cluster
from scalewise.advice.explanation import verdict_of
from scalewise.advice.given_figures import MeasuredFile
from scalewise.advice.inputs import HERE, cluster_named
from scalewise.advice.one_device import ProfileRequest, check_can_be_timed
from scalewise.advice.result import Advice
from scalewise.advice.tuned_device import baseline_of
from scalewise.core.arguments import checked, one_or_more
from scalewise.core.errors import UserError
from scalewise.core.specs import matching, unknown
from scalewise.formats.profile import Profile
from scalewise.hardware.cluster import Cluster
from scalewise.hardware.gpu_prices import Price, prices_of
from scalewise.models.catalogue import CATALOGUE, PUBLISHED, named
from scalewise.models.given_workload import given_workload, shape_text
from scalewise.published.tables import OUTLINES
from scalewise.strategies.registry import strategy_of

if TYPE_CHECKING:
    from torch import nn

    from scalewise.core.training_options import GivenPrecision, Precision
    from scalewise.models.workload import Workload
from dataclasses import dataclass

from scalewise.advice.result import does_not_fit
from scalewise.advice.rows import interval_text
from scalewise.core.training_options import Precision
from scalewise.core.units import seconds_text
from scalewise.launch.placement import Placement, under_torchrun
from scalewise.launch.real_hosts import real_hosts
from scalewise.predict.calibration import rehearsed

if TYPE_CHECKING:
    from scalewise.models.workload import Workload


MAX_DEVICES = 1_000_000
"""Largest cluster that is simulated, which takes some seconds."""


@checked
def advise(
    workload: str | Workload | nn.Module | None = None,
    *,
    profile: Path | str | Profile | None = None,
    step_time: str | Sequence[str] | None = None,
    measured: Path | str | None = None,
    cluster: str | Cluster | Sequence[str | Cluster] | None = None,
    strategy: str | Sequence[str] = (),
    devices: int | Sequence[int] = (),
    batch: int | Sequence[int] = (),
    batch_per_device: int | None = None,
    samples: int | None = None,
    epochs: float | None = None,
    tokens: float | None = None,
    deadline: str | None = None,
    max_cost: float | str | None = None,
    price: float | Sequence[float] = (),
    spot: bool = False,
    calibrate: Path | str | None = None,
    save_profile: Path | str | None = None,
    fresh: bool = False,
    precision: GivenPrecision = "fp32",
    load: str = "auto",
    data: Path | str | None = None,
    input_shape: str | tuple[int, ...] | None = None,
    classes: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Advice:
    """Predict whether more devices make training faster, with which strategy, and why.

    Predicts every combination of strategies, numbers of devices and batches on a cluster, from the step times of one
    device. Those are measured here in half a minute, given with `profile` or `step_time`, or predicted from the
    specification of a GPU that this machine does not have.

    Args:
        workload: A built-in name ("unet:width=16"), a published model ("resnet50"), "path/to/file.py:function", an
            nn.Module together with `input_shape`, or a `scalewise.Workload`.
        profile: Profile of one device: a file written by `scalewise profile`, or the result of `scalewise.profile`.
        step_time: One or several measured steps of one device, instead of a profile: "0.062@32" is 62 ms at batch 32.
        measured: CSV file of measured steps with the columns model, devices, batch_per_device and step_seconds or
            samples_per_second. Steps of one device are the profile; steps of several devices, also of other models,
            calibrate the links of the first cluster.
        cluster: Cluster to predict: "here" (this machine, the default), a name of `scalewise list clusters`,
            "8 x a100-nvlink, 4 hosts, 100gbe", or the path of a TOML file. Several clusters are compared; `rows` are
            those of the first.
        strategy: One or several strategies, such as "mirrored"; all by default.
        devices: One or several numbers of devices; 1, 2, 4, ... and all by default.
        batch: One or several global batches (over all devices). The verdict is about the first.
        batch_per_device: Batch per device, instead of `batch`: the verdict is then about weak scaling.
        samples: Samples per epoch.
        epochs: Number of epochs of the whole training, for the time and cost to finish.
        tokens: Number of tokens of the whole training of a language model, instead of `epochs`.
        deadline: Longest time of the whole training: "24h", "90min", "2d".
        max_cost: Highest cost of the whole training in US dollars.
        price: US dollars per hour of each whole cluster, in their order; cloud prices by default.
        spot: Use prices of spot (interruptible) instances.
        calibrate: Folder written by `scalewise measure` on that cluster; the bandwidth of the links is fitted to it.
        save_profile: File to which the profile of one device is written.
        fresh: Measure the profile again instead of reading the cached one.
        precision: Precision of matrix multiplications: "fp32", "tf32", "bf16" or "fp16" (autocast). Given step times
            may also be of "bf16-weights" or "fp16-weights", whose gradients are half as large.
        load: How samples are loaded while one device is profiled; see `scalewise train --help`.
        data: Folder or file with the data.
        input_shape: Shape of one sample without the batch, (3, 224, 224) or "3x224x224". Needed for an nn.Module and
            for a function that returns one.
        classes: Number of classes. Needed for a function that returns an nn.Module.
        on_progress: Function that is called with a text while something is measured.

    Returns:
        An `Advice`, which prints as a verdict and tables. `verdict` has `add_devices`, `sure`, `best`, `bottleneck`,
        `reason` and `break_even`; `rows` has a prediction per strategy, number of devices and batch; `comparison` has
        the clusters in the order of rank, with time, cost and energy. `to_dict()`
        returns the document of `scalewise advise --json`, `to_dataframe()` the rows.

    Raises:
        UserError: An argument is invalid. The message has the value and the valid ones.

    Examples:
        >>> advice = scalewise.advise("linear", cluster="4x-gtx-1080-ti", batch=100)
        >>> advice.verdict.add_devices
        False
        >>> best = advice.verdict.best.prediction
        >>> best.strategy.name, best.devices, f"{1e3 * best.seconds:.1f} ms"
        ('single', 1, '13.2 ms')
    """
    if workload is None and profile is None:
        raise UserError("no workload is given; name a WORKLOAD, or give --profile FILE")
    shape = shape_text(input_shape)
    if workload is not None:
        workload, shape, classes = given_workload(workload, shape, classes)
    for flag, value in (("--samples", samples), ("--batch-per-device", batch_per_device)):
        if value is not None and value < 1:
            raise UserError(f"{flag} is {value}; it must be 1 or more")
    clusters = [cluster or HERE] if cluster is None or isinstance(cluster, str | Cluster) else list(cluster) or [HERE]
    own_prices = one_or_more(price)
    budget = Budget(
        samples, epochs, tokens, deadline or "", "" if max_cost is None else str(max_cost), own_prices, spot
    )
    budget.check()
    strategy, devices, batch = one_or_more(strategy), one_or_more(devices), one_or_more(batch)
    file, ran_batch = None if measured is None else MeasuredFile.read(Path(measured)), 0
    if file and workload is not None and profile is None and step_time is None:
        name = named(workload) if isinstance(workload, str) else workload.name
        precision = file.precision_of(name) if precision == "fp32" else precision
        step_time, ran_batch = file.texts_of_steps(name, precision), file.largest_batch(name, precision)
    if isinstance(workload, str):
        workload = named(workload)
        if workload in OUTLINES and step_time is None and profile is None:
            workload = matching(workload, PUBLISHED) or workload
        if profile is None:
            _check_name(workload)
    chosen = [strategy_of(text) for text in strategy]
    if HERE in clusters and profile is None and step_time is None:
        _check_model(workload, shape, classes)
    resolved = [_resolved(name, on_progress) for name in clusters]
    request = ProfileRequest(
        workload, resolved[0][0], (), (), profile, step_time, precision, load, data, shape, classes, fresh, on_progress,
        ran_batch,
    )  # fmt: skip
    epoch = budget.samples_per_epoch(workload, shape, classes)
    batches = list(dict.fromkeys(batch))
    task = Task(request, chosen, devices, batches, batch_per_device, epoch, save_profile, calibrate, file)
    prices: list[Price | None] = []
    is_compared = len(resolved) > 1 or budget.is_given
    if is_compared:
        prices = prices_of([cluster for cluster, _ in resolved], own_prices, spot)
        resolved = [
            (replace(cluster, price_per_hour=price.USD_per_hour if price else None), links)
            for (cluster, links), price in zip(resolved, prices, strict=True)
        ]
    first = predict_cluster(task, *resolved[0], every_count=True)
    comparison, problem = None, ""
    if is_compared:
        names = [name if isinstance(name, str) else name.name for name in clusters]
        named_clusters = [(name, *pair) for name, pair in zip(names, resolved, strict=True)]
        comparison = compare_clusters(task, budget, first, named_clusters, prices)
    elif cluster is None and profile is None and step_time is None and not first.cluster.has_gpus:
        try:
            comparison = compare_with_common_gpus(task, budget, first)
        except UserError as error:  # the model runs here, so that its operators cannot be counted is no failure
            problem = f"Not compared with common GPUs: {error.problem}."
    return Advice(
        first.document,
        first.source,
        first.cluster,
        first.rows,
        verdict_of(first.predictor, first.rows_of_verdict),
        first.graph_profile,
        first.omitted,
        comparison,
        problem,
        baseline_of(workload, first.document, precision, first.rows[0].prediction.batch, shape, classes),
        first.calibration,
    )


def _resolved(name: str | Cluster, on_progress: Callable[[str], None] | None) -> tuple[Cluster, str]:
    """Return a cluster and the origin of its links."""
    cluster, links = cluster_named(name, on_progress)
    if cluster.size > MAX_DEVICES:
        raise UserError(f"{cluster.name} has {cluster.size:,} devices; at most {MAX_DEVICES:,} can be simulated")
    return cluster, links


def _check_name(workload: str) -> None:
    """Raise UserError for an unknown name, before anything about the cluster is checked."""
    if re.fullmatch(r"[\w -]+", workload) and workload not in {*CATALOGUE, *PUBLISHED, *OUTLINES}:
        valid = [*CATALOGUE, "hf:NAME", "path/to/file.py:function", "package.module:function"]
        raise unknown("workload", workload, [*valid, *PUBLISHED, *OUTLINES])


def _check_model(workload: str | Workload | None, input_shape: str | None, classes: int | None) -> None:
    """Raise UserError for a bad workload before the links of this machine are measured, which can take a minute."""
    if isinstance(workload, str):
        check_can_be_timed(workload)
        from scalewise.models.resolve import resolve

        resolve(workload, input_shape, classes)


AUTO = "auto"


@dataclass(frozen=True)
class Choice:
    """Strategy and number of devices that `--strategy auto` chose."""

    strategy: str
    devices: int
    why: str
    """Sentence with the prediction."""


def most_devices(placement: Placement) -> int:
    """Return the largest number of devices that auto may choose; --devices 1, the default, means all of them."""
    return placement.devices if placement.devices > 1 else _machine(placement, None).size


def choose(
    workload: str | Workload,
    placement: Placement,
    batch: int,
    *,
    precision: Precision = "fp32",
    load: str = "auto",
    data: Path | str | None = None,
    input_shape: str | None = None,
    classes: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Choice:
    """Choose a strategy for at most as many devices as the placement has."""
    if placement.devices > 1 and not isinstance(workload, str):
        raise UserError(
            "several devices need the name of a workload, because ranks import it; give 'file.py:function', or use one "
            "device"
        )
    machine = _machine(placement, on_progress)
    if placement.devices > machine.size:
        raise UserError(
            f"--devices is {placement.devices}, but {machine.name} has {machine.size} devices; give at most "
            f"{machine.size}"
        )
    counts = [count for count in range(1, placement.devices + 1) if count % placement.hosts == 0 or count == 1]
    advice = advise(
        workload,
        cluster=machine,
        devices=counts,
        batch=[batch],
        precision=precision,
        load=load,
        data=data,
        input_shape=input_shape,
        classes=classes,
        on_progress=on_progress,
    )
    return Choice(advice.verdict.best.name, advice.verdict.best.prediction.devices, _why(advice))


def _machine(placement: Placement, on_progress: Callable[[str], None] | None) -> Cluster:
    if under_torchrun() or real_hosts():
        raise UserError("--strategy auto is not possible on real hosts; name a strategy that `advise` recommends")
    if placement.device_kind == "slice":
        raise UserError("--strategy auto cannot choose for slices of a GPU; name a strategy")
    here, _ = cluster_named(HERE, on_progress)
    backend = {"cpu": "gloo", "cuda": "nccl", AUTO: here.backend}[placement.device_kind]
    if backend != here.backend:
        raise UserError(
            f"--strategy auto chooses for this machine's {here.devices[0].name}, not for {placement.device_kind} "
            "devices; leave --device-kind out"
        )
    if placement.hosts == 1 or placement.link is None:
        return here
    per_host = -(-placement.devices // placement.hosts)
    return replace(
        here,
        name=f"{here.name} as {placement.hosts} emulated hosts at {placement.link}",
        hosts=placement.hosts,
        devices_per_host=per_host,
        devices=(replace(here.devices[0], count=per_host),),
        links=(*here.links, rehearsed(placement.link)),
        servers_apart=True,
    )


def _why(advice: Advice) -> str:
    """Return 'auto chose mirrored on 2 devices: predicted 12 ms per step (11.0-13.0 ms) instead of 20 ms on one'."""
    best, alone = advice.verdict.best, advice.rows[0]
    prediction = best.prediction
    if not best.fits:
        return f"auto chose one device, although nothing is predicted to fit; one device {does_not_fit(best)}"
    seconds = (
        f"predicted {seconds_text(prediction.seconds)} per step ({interval_text(prediction.low, prediction.high)})"
    )
    if prediction.devices > 1:
        one = f" instead of {seconds_text(alone.prediction.seconds)} on one"
        baseline = one if alone.fits else f"; one device {does_not_fit(alone)}"
        return f"auto chose {best.name} on {prediction.devices} devices: {seconds}{baseline}"
    others = [row for row in advice.rows[1:] if row.prediction.strategy.exact]
    fitting = [row for row in others if row.fits]
    if not fitting:
        why = "no strategy on several devices fits" if others else "there is no other device"
        return f"auto chose one device: {seconds}; {why}"
    second = min(fitting, key=lambda row: row.prediction.seconds)
    return (
        f"auto chose one device: {seconds}; the fastest strategy on several, {second.name} on "
        f"{second.prediction.devices} devices, would take {seconds_text(second.prediction.seconds)}"
    )
