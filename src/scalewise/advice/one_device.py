"""Get the profile of one device on a workload: given, published, cached or measured now."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from scalewise.advice.given_figures import WEIGHTS, StepTimes, at_precision, with_step_times
from scalewise.advice.inputs import check_device, same_device
from scalewise.core.errors import UserError
from scalewise.core.units import gigabytes_text, seconds_text
from scalewise.formats.profile import Profile, ProfileDocument, StepCost
from scalewise.hardware.cluster import Cluster, Device
from scalewise.hardware.gpus import Gpu, find_gpu
from scalewise.models.catalogue import named
from scalewise.predict.memory import memory_doubt_bytes, profile_footprint, ready_by_flops
from scalewise.published.stevens import STUDY_MODELS, stevens_profile
from scalewise.published.tables import FORWARD_SHARE, LAYERS, OUTLINES, SAMPLES, outlined_profile
from scalewise.strategies.microbatches import MOST_PER_DEVICE

if TYPE_CHECKING:
    from scalewise.core.training_options import GivenPrecision, Precision
    from scalewise.models.workload import Workload


STEP_TIME = re.compile(r"([0-9.]+(?:e-?[0-9]+)?)\s*@\s*([0-9]+)")
CALLS, CALLS_PER_LAYER, PASSES = 150, 30, 10
"""Kernel launches of an eager step, per step and per layer, and memory passes over the weights: one in forward, two in
backward, seven for Adam. Chosen to match the linear model, whose steps take equally long at every batch: 4.0 ms on a
GTX 1080 Ti (estimated: 3.7), 1.65 ms on an H200 (estimated: 1.2)."""


def step_time_of(text: str) -> tuple[float, int]:
    """Parse '0.062@32' into (0.062 seconds, batch 32)."""
    match = STEP_TIME.fullmatch(text.strip())
    try:
        seconds, batch = (float(match[1]), int(match[2])) if match else (0.0, 0)
    except ValueError:
        seconds, batch = 0.0, 0
    if not 0 < seconds < math.inf or batch < 1:
        raise UserError(f"--step-time is '{text}'; write SECONDS@BATCH, as in 0.062@32")
    return seconds, batch


def minimum_step_seconds(device: Device, layers: int, parameter_bytes: int) -> float:
    """Estimate the seconds of a step with next to no samples: kernel launches and passes over the weights."""
    launch_seconds = (CALLS + CALLS_PER_LAYER * layers) * device.launch_us * 1e-6
    return launch_seconds + PASSES * parameter_bytes / (device.memory_GBps * 1e9)


def given_profile(outline: ProfileDocument, device: Device, step_time: tuple[float, int]) -> ProfileDocument:
    """Build the profile of a model from its layers and one step time."""
    seconds, batch = step_time
    forward = seconds * FORWARD_SHARE
    trained = sum(layer.parameter_bytes > 0 for layer in outline.layers)
    ready = ready_by_flops(profile_footprint(outline).parameter_names, outline.layers)
    step = StepCost(batch=batch, forward=forward, backward=seconds - forward, update=0, load=0, ready=ready)
    return outline.model_copy(
        update={
            "device": device.name,
            "samples_per_epoch": batch,
            "epoch_told": False,
            "quality": "calibrated",
            "least_seconds": minimum_step_seconds(device, trained, outline.parameter_bytes),
            "steps": (step,),
        }
    )


def published_profile(model: str, device: Device, step_time: tuple[float, int]) -> ProfileDocument:
    """Build the profile of a published model from its outline and one step time.

    Activations are split among the layers in proportion to their flops. That is enough to tell whether the whole model
    fits in memory, but says nothing about the size of one layer's output.
    """
    seconds, batch = step_time
    outline = outlined_profile(model, device.name, {batch: seconds})
    outline = outline.model_copy(
        update={
            "least_seconds": minimum_step_seconds(device, LAYERS[model], outline.parameter_bytes),
            "epoch_told": False,
            "quality": "calibrated",
        }
    )
    sample = SAMPLES.get(model)
    if sample is None:
        return outline
    footprint = profile_footprint(outline)
    whole = sum(layer.flops for layer in outline.layers)
    return outline.model_copy(
        update={
            "layers": tuple(
                layer.model_copy(update={"activation_bytes": round(1e6 * sample.kept_MB * layer.flops / whole)})
                for layer in outline.layers
            ),
            "steps": tuple(step.model_copy(update={"ready": footprint.ready}) for step in outline.steps),
            "footprint": {**asdict(footprint), "input_bytes": sample.input_bytes},
            "input_bytes": sample.input_bytes,
        }
    )


SECONDS = 20.0
"""Approximate time limit of profiling; batches that are not reached are extrapolated."""
DEFAULT_BATCH = 64


@dataclass(frozen=True)
class ProfileRequest:
    """Workload, cluster and batches for which the profile of one device is needed, and how to get it."""

    workload: str | Workload | None
    cluster: Cluster
    counts: Sequence[int]
    batch: Sequence[int]
    """Global batches; empty if none is given."""
    profile: Path | str | Profile | None = None
    step_time: str | Sequence[str] | None = None
    """One or several measured steps."""
    precision: GivenPrecision = "fp32"
    load: str = "auto"
    data: Path | str | None = None
    input_shape: str | None = None
    classes: int | None = None
    fresh: bool = False
    """Profile again instead of reading the cached profile."""
    on_progress: Callable[[str], None] | None = None
    ran_batch: int = 0
    """Largest batch per device that is known to run with the given step times."""


@dataclass(frozen=True)
class OneDevice:
    """Profile of one device and its origin."""

    document: ProfileDocument
    source: str
    """Origin of the profile, as in 'predicted from ...'."""
    default_batch: int
    """Global batch to predict if none is given."""
    graph_profile: ProfileDocument | None = None
    """Profile with the step as a CUDA graph, if one device can run it so; steps on several devices cannot be graphs."""


def profile_one_device(request: ProfileRequest) -> OneDevice:
    """Return the profile that is given, published or cached, or measure it on this machine."""
    if request.profile is not None and request.step_time is not None:
        raise UserError("both a profile and a step time are given; give one of them")
    if request.profile is not None:
        document = _read(request.profile)
        _check_same(request.workload, document)
        if scaled := _scaled(request, document):
            return scaled
        _check_unused(request, "a profile is given")
        check_device(f"the profile of {document.workload} was measured on", document.device, request.cluster)
        source = f"the given profile: {document.source}" if document.source else "the given profile"
        return OneDevice(document, source, _middle(document))
    if request.workload is None:
        raise UserError("no workload is given; name a WORKLOAD, or give --profile FILE")
    if request.step_time is not None:
        _check_unused(replace(request, input_shape=None, classes=None, precision="fp32"), "a step time is given")
        texts = [request.step_time] if isinstance(request.step_time, str) else request.step_time
        return _given(request, request.workload, [step_time_of(text) for text in texts])
    if request.precision.endswith(WEIGHTS):
        raise UserError(
            f"--precision {request.precision} is only for given step times; give --step-time, or use "
            f"{request.precision.removesuffix(WEIGHTS)}"
        )
    name = request.workload if isinstance(request.workload, str) else ""
    check_can_be_timed(name)
    if name in STUDY_MODELS and same_device("GTX 1080 Ti", request.cluster.devices[0].name):
        document = stevens_profile(name)
        _check_unused(request, f"{name} on {document.device} is predicted from the study's one-GPU column")
        return OneDevice(document, "the study's one-GPU column (E. Stevens 2020)", _middle(document))
    return _measured(request, request.workload)


def sizes_needed(batches: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Return the batches to profile on one device: the global batches, their shares per device, and micro-batches."""
    divisors = {divisor for count in counts for divisor in (count, count * MOST_PER_DEVICE)} | {1}
    return sorted({-(-batch // divisor) for batch in batches for divisor in divisors})


def check_can_be_timed(workload: str) -> None:
    """Raise UserError for a published model, which has no code to run."""
    if workload in OUTLINES:
        raise UserError(
            f"{workload} is a published outline without code, so it cannot be timed; give one measured step of one "
            "device, as in --step-time 0.062@32, or your own model, as path/to/file.py:function"
        )


def _check_same(workload: str | Workload | None, document: ProfileDocument) -> None:
    name = workload if isinstance(workload, str) or workload is None else workload.name
    if name not in (None, document.workload):
        raise UserError(f"the profile is of {document.workload}, not of {name}; name that workload, or none")


def _check_unused(request: ProfileRequest, reason: str) -> None:
    """Raise UserError for options that change how a device is timed, since no device is timed."""
    default = ProfileRequest(request.workload, request.cluster, request.counts, request.batch)
    flags = {"precision": "precision", "load": "load", "data": "data", "input": "input_shape", "classes": "classes"}
    given = [f"--{flag}" for flag, field in flags.items() if getattr(request, field) != getattr(default, field)]
    if given:
        has, it = ("has", "it") if len(given) == 1 else ("have", "them")
        raise UserError(
            f"{' and '.join(given)} {has} no effect, because {reason}; leave {it} out here, and give {it} to train"
        )


def _read(profile: Path | str | Profile) -> ProfileDocument:
    document = (profile if isinstance(profile, Profile) else Profile.read(Path(profile))).document
    if not document.steps:
        raise UserError(f"the profile of {document.workload} has no steps; create it again with `scalewise profile`")
    for step in document.steps:
        if not 0 < step.seconds < math.inf:
            raise UserError(
                f"the profile of {document.workload} has a step of {step.seconds:g} seconds at batch {step.batch}; "
                "create it again with `scalewise profile`"
            )
    return document


def _middle(document: ProfileDocument) -> int:
    return document.steps[len(document.steps) // 2].batch


def _given(request: ProfileRequest, workload: str | Workload, step_times: StepTimes) -> OneDevice:
    seconds, batch = step_times[0]
    device, notes = request.cluster.devices[0], []
    if isinstance(workload, str) and workload in OUTLINES:
        document = published_profile(workload, device, (seconds, batch))
        sample = SAMPLES.get(workload)
        if sample:
            notes.append(f"memory: weights and the activations of samples of {sample.shape}")
        else:
            notes.append("memory: weights only, activations are unknown")
    else:
        from scalewise.probe.untimed_profile import outline_of

        document = given_profile(outline_of(workload, request.input_shape, request.classes), device, (seconds, batch))
    document = at_precision(with_step_times(document, step_times), request.precision)
    document = document.model_copy(update={"ran_batch": request.ran_batch})
    if len(step_times) == 1:
        least = seconds_text(min(document.least_seconds, seconds))
        notes.append(f"kernel launches: an estimated {least} per step at any batch")
    notes += [] if request.precision == "fp32" else [PRECISION_NOTES.get(request.precision, request.precision)]
    if needed := memory_doubt_bytes(document, request.cluster):
        notes.append(
            f"memory: unknown, because the estimate for a measured step is {gigabytes_text(needed)} of "
            f"{gigabytes_text(device.memory_GB * 1e9)}"
        )
    steps = "one step of" if len(step_times) == 1 else f"{len(step_times)} step times,"
    shown = f"{seconds:g} s at batch {batch}" if len(step_times) == 1 else _batches_text(document)
    source = f"{steps} {shown} and the flops of its layers ({'; '.join(notes)})"
    return OneDevice(document.model_copy(update={"source": source}), source, _middle(document))


def profile_of_steps(cluster: Cluster, model: str, step_times: StepTimes, precision: str) -> ProfileDocument:
    """Profile of any model that can be named, from its step times on one device of a cluster."""
    name = named(model)
    request = ProfileRequest(name, cluster, [1], [], precision=cast("GivenPrecision", precision))
    return _given(request, name, step_times).document


PRECISION_NOTES = {
    "bf16": "bf16 autocast: weights and gradients are fp32",
    "fp16": "fp16 autocast: weights and gradients are fp32",
    "bf16-weights": "weights and gradients are bf16",
    "fp16-weights": "weights and gradients are fp16",
}


def _batches_text(document: ProfileDocument) -> str:
    batches = [step.batch for step in document.steps]
    return f"at batches {batches[0]} to {batches[-1]}"


COUNTED_PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""Precisions in which the operators of a model are counted."""


def _scaled(request: ProfileRequest, document: ProfileDocument) -> OneDevice | None:
    """Scale the profile of another GPU to the cluster's.

    None if it is of the same GPU, of a GPU that is not in the list, or itself predicted from a specification.
    """
    device = request.cluster.devices[0].name
    measured_on, gpu = find_gpu(document.device), find_gpu(device)
    if same_device(document.device, device) or measured_on is None or gpu is None:
        return None
    if document.quality not in ("measured", "calibrated") or document.precision not in COUNTED_PRECISIONS:
        return None
    if document.execution not in ("eager", "graph"):
        return None
    plain = replace(request, input_shape=None, classes=None)
    _check_unused(plain, "a profile is given")
    from scalewise.probe.untimed_profile import scaled_profile

    workload = document.workload if request.workload is None else request.workload
    scaled = scaled_profile(document, workload, measured_on, gpu, device, request.input_shape, request.classes)
    return OneDevice(scaled, scaled.source, _middle(scaled))


def _specified(request: ProfileRequest, workload: str | Workload, gpu: Gpu) -> OneDevice:
    """Predict the profile of a GPU that this machine does not have, from its specification."""
    from scalewise.probe.untimed_profile import specified_profile

    plain = replace(request, precision="fp32", input_shape=None, classes=None)
    _check_unused(plain, f"this machine has no {gpu.name}, whose step is predicted from its specification")
    sizes = sizes_needed(request.batch or (DEFAULT_BATCH,), request.counts)
    document = specified_profile(
        workload,
        gpu,
        request.cluster.devices[0].name,
        sizes,
        cast("Precision", request.precision),
        request.input_shape,
        request.classes,
    )
    return OneDevice(document, document.source, DEFAULT_BATCH)


def _measured(request: ProfileRequest, workload: str | Workload) -> OneDevice:
    """Profile a device of this machine, which must be the cluster's, at the batches that the prediction needs."""
    import torch

    from scalewise.launch.devices import device_name
    from scalewise.probe.profile import profile

    on_gpu = torch.cuda.is_available() and request.cluster.backend == "nccl"
    name = workload if isinstance(workload, str) else workload.name
    here, there = device_name(torch.device("cuda" if on_gpu else "cpu")), request.cluster.devices[0].name
    if not same_device(here, there) and (gpu := find_gpu(there)):
        return _specified(request, workload, gpu)
    check_device(
        f"without a profile, {name} is timed on this machine's",
        here,
        request.cluster,
    )
    sizes = sizes_needed(request.batch or (DEFAULT_BATCH,), request.counts)

    def timed_one(cost: StepCost) -> None:
        if request.on_progress:
            request.on_progress(f"one device, batch {cost.batch}: {seconds_text(cost.seconds)} per step")

    def timed(execution: str, sizes: Sequence[int]) -> Profile:
        return profile(
            workload,
            batch=sizes,
            device_kind="cuda" if on_gpu else "cpu",
            precision=cast("Precision", request.precision),
            execution=execution,  # type: ignore[arg-type]
            load=request.load,
            data=request.data,
            input_shape=request.input_shape,
            classes=request.classes,
            seconds=SECONDS,
            cached=not request.fresh,
            on_batch=timed_one,
        )

    # Steps on several devices run eagerly, so they are predicted from eager steps.
    eager = timed("eager", sizes)
    graph = timed("auto", sizes[-1:]).document if on_gpu else None
    source = "a profile of this machine's device" + (f", {eager.note}; --fresh measures again" if eager.note else "")
    return OneDevice(
        eager.document,
        source,
        min(DEFAULT_BATCH, eager.document.steps[-1].batch),
        graph if graph and graph.execution == "graph" else None,
    )
