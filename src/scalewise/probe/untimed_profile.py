"""Profiles that are not timed here: sizes, layers and stages of workloads; predicted and scaled steps of GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import nn

from scalewise.core.errors import UserError
from scalewise.core.training_options import Precision
from scalewise.data.dataset import Data, DataRequest
from scalewise.engines.stages import refuse_shared
from scalewise.formats.profile import LayerCost, ProfileDocument, StepCost
from scalewise.hardware.gpus import Gpu
from scalewise.models.chain import WEIGHED
from scalewise.models.describe import Description, describe
from scalewise.models.footprint import footprint_of
from scalewise.models.model_split import SplittableChain, declared_chain, split_by_export
from scalewise.models.operator_counts import count_batches, counted_loss
from scalewise.models.resolve import resolve
from scalewise.models.workload import Workload
from scalewise.predict.gpu_model import Execution
from scalewise.predict.memory import profile_footprint, ready_by_flops
from scalewise.predict.operators import MATRIX_KINDS, BatchLine, Operator, Phase
from scalewise.predict.step_seconds import predict_step, scale_from
from scalewise.strategies.plan import Footprint


@cache
def outline_of(workload: str | Workload, input_shape: str | None = None, classes: int | None = None) -> ProfileDocument:
    """Profile document of a workload with its sizes and layers, and no timed steps."""
    resolved = resolve(workload, input_shape, classes) if isinstance(workload, str) else workload
    described = describe(resolved)
    return ProfileDocument(
        workload=resolved.name,
        device="",
        execution="eager",
        samples_per_epoch=1,
        parameter_bytes=described.parameter_bytes,
        input_bytes=described.input_bytes,
        footprint=as_json(footprint_of(resolved, resolved.data(DataRequest(samples=2)))),
        layers=layer_costs(described),
        modules=described.modules,
        module_calls=described.module_calls,
        steps=(),
    )


def with_stages(
    document: ProfileDocument,
    workload: str | Workload,
    path: Path | None = None,
    input_shape: str | None = None,
    classes: int | None = None,
) -> ProfileDocument:
    """Add the sections from which training builds pipeline stages, or the reason why the model cannot be split.

    A model that does not say where it can be split is exported with torch.export, which takes seconds.
    """
    footprint = document.footprint
    if not footprint or footprint.get("sections") or footprint.get("not_in_stages"):
        return document
    stages = _stages_of(workload, path, input_shape, classes)
    return document.model_copy(update={"footprint": {**footprint, **stages}})


@lru_cache(maxsize=1)
def _stages_of(
    workload: str | Workload, path: Path | None, input_shape: str | None, classes: int | None
) -> dict[str, Any]:
    """Fields of the footprint that describe the sections, found once for all clusters that are compared.

    Only one result is cached, because a workload may hold its data.
    """
    resolved = resolve(workload, input_shape, classes) if isinstance(workload, str) else workload
    data = resolved.data(DataRequest(path, samples=WEIGHED))
    with torch.random.fork_rng(devices=[]):
        try:
            return _stages_on("meta", resolved, data)
        except Exception:  # some models need real numbers; an error that occurs on the CPU too is the model's own
            try:
                return _stages_on("cpu", resolved, data)
            except UserError as error:
                return {"not_in_stages": str(error)}
            except Exception as error:  # the user's model may raise anything
                message = f"{type(error).__name__}: {' '.join(str(error).split())}"
                return {"not_in_stages": f"'{resolved.name}' fails on its own data: {message}"}


def _stages_on(device: str, workload: Workload, data: Data) -> dict[str, Any]:
    """Footprint fields that describe the sections of a model, split as the engines split it."""
    with torch.device(device):
        model = workload.model()
    chain = declared_chain(workload, data, model, "") or split_by_export(
        workload, data, model, stages=2, cut="", size=WEIGHED, device=device
    )
    try:
        _refuse_shared_everywhere(model, chain)
    except UserError as error:  # the same on every device
        return {"not_in_stages": str(error)}
    sections = json.loads(json.dumps([asdict(section) for section in chain.sections]))
    return {"sections": sections, "exported": chain.fixed_batch is not None}


def _refuse_shared_everywhere(model: nn.Module, chain: SplittableChain) -> None:
    """Raise UserError if every split separates modules that share weights, such as tied embeddings."""
    count = len(chain.sections)
    for border in range(1, count):
        try:
            refuse_shared(model, chain, [range(border), range(border, count)])
        except UserError as error:
            refusal = error
        else:
            return
    if count > 1:
        raise refusal


def as_json(footprint: Footprint) -> dict[str, Any]:
    """Footprint as JSON types, equal to what reading a saved profile returns."""
    return json.loads(json.dumps(asdict(footprint)))  # type: ignore[no-any-return]


def layer_costs(described: Description) -> tuple[LayerCost, ...]:
    return tuple(
        LayerCost(
            name=layer.name,
            parameter_bytes=layer.parameter_bytes,
            activation_bytes=layer.activation_bytes,
            flops=layer.flops,
            module=layer.module,
        )
        for layer in described.layers
    )


PHASES: tuple[Phase, ...] = get_args(Phase)


def specified_profile(
    workload: str | Workload,
    gpu: Gpu,
    device: str,
    batches: Sequence[int],
    precision: Precision = "fp32",
    input_shape: str | None = None,
    classes: int | None = None,
) -> ProfileDocument:
    """Profile at these batches; nothing is computed and no weight is allocated."""
    outline = outline_of(workload, input_shape, classes)
    line = _counted(workload, input_shape, classes, precision)
    ready = ready_by_flops(profile_footprint(outline).parameter_names, outline.layers)
    steps: list[StepCost] = []
    unknown: set[str] = set()
    for batch in sorted(set(batches)):
        operators = line.at(batch)
        whole = predict_step(operators, gpu)
        parts = _phase_seconds(operators, gpu, whole.seconds)
        steps.append(
            StepCost(
                batch=batch,
                load=0.0,
                forward=parts["forward"],
                backward=parts["backward"],
                update=parts["update"],
                ready=ready,
                uncertainty=(whole.low / whole.seconds, whole.high / whole.seconds),
            )
        )
        unknown.update(whole.unknown)
    slow = f"; {gpu.lacks_units(precision)}" if gpu.lacks_units(precision) else ""
    counted = f"; counted by their bytes only: {', '.join(sorted(unknown))}" if unknown else ""
    return outline.model_copy(
        update={
            "device": device,
            "precision": precision,
            "epoch_told": False,
            "quality": "specification",
            "training_flops": _matrix_flops(line),
            "samples_per_epoch": max(batches),
            "steps": tuple(steps),
            "source": f"the specification of {gpu.name}: no step was measured{slow}{counted}",
        }
    )


def scaled_profile(
    measured: ProfileDocument,
    workload: str | Workload,
    measured_on: Gpu,
    gpu: Gpu,
    device: str,
    input_shape: str | None = None,
    classes: int | None = None,
) -> ProfileDocument:
    """Scale the profile of one GPU to another GPU, operator by operator.

    Every phase takes its measured seconds times the ratio of its operators' predicted seconds on both GPUs.
    """
    execution: Execution = "graph" if measured.execution == "graph" else "eager"
    line = _counted(workload, input_shape, classes, cast("Precision", measured.precision), execution)
    steps, ratios = list[StepCost](), list[float]()
    for step in measured.steps:
        operators = line.at(step.batch)
        on_device = step.forward + step.backward + step.update
        whole = scale_from(operators, measured_on, on_device, gpu, execution=execution)
        parts = {
            phase: getattr(step, phase) * after / before if before else 0.0
            for phase, before, after in _phases_on(operators, measured_on, gpu, execution)
        }
        factor = whole.seconds / sum(parts.values())
        ratios.append(whole.seconds / on_device)
        steps.append(
            step.model_copy(
                update={
                    **{phase: factor * part for phase, part in parts.items()},
                    "step_seconds": None,
                    "uncertainty": (whole.low / whole.seconds, whole.high / whole.seconds),
                }
            )
        )
    times = f"{min(ratios):.2f}" + (f" to {max(ratios):.2f}" if max(ratios) > 1.01 * min(ratios) else "")
    return measured.model_copy(
        update={
            "device": device,
            "quality": "scaled",
            "training_flops": _matrix_flops(line),
            "steps": tuple(steps),
            "in_step": (),
            "source": f"a profile of {measured.device}, scaled operator by operator to {gpu.name} ({times} times the "
            "seconds)",
        }
    )


def _phases_on(
    operators: Sequence[Operator], measured_on: Gpu, gpu: Gpu, execution: Execution
) -> Iterator[tuple[str, float, float]]:
    """Yield each phase with the predicted seconds of its operators on both GPUs."""
    for phase in PHASES:
        own = [operator for operator in operators if operator.phase == phase]
        before, after = (predict_step(own, card, execution=execution).gpu_seconds for card in (measured_on, gpu))
        yield phase, before, after


@cache
def _counted(
    workload: str | Workload,
    input_shape: str | None,
    classes: int | None,
    precision: Precision,
    execution: Execution = "eager",
) -> BatchLine:
    """Count operators once for all GPUs that are compared."""
    resolved = resolve(workload, input_shape, classes) if isinstance(workload, str) else workload
    try:
        return count_batches(
            resolved.model,
            resolved.example,
            loss=counted_loss(resolved),
            optimizer=resolved.optimizer,
            precision=precision,
            execution=execution,
        )
    except UserError:
        raise
    except Exception as error:  # the user's model may raise anything under fake tensors
        message = " ".join(str(error).split())[:200]
        raise UserError(
            f"the operators of '{resolved.name}' cannot be counted without running it ({type(error).__name__}: "
            f"{message})",
            "give one measured step, as in --step-time 0.062@32",
        ) from error


def _matrix_flops(line: BatchLine) -> float:
    """Flops of matrix products per sample; operators that recompute activations count too."""
    return sum(row.flops * row.count for row in line.high if row.kind in MATRIX_KINDS) / line.high_batch


def _phase_seconds(operators: Sequence[Operator], gpu: Gpu, seconds: float) -> dict[str, float]:
    """Seconds of forward, backward and update, which sum to `seconds`."""
    parts = {}
    for phase in PHASES:
        own = [operator for operator in operators if operator.phase == phase]
        parts[str(phase)] = predict_step(own, gpu).seconds if own else 0.0
    whole = sum(parts.values())
    return {phase: part * seconds / whole for phase, part in parts.items()}
