"""Checkpoints: one safetensors file with weights, optimizer state and progress, by parameter name, for any strategy."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from scalewise.atomic import write_atomically
from scalewise.errors import UserError
from scalewise.step.optimizers import placed_state
from scalewise.step.settings import Settings
from scalewise.step.streams import States, Stream, states
from scalewise.workloads.workload import Workload

SCHEMA = 1
_MAY_DIFFER = {"steps_done", "accumulate"}
"""A batch has the same gradients in however many parts, and some strategies choose their own."""


@dataclass(frozen=True)
class Progress:
    """How far a run is, and what makes its continuation the same run."""

    workload: str
    samples: int
    batch: int
    optimizer: str
    learning_rate: float
    seed: int
    accumulate: int
    precision: str
    steps_done: int

    def mismatch(self, other: Progress) -> str | None:
        """The first thing in which the run that wrote the file differs from the one that reads it."""
        for key, mine in asdict(self).items():
            theirs = getattr(other, key)
            if key not in _MAY_DIFFER and mine != theirs:
                return f"it was written with {key} {mine}, this run has {theirs}"
        return None


def progress_of(workload: Workload, samples: int, settings: Settings, steps_done: int) -> Progress:
    return Progress(
        workload=workload.name,
        samples=samples,
        batch=settings.batch,
        optimizer=settings.optimizer or workload.optimizer,
        learning_rate=settings.learning_rate or workload.learning_rate,
        seed=settings.seed,
        accumulate=settings.accumulate,
        precision=settings.precision,
        steps_done=steps_done,
    )


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    random: Sequence[States] | None = None,
) -> None:
    """Atomic: the file is the old one or the new one, whatever happens meanwhile. `random`: the states of all ranks'
    generators; None: only this one's."""
    tensors: dict[str, Tensor] = {f"model/{name}": tensor for name, tensor in _unshared(model).items()}
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    scalars: dict[str, float] = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{names[parameter]}/{key}"] = value
            elif value is not None:
                scalars[f"{names[parameter]}/{key}"] = value
    for rank, found in enumerate(random or [states()]):
        tensors |= {f"{_random(rank)}{kind}": state for kind, state in found.items()}
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"schema": str(SCHEMA), "progress": json.dumps(asdict(progress)), "scalars": json.dumps(scalars)}
    metadata["checksum"] = _checksum(content, metadata)
    write_atomically(path, save(content, metadata))


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    expected: Progress,
    stream: Stream | None = None,
) -> Progress:
    """Put the state of `path` into model, optimizer and generators; a UserError if it is another run's or damaged."""
    progress, tensors, scalars = _read(path, expected)
    try:
        model.load_state_dict(_part(tensors, "model/"), strict=not _tied(model))
    except RuntimeError as error:
        raise UserError(f"checkpoint {path} does not fit the model: {str(error).splitlines()[-1].strip()}") from error
    if optimizer is not None:
        for name, parameter in model.named_parameters():
            if state := _part(tensors, f"optimizer/{name}/") | _part(scalars, f"{name}/"):
                optimizer.state[parameter] = {
                    key: placed_state(key, value, parameter, optimizer) for key, value in state.items()
                }
    random = [_part(tensors, _random(0))]
    while state := _part(tensors, _random(len(random))):
        random.append(state)
    (stream or Stream(progress.seed)).go_on(random, progress.steps_done)
    return progress


def refuse_if_through(settings: Settings, steps_done: int, total: int) -> None:
    """A UserError where nothing is left to do."""
    if settings.resume and steps_done >= total:
        raise UserError(
            f"checkpoint {settings.checkpoint} is already at step {steps_done} of {total}; "
            "ask for more --epochs or --steps to go on"
        )


def _read(path: Path, expected: Progress) -> tuple[Progress, dict[str, Tensor], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        if metadata.get("schema") != str(SCHEMA):
            raise UserError(
                f"{path} is not a checkpoint of Scalewise (schema {metadata.get('schema')}, expected {SCHEMA})"
            )
        if metadata["checksum"] != _checksum(tensors, metadata):
            raise ValueError("its checksum does not match its content")
        progress = Progress(**json.loads(metadata["progress"]))
        scalars = json.loads(metadata["scalars"])
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {path} to resume from") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"checkpoint {path} is damaged and cannot be read ({error}); remove it to start anew"
        ) from error
    if difference := progress.mismatch(expected):
        raise UserError(f"checkpoint {path} is of another run: {difference}")
    return progress, tensors, scalars


def _random(rank: int) -> str:
    """Where the states of its generators are: those of a run on one device, and of rank 0, have no number."""
    return f"random/{rank}/" if rank else "random/"


def _checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """Of everything that is loaded: safetensors checks sizes only, and a flipped bit would be trained on."""
    sum_so_far = zlib.crc32((metadata["progress"] + metadata["scalars"]).encode())
    for name in sorted(tensors):
        content = tensors[name].reshape(-1).view(torch.uint8).numpy().data
        sum_so_far = zlib.crc32(content, zlib.crc32(name.encode(), sum_so_far))
    return f"{sum_so_far:08x}"


def _part(entries: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): entry for name, entry in entries.items() if name.startswith(prefix)}


def _unshared(model: nn.Module) -> dict[str, Tensor]:
    """The state without the second name of a tied tensor: safetensors refuses shared memory."""
    seen: set[int] = set()
    return {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not (tensor.data_ptr() in seen or seen.add(tensor.data_ptr()))  # type: ignore[func-returns-value]
    }


def _tied(model: nn.Module) -> bool:
    return len(_unshared(model)) < len(model.state_dict())
