"""`train --tuned`: execution options of a saved result of `scalewise tune`."""

from __future__ import annotations

from dataclasses import asdict, replace
from shlex import quote
from typing import TYPE_CHECKING, Any

from scalewise.core.errors import UserError
from scalewise.core.training_options import (
    EFFECTS,
    MODES_WITH_GRAPHS,
    ExecutionOptions,
    Settings,
    TrainingOptions,
    flag_of,
)
from scalewise.formats.tuned import TunedKey, TunedOptions, saved_options, tuned_options
from scalewise.launch.placement import Placement
from scalewise.strategies.base import Strategy

if TYPE_CHECKING:
    from scalewise.models.workload import Workload


def check_tuned(options: TrainingOptions) -> None:
    """Raise UserError if options are given that a tune result chooses."""
    if not options.tuned:
        return
    for name in EFFECTS:
        value = getattr(options, name)
        if name != "precision" and value != getattr(TrainingOptions, name):
            raise UserError(f"--tuned chooses {flag_of(name)}, but {flag_of(name)} {value} is given; leave one out")
    if options.device_kind == "slice":
        raise UserError("--tuned needs whole devices, but --device-kind is slice; valid: cpu, cuda")


def with_tuned_options(
    settings: Settings, strategy: Strategy, workload: str | Workload, options: TrainingOptions, batch_per_device: int
) -> tuple[Settings, list[str]]:
    """Return the settings with the options of the saved result for this workload and device, and notes on them."""
    if not isinstance(workload, str):
        raise UserError(f"--tuned finds results by the workload's name; name '{workload.name}' as FILE.py:FUNCTION")
    result = _saved_result(workload, options, batch_per_device)
    chosen, unused = _supported(result.options, strategy)
    settings = settings.with_execution(chosen)
    note = f"tuned: {result.text} on one device at batch {result.batch:,}, measured on {result.measured_at[:10]}"
    return settings, [note, *([f"tuned: {strategy.name} does not use {', '.join(unused)}"] if unused else [])]


def _saved_result(workload: str, options: TrainingOptions, batch: int) -> TunedOptions:
    import torch

    from scalewise.launch.devices import device_name, settle

    kind = settle(Placement(1, options.device_kind)).device_kind
    device = device_name(torch.device("cpu" if kind == "cpu" else "cuda:0"))
    key = TunedKey(workload, device, options.input_shape, options.classes, options.optimizer)
    if result := tuned_options(key, batch, options.precision):
        return result
    given = {
        "--input": options.input_shape,
        "--classes": options.classes,
        "--optimizer": options.optimizer,
        "--batch": batch,
        "--precision": None if options.precision == TrainingOptions.precision else options.precision,
    }
    arguments = [f"{flag} {quote(str(value))}" for flag, value in given.items() if value is not None]
    others = sorted({saved.precision for saved in saved_options(key)})
    raise UserError(
        f"'{workload}' has not been tuned on {device} in {options.precision} with these versions",
        f"run: scalewise tune {' '.join([quote(workload), *arguments])}",
        f"only in {', '.join(others)}" if others else "",
    )


def _supported(tuned: ExecutionOptions, strategy: Strategy) -> tuple[ExecutionOptions, list[str]]:
    """Return the options that ranks of a strategy can use, and the flags of those that they cannot."""
    unused = []
    for name, valid in strategy.executions.items():
        value = getattr(tuned, name)
        if value in valid or name == "precision":
            continue
        without_graphs = MODES_WITH_GRAPHS.get(value) if name == "compile_mode" else None
        fallback: Any = without_graphs if without_graphs in valid else asdict(ExecutionOptions())[name]
        unused.append(f"{flag_of(name)} {value}")
        tuned = replace(tuned, **{name: fallback})
    if not tuned.compiles:
        tuned = replace(tuned, compile_mode=TrainingOptions.compile_mode)
    return tuned, unused
