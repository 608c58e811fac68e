"""`scalewise advise`: from one device's profile to "add GPUs", "don't", and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from scalewise.advice.advice import Advice
from scalewise.advice.device import check_device, same_device
from scalewise.advice.given import given_profile, step_time_of
from scalewise.advice.rows import rows_of
from scalewise.advice.verdict import verdict_of
from scalewise.clusters.catalogue import cluster_of
from scalewise.clusters.cluster import Cluster
from scalewise.errors import UserError
from scalewise.prediction.predict import Predictor
from scalewise.published.models import OUTLINES, outlined_profile
from scalewise.published.stevens import MODELS, stevens_profile
from scalewise.results.profile import LayerCost, Profile, ProfileDocument
from scalewise.strategies.registry import STRATEGIES, strategy_of
from scalewise.strategies.strategy import Strategy


def advise(
    workload: str | None = None,
    *,
    profile: Path | str | Profile | None = None,
    step_time: str | None = None,
    cluster: str | Cluster | None = None,
    strategy: Sequence[str] = (),
    devices: Sequence[int] = (),
    batch: Sequence[int] = (),
    batch_per_device: int | None = None,
    samples: int | None = None,
) -> Advice:
    """Predict strategies x devices x batches on a cluster, and say what to do.

    >>> print(scalewise.advise("linear", cluster="4x-gtx-1080-ti", batch=[100]))
    """
    if cluster is None:
        raise UserError(
            "no cluster named; give --cluster a name (see scalewise list clusters), a TOML file, "
            "or '8 x a100-nvlink, 4 hosts, 100gbe'"
        )
    place = cluster_of(cluster) if isinstance(cluster, str) else cluster
    document, source = _profile(workload, profile, step_time, place, batch)
    if not document.steps:
        raise UserError(f"the profile of {document.workload} has no steps")
    counts = list(devices) or _counts(place.size)
    for count in counts:
        if not 1 <= count <= place.size:
            raise UserError(f"{place.name} has 1 to {place.size} devices, not {count}")
    batches = list(batch) or [document.steps[len(document.steps) // 2].batch]
    if batch_per_device is not None:
        batches = [batch_per_device * count for count in sorted(counts, reverse=True)]
    if samples is None and step_time is not None:
        samples = max(batches)  # nobody said how many make an epoch
    if samples is not None:
        document = document.model_copy(update={"samples_per_epoch": samples})
    predictor = Predictor(document, place)
    chosen = [strategy_of(text) for text in strategy] or _strategies(place)
    rows = rows_of(predictor, [each for each in chosen if each.name != "single"], counts, batches)
    first = [row for row in rows if row.prediction.batch == batches[0]]
    return Advice(document, source, place, rows, verdict_of(predictor, first))


def _counts(size: int) -> list[int]:
    """1, 2, 4, ... and all."""
    return sorted({2**power for power in range(int(math.log2(size)) + 1)} | {size})


def _strategies(cluster: Cluster) -> list[Strategy]:
    """All but one device; on the GPUs of one host torch's own DataParallel, elsewhere ours."""
    threads = cluster.backend == "nccl" and cluster.hosts == 1
    made = [strategy_of(name) for name in STRATEGIES if name != "single"]
    return [strategy_of("data-parallel:engine=threads") if threads and s.name == "data-parallel" else s for s in made]


def _profile(
    workload: str | None,
    profile: Path | str | Profile | None,
    step_time: str | None,
    cluster: Cluster,
    batch: Sequence[int],
) -> tuple[ProfileDocument, str]:
    """What is known of one device, and where from."""
    if profile is not None and step_time is not None:
        raise UserError("give a profile or a step time, not both")
    device = cluster.devices[0].name
    if profile is not None:
        read = profile if isinstance(profile, Profile) else Profile.read(Path(profile))
        check_device(f"the profile is of {read.document.workload} on", read.document.device, cluster)
        return read.document, "the profile given"
    if workload is None:
        raise UserError("nothing to advise on; name a WORKLOAD, or give --profile FILE")
    if step_time is not None:
        given = step_time_of(step_time)
        source = f"one step of {given[0]:g} s at batch {given[1]} and its layers' flops"
        if workload in OUTLINES:
            return outlined_profile(workload, device, {given[1]: given[0]}), source
        return given_profile(workload, device, given, *_layers(workload)), source
    if workload in MODELS and same_device("GTX 1080 Ti", device):
        return stevens_profile(workload), "the study's one-GPU column (E. Stevens 2020)"
    return _measured(workload, cluster, batch), "a profile of the device here"


def _layers(workload: str) -> tuple[tuple[LayerCost, ...], int]:
    if workload in MODELS:
        profile = stevens_profile(workload)
        return profile.layers, profile.input_bytes
    from scalewise.verbs.describe import describe

    described = describe(workload)
    layers = tuple(
        LayerCost(
            name=layer.name,
            parameter_bytes=layer.parameter_bytes,
            activation_bytes=layer.activation_bytes,
            flops=layer.flops,
        )
        for layer in described.layers
    )
    return layers, described.input_bytes


def _measured(workload: str, cluster: Cluster, batch: Sequence[int]) -> ProfileDocument:
    """Of the device here, where that is the cluster's, at the batches that the question needs."""
    import torch

    from scalewise.session.hardware import device_name
    from scalewise.verbs.profile import profile

    here = device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    check_device(f"{workload} would be profiled on this machine's", here, cluster)
    sizes = sorted({-(-size // count) for size in batch or (64,) for count in _counts(cluster.size)})
    return profile(workload, batch=sizes).document
