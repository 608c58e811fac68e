"""`--strategy auto`: what `advise` says about this machine, at the batch given, among the exact strategies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.advice.advice import Advice
from scalewise.clusters.cluster import Cluster
from scalewise.errors import UserError
from scalewise.prediction.cells import rehearsed
from scalewise.results.units import seconds_text
from scalewise.session.placement import Placement
from scalewise.session.torchrun import under_torchrun
from scalewise.step.settings import Precision
from scalewise.verbs.advise import advise
from scalewise.verbs.cluster_named import HERE, cluster_named
from scalewise.workloads.workload import Workload

AUTO = "auto"


@dataclass(frozen=True)
class Chosen:
    strategy: str
    devices: int
    why: str


def most_devices(placement: Placement) -> int:
    """One, which nobody needs to ask for, means all there are."""
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
) -> Chosen:
    """On up to as many devices as the placement has."""
    if placement.devices > 1 and not isinstance(workload, str):
        raise UserError("ranks need the name of a workload, as in 'file.py:function'; with an object use one device")
    machine = _machine(placement, on_progress)
    if placement.devices > machine.size:
        raise UserError(f"{machine.name} has {machine.size} devices, not {placement.devices}")
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
    return Chosen(advice.verdict.best.name, advice.verdict.best.prediction.devices, _why(advice))


def _machine(placement: Placement, on_progress: Callable[[str], None] | None) -> Cluster:
    if under_torchrun():
        raise UserError("--strategy auto asks about this machine; under torchrun name a strategy")
    if placement.device_kind == "slice":
        raise UserError("--strategy auto knows cpu and cuda devices, not slices; name a strategy")
    here, _ = cluster_named(HERE, on_progress)
    wanted = {"cpu": "gloo", "cuda": "nccl", AUTO: here.backend}[placement.device_kind]
    if wanted != here.backend:
        raise UserError(f"--strategy auto asks about this machine's {here.devices[0].name}; leave --device-kind out")
    if placement.hosts == 1 or placement.link is None:
        return here
    per_host = -(-placement.devices // placement.hosts)
    return replace(
        here,
        name=f"{here.name} as {placement.hosts} hosts at {placement.link}",
        hosts=placement.hosts,
        devices_per_host=per_host,
        devices=(replace(here.devices[0], count=per_host),),
        links=(*here.links, rehearsed(placement.link)),
        servers_apart=True,
    )


def _why(advice: Advice) -> str:
    """'auto chose mirrored on 2 devices: 12 ms a step (11 ms to 13 ms) predicted, 20 ms on one device'."""
    best, alone = advice.verdict.best.prediction, advice.rows[0].prediction
    name, count = advice.verdict.best.name, best.devices
    seconds = f"{seconds_text(best.seconds)} a step ({seconds_text(best.low)} to {seconds_text(best.high)}) predicted"
    if count > 1:
        return f"auto chose {name} on {count} devices: {seconds}, {seconds_text(alone.seconds)} on one"
    others = [row for row in advice.rows[1:] if row.prediction.strategy.exact]
    if not others:
        return f"auto chose one device: {seconds}; there are no others"
    second = min(others, key=lambda row: row.prediction.seconds)
    return (
        f"auto chose one device: {seconds}; the best of several, {second.name} on {second.prediction.devices}, "
        f"would take {seconds_text(second.prediction.seconds)}"
    )
