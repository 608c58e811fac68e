"""What is known of one device on a workload, and where from: given, shipped, kept from before, or measured now."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scalewise.advice.device import check_device, same_device
from scalewise.advice.given import given_profile, published_profile, step_time_of
from scalewise.clusters.cluster import Cluster
from scalewise.errors import UserError
from scalewise.published.models import OUTLINES, SAMPLES
from scalewise.published.stevens import MODELS, stevens_profile
from scalewise.results.profile import Profile, ProfileDocument, StepCost
from scalewise.results.units import seconds_text
from scalewise.strategies.microbatches import MOST_PER_DEVICE

if TYPE_CHECKING:
    from scalewise.step.settings import Precision
    from scalewise.workloads.workload import Workload

SECONDS = 20.0
"""That profiling takes at most, or about; larger batches are then extrapolated, and say so."""
DEFAULT_BATCH = 64


@dataclass(frozen=True)
class Asked:
    """What one device is needed for."""

    workload: str | Workload | None
    cluster: Cluster
    counts: Sequence[int]
    batch: Sequence[int]
    """Global; empty: none was named."""
    profile: Path | str | Profile | None = None
    step_time: str | None = None
    precision: Precision = "fp32"
    load: str = "auto"
    data: Path | str | None = None
    input_shape: str | None = None
    classes: int | None = None
    fresh: bool = False
    """Time it again, whatever is kept from before."""
    on_progress: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Known:
    document: ProfileDocument
    source: str
    """In words, for 'predicted from ...'."""
    default_batch: int
    captured: ProfileDocument | None = None
    """The same as a CUDA graph, where one device can do that and several cannot."""


def known_of(asked: Asked) -> Known:
    if asked.profile is not None and asked.step_time is not None:
        raise UserError("give a profile or a step time, not both")
    if asked.profile is not None:
        document = _read(asked.profile)
        _check_same(asked.workload, document)
        _check_unused(asked, "a profile is given")
        check_device(f"the profile is of {document.workload} on", document.device, asked.cluster)
        source = f"the profile given: {document.source}" if document.source else "the profile given"
        return Known(document, source, _middle(document))
    if asked.workload is None:
        raise UserError("nothing to advise on; name a WORKLOAD, or give --profile FILE")
    if asked.step_time is not None:
        _check_unused(replace(asked, input_shape=None, classes=None), "a step time is given")
        return _given(asked, asked.workload, asked.step_time)
    name = asked.workload if isinstance(asked.workload, str) else ""
    check_can_be_timed(name)
    if name in MODELS and same_device("GTX 1080 Ti", asked.cluster.devices[0].name):
        document = stevens_profile(name)
        _check_unused(asked, f"{name} on {document.device} is known from the study's one-GPU column only")
        return Known(document, "the study's one-GPU column (E. Stevens 2020)", _middle(document))
    return _measured(asked, asked.workload)


def sizes_needed(batches: Sequence[int], counts: Sequence[int]) -> list[int]:
    """What one device is given of these batches, alone or as one of so many: all, a share, or a micro-batch."""
    shares = {part for count in counts for part in (count, count * MOST_PER_DEVICE)} | {1}
    return sorted({-(-batch // part) for batch in batches for part in shares})


def check_can_be_timed(workload: str) -> None:
    if workload in OUTLINES:
        raise UserError(
            f"{workload} is known in outline only and cannot be timed here; give one measured step of one device, as "
            "in --step-time 0.062@32, or a model of your own, as path/to/file.py:function"
        )


def _check_same(workload: str | Workload | None, document: ProfileDocument) -> None:
    name = workload if isinstance(workload, str) or workload is None else workload.name
    if name not in (None, document.workload):
        raise UserError(f"the profile is of {document.workload}, not of {name}; name that, or no workload")


def _check_unused(asked: Asked, known: str) -> None:
    """What changes how a device is timed changes nothing where none is: better said than passed over."""
    usual = Asked(asked.workload, asked.cluster, asked.counts, asked.batch)
    flags = {"precision": "precision", "load": "load", "data": "data", "input": "input_shape", "classes": "classes"}
    given = [f"--{flag}" for flag, field in flags.items() if getattr(asked, field) != getattr(usual, field)]
    if given:
        them = "it" if len(given) == 1 else "them"
        raise UserError(f"{' and '.join(given)} would tell how to time one device, but {known}; leave {them} out")


def _read(profile: Path | str | Profile) -> ProfileDocument:
    document = (profile if isinstance(profile, Profile) else Profile.read(Path(profile))).document
    if not document.steps:
        raise UserError(f"the profile of {document.workload} has no steps")
    for step in document.steps:
        if not 0 < step.seconds < math.inf:
            raise UserError(
                f"the profile of {document.workload} has a step of {step.seconds:g} seconds, at batch {step.batch}"
            )
    return document


def _middle(document: ProfileDocument) -> int:
    return document.steps[len(document.steps) // 2].batch


def _given(asked: Asked, workload: str | Workload, step_time: str) -> Known:
    seconds, batch = step_time_of(step_time)
    device, notes = asked.cluster.devices[0], []
    if isinstance(workload, str) and workload in OUTLINES:
        document = published_profile(workload, device, (seconds, batch))
        sample = SAMPLES.get(workload)
        kept = f"what layers keep of a sample of {sample.shape}" if sample else "no activations, which are not counted"
        notes.append(f"memory is that of weights and {kept}")
    else:
        from scalewise.verbs.outline import outline_of

        document = given_profile(outline_of(workload, asked.input_shape, asked.classes), device, (seconds, batch))
    least = seconds_text(min(document.least_seconds, seconds))
    notes.append(f"launching is estimated to take {least} of a step, however few its samples")
    source = f"one step of {seconds:g} s at batch {batch} and its layers' flops ({'; '.join(notes)})"
    return Known(document.model_copy(update={"source": source}), source, batch)


def _measured(asked: Asked, workload: str | Workload) -> Known:
    """Of the device here, where that is the cluster's, at the batches that the question needs."""
    import torch

    from scalewise.session.hardware import device_name
    from scalewise.verbs.profile import profile

    on_gpu = torch.cuda.is_available() and asked.cluster.backend == "nccl"
    name = workload if isinstance(workload, str) else workload.name
    check_device(
        f"{name} would be profiled on this machine's",
        device_name(torch.device("cuda" if on_gpu else "cpu")),
        asked.cluster,
    )
    sizes = sizes_needed(asked.batch or (DEFAULT_BATCH,), asked.counts)

    def timed_one(cost: StepCost) -> None:
        if asked.on_progress:
            asked.on_progress(f"one device, batch {cost.batch}: {seconds_text(cost.seconds)} per step")

    def timed(execution: str, sizes: Sequence[int]) -> Profile:
        return profile(
            workload,
            batch=sizes,
            device_kind="cuda" if on_gpu else "cpu",
            precision=asked.precision,
            execution=execution,  # type: ignore[arg-type]
            load=asked.load,
            data=asked.data,
            input_shape=asked.input_shape,
            classes=asked.classes,
            seconds=SECONDS,
            cached=not asked.fresh,
            on_batch=timed_one,
        )

    # Steps of several devices are eager: only eager ones of one device are like them.
    eager = timed("eager", sizes)
    captured = timed("auto", sizes[-1:]).document if on_gpu else None
    source = "a profile of the device here" + (f", {eager.note}; --fresh makes a new one" if eager.note else "")
    return Known(
        eager.document,
        source,
        min(DEFAULT_BATCH, eager.document.steps[-1].batch),
        captured if captured and captured.execution == "graph" else None,
    )
