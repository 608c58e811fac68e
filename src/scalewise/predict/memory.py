"""Footprint of a profiled workload, and the peak memory that one device needs for a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from scalewise.core.errors import UserError, in_our_words
from scalewise.formats.profile import LayerCost, ProfileDocument
from scalewise.hardware.cluster import Cluster
from scalewise.predict.device_costs import Costs
from scalewise.strategies.base import Strategy
from scalewise.strategies.plan import Footprint, Section
from scalewise.strategies.rank_memory import LayerMemories, LayerMemory, RankMemory, StagePass, TrainingRun, weights_of


def profile_footprint(profile: ProfileDocument) -> Footprint:
    """Footprint of a profile.

    Gradients become ready as measured. Without measurement, they do from the last layer to the first, in proportion
    to the flops of the layers.
    """
    if profile.footprint:
        footprint = _cached_footprint(profile)
        ready = _measured_ready(profile, len(footprint.parameter_bytes))
        return replace(footprint, ready=ready, modules=_modules(profile), module_calls=_module_calls(profile))
    layers = [layer for layer in reversed(profile.layers) if layer.parameter_bytes]
    sizes = tuple(layer.parameter_bytes for layer in layers) or (profile.parameter_bytes,)
    return Footprint(
        parameter_bytes=sizes,
        input_bytes=profile.input_bytes,
        target_bytes=0,
        output_bytes=profile.layers[-1].activation_bytes if profile.layers else 0,
        ready=_measured_ready(profile, len(sizes)) or _ready_by_flops(profile),
        sections=_sections(profile),
        modules=_modules(profile),
        module_calls=_module_calls(profile),
    )


def _module_calls(profile: ProfileDocument) -> int:
    return profile.module_calls or len(profile.layers)


def _modules(profile: ProfileDocument) -> int:
    return profile.modules or profile.module_calls or len({layer.module or layer.name for layer in profile.layers})


def _sections(profile: ProfileDocument) -> tuple[Section, ...]:
    """Sections of a profile without footprint, assuming that a layer's output is read by the next layer only.

    Empty if the profile has no activation sizes.
    """
    if not any(layer.activation_bytes for layer in profile.layers):
        return ()
    return tuple(
        Section(
            name=layer.name,
            flops=layer.flops,
            parameter_bytes=layer.parameter_bytes,
            kept_bytes=layer.activation_bytes,
            passed_bytes=(layer.activation_bytes,),
            returned_bytes=(layer.activation_bytes,),
        )
        for layer in profile.layers
    )


_FOOTPRINTS: dict[int, tuple[dict[str, Any], Footprint]] = {}
"""Parsed footprints by the identity of their document, which copies of a profile share."""
MOST_CACHED = 16


def _cached_footprint(profile: ProfileDocument) -> Footprint:
    cached = _FOOTPRINTS.get(id(profile.footprint))
    if cached is None:
        if len(_FOOTPRINTS) >= MOST_CACHED:
            _FOOTPRINTS.clear()
        cached = _FOOTPRINTS[id(profile.footprint)] = (profile.footprint, _parsed_footprint(profile))
    return cached[1]


def _parsed_footprint(profile: ProfileDocument) -> Footprint:
    try:
        return _adapter().validate_python(profile.footprint)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"the profile of {profile.workload} has an invalid footprint: {where}: {in_our_words(first['msg'])}"
        ) from None


@cache
def _adapter() -> TypeAdapter[Footprint]:
    return TypeAdapter(Footprint)


def _measured_ready(profile: ProfileDocument, count: int) -> tuple[float, ...]:
    """Measured times at which gradients are ready, at the largest batch, where kernel launches matter least."""
    return next((step.ready for step in reversed(profile.steps) if len(step.ready) == count), ())


def _ready_by_flops(profile: ProfileDocument) -> tuple[float, ...]:
    return tuple(done for layer, done in done_by_flops(profile.layers) if layer.parameter_bytes)


def done_by_flops(layers: Sequence[LayerCost]) -> list[tuple[LayerCost, float]]:
    """Layers from last to first, each with the fraction of backward at its end; empty if flops are unknown."""
    backward = list(reversed(layers))
    total = sum(layer.flops for layer in backward)
    done = accumulate(layer.flops for layer in backward)
    return [(layer, flops / total) for layer, flops in zip(backward, done, strict=True)] if total else []


OPTIMIZER_COPIES = {"adam": 2, "adamw": 2, "momentum": 1, "adagrad": 1}
"""Copies of the weights in the state of each optimizer; others have almost no state."""


@dataclass(frozen=True)
class Memory:
    """Peak memory of a device in bytes, by purpose."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    inputs: int = 0
    buffers: int = 0
    workspace: int = 0
    """Workspace of libraries while they compute (cuDNN, oneDNN), and the workspace that cuBLAS keeps."""

    @property
    def parts(self) -> dict[str, int]:
        return asdict(self)

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def peak_memory(held: RankMemory, optimizer: str = "adam", limit_bytes: int | None = None) -> Memory:
    """Memory at the moment of a step that needs most. In backward, activations are freed and gradients allocated.

    activations  ######  ####    ##
    gradients            ##      ####    ######
                 loss    backward        update

    `limit_bytes`: memory of a device whose library uses at most the remaining memory as workspace, as cuDNN does.
    """
    fixed = _fixed_memory(held, optimizer)
    fixed_bytes = fixed.total

    def workspace(moment: _Moment) -> int:
        if limit_bytes is None:
            return moment.workspace
        changing_bytes = moment.fetched + moment.gradients + moment.activations
        return min(moment.workspace, max(0, limit_bytes - fixed_bytes - changing_bytes))

    fullest = max(
        _moments(held), key=lambda moment: moment.fetched + moment.gradients + moment.activations + workspace(moment)
    )
    return replace(
        fixed,
        weights=fixed.weights + fullest.fetched,
        gradients=fullest.gradients,
        activations=fullest.activations,
        workspace=fixed.workspace + workspace(fullest),
    )


class _Moment(NamedTuple):
    """Bytes that change during a step."""

    fetched: int
    """Bytes of fetched weights; 0 if all weights are always on the device."""
    gradients: int
    activations: int
    workspace: int = 0


def _fixed_memory(held: RankMemory, optimizer: str) -> Memory:
    """Memory that a rank needs during the whole step."""
    trained = weights_of(held.layers)
    frozen = sum(layer.frozen_bytes for layer in held.layers)
    updated = trained if held.updated_bytes is None else held.updated_bytes
    return Memory(
        weights=frozen + (trained if held.fetched_bytes is None else 0),
        optimizer=OPTIMIZER_COPIES.get(optimizer, 0) * updated if held.updates else 0,
        inputs=held.input_bytes,
        buffers=held.buffer_bytes,
        workspace=sum(dict(kept for layer in held.layers for kept in layer.libraries).values()),
    )


def _moments(held: RankMemory) -> Iterator[_Moment]:
    trained = weights_of(held.layers)
    none = (0,) * len(held.layers)
    fetched, fetched_again = held.fetched_bytes or none, held.fetched_again_bytes or none
    yield _Moment(0, 0, held.ahead_bytes)
    for stage_pass in held.passes or _forward_and_backward(held, trained):
        kept_bytes = list(accumulate(held.layers[at].kept_bytes for at in stage_pass.layers))
        gradients = 0
        for at, kept_so_far in zip(reversed(stage_pass.layers), reversed(kept_bytes), strict=True):
            layer = held.layers[at]
            if stage_pass.phase == "forward":
                activations = stage_pass.beside_bytes + kept_so_far + layer.forward_bytes
                yield _Moment(fetched[at], stage_pass.gradient_bytes, activations, layer.workspace_bytes[0])
                continue
            gradients += sum(layer.parameters)
            new = max(layer.parameters, default=0) if stage_pass.adds else gradients
            activations = stage_pass.beside_bytes + kept_so_far + layer.backward_bytes + held.returned_bytes
            yield _Moment(fetched_again[at], stage_pass.gradient_bytes + new, activations, layer.workspace_bytes[1])
    yield _Moment(0, (0 if held.gradients == "leave" else trained) + held.flat_bytes, 0)


def _forward_and_backward(held: RankMemory, trained: int) -> tuple[StagePass, StagePass]:
    layers, permanent = range(len(held.layers)), trained if held.gradients == "stay" else 0
    adds = held.gradients != "anew"
    return StagePass(layers, "forward", 0, permanent), StagePass(layers, "backward", 0, permanent, adds)


def memory_bytes(
    profile: ProfileDocument,
    costs: Costs,
    strategy: Strategy,
    batch_per_device: int,
    devices: int = 1,
    cluster: Cluster | None = None,
) -> int:
    """Peak memory of the fullest device.

    Starts from the profiled peak of one device, linear in the batch, and adds the planned difference between the
    strategy and a single device. Without profiled peaks, all memory is planned from the layers. Without `cluster`,
    devices are CPU cores.
    """
    on_gpu = cluster is not None and cluster.has_gpus
    footprint = replace(profile_footprint(profile), on_gpu=on_gpu)
    through_host = on_gpu and cluster is not None and cluster.backend == "gloo"
    run = TrainingRun(devices, batch_per_device * devices, footprint, on_gpu, through_host)
    layers = _layers_of(profile, strategy.samples_at_once(run))
    # Inner devices are alike, so the first two, one in the middle and the last represent many.
    ranks = range(devices) if devices <= 8 else (0, 1, devices // 2, devices - 1)
    planned = max(peak_memory(strategy.rank_memory(rank, run, layers)).total for rank in ranks)
    peaks = [(step.batch, step.peak_memory_bytes) for step in costs.steps if step.peak_memory_bytes]
    if not peaks:
        return planned
    (first, low), (last, high) = peaks[0], peaks[-1]
    alone = peak_memory(RankMemory(_layers_of(profile, batch_per_device), run.inputs(batch_per_device))).total
    activation_bytes = sum(layer.activation_bytes for layer in profile.layers)
    per_sample = (high - low) / (last - first) if last > first else 2 * activation_bytes
    measured = low + per_sample * (batch_per_device - first)
    return round(max(measured, 4 * profile.parameter_bytes)) + planned - alone


def memory_doubt_bytes(profile: ProfileDocument, cluster: Cluster) -> int:
    """Estimated peak of the largest batch that ran, if that is more than a device has memory; 0 otherwise.

    The estimate is then wrong, so the memory of other steps of this model is unknown. Only for step times that a user
    gave, which have no measured peaks.
    """
    if not profile.least_seconds or not profile.steps or any(step.peak_memory_bytes for step in profile.steps):
        return 0
    batch = max(profile.ran_batch, *(step.batch for step in profile.steps))
    run = TrainingRun(1, batch, replace(profile_footprint(profile), on_gpu=cluster.has_gpus), cluster.has_gpus, False)
    needed = peak_memory(RankMemory(_layers_of(profile, batch), run.inputs(batch))).total
    return needed if needed > cluster.devices[0].memory_GB * 1e9 else 0


def _layers_of(profile: ProfileDocument, samples: int) -> LayerMemories:
    """Memory of the layers of a profile, estimated from their outputs: backward needs a layer's output, the output's
    gradient and the input's gradient."""
    if not profile.layers:
        return (LayerMemory("", (profile.parameter_bytes,), 0, 0, 0),)
    boundaries = [profile.input_bytes, *(layer.activation_bytes for layer in profile.layers)]
    return tuple(
        LayerMemory(
            layer.module or layer.name,
            (layer.parameter_bytes,),
            layer.activation_bytes * samples,
            0,
            sum(around) * samples,
            backward_by_layer=((at, layer.activation_bytes * samples),) if at < len(profile.layers) else (),
        )
        for at, (layer, around) in enumerate(zip(profile.layers, pairwise(boundaries), strict=True), 1)
    )


def ready_by_flops(names: Sequence[str], layers: Sequence[LayerCost]) -> tuple[float, ...]:
    """Part of backward after which each parameter's gradient is complete, in proportion to the flops of the layers."""
    ends = {layer.module or layer.name: done for layer, done in done_by_flops(layers)}
    # Gradients of branches may become ready in another order than layers end.
    ready = accumulate((ends.get(name.rpartition(".")[0], 1.0) for name in names), max)
    return tuple(min(end, 1.0) for end in ready) if ends else ()
