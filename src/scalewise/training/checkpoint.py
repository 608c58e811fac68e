"""Checkpoints: weights, optimizer state and progress in one safetensors file."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from scalewise.core.errors import RunFailed, UserError
from scalewise.core.files import write_atomically
from scalewise.core.training_options import Settings
from scalewise.models.workload import Workload
from scalewise.runtime.execution import States, Stream, states
from scalewise.runtime.optimizers import placed_state

SCHEMA = 1
_MAY_DIFFER = {"steps_done", "accumulate"}
"""Fields in which a resumed run may differ. Accumulation does not change gradients, and some strategies choose it."""


_SCALER = "loss scaling/"
"""Prefix of the state of fp16's loss scaling among the numbers of a checkpoint."""


@dataclass(frozen=True)
class Progress:
    """Number of finished steps, and the settings that a resumed run must share."""

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
        """Describe the first setting in which this run, which wrote the file, differs from `other`, which reads it."""
        for key, written in asdict(self).items():
            current = getattr(other, key)
            if key not in _MAY_DIFFER and written != current:
                return f"it was written with {key} {written}, this run has {current}"
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
    scaler: torch.amp.GradScaler | None = None,
    keep: int = 1,
) -> None:
    """Write a checkpoint atomically: the file is always either the old or the new one.

    `random` holds the generator states of all ranks; None saves those of this process only. `scaler` is the loss
    scaling of fp16. `keep` is the number of versions: the file and those before it, as `PATH.1`, `PATH.2` ...
    """
    tensors: dict[str, Tensor] = {f"model/{name}": tensor for name, tensor in _unshared(model).items()}
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    scalars: dict[str, float] = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{names[parameter]}/{key}"] = value
            elif value is not None:
                scalars[f"{names[parameter]}/{key}"] = value
    for rank, rank_states in enumerate(random or [states()]):
        tensors |= {f"{_random_prefix(rank)}{kind}": state for kind, state in rank_states.items()}
    if scaler:
        scalars |= {f"{_SCALER}{key}": value for key, value in scaler.state_dict().items()}
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    metadata = {"schema": str(SCHEMA), "progress": json.dumps(asdict(progress)), "scalars": json.dumps(scalars)}
    metadata["checksum"] = _checksum(content, metadata)
    serialized = save(content, metadata)
    _keep_versions(path, keep)
    write_atomically(path, serialized)


def _keep_versions(path: Path, keep: int) -> None:
    """Number the existing versions one higher and drop the oldest. `path` itself stays until it is replaced."""
    if keep == 1 or not path.exists():
        return
    versions = [_version(path, number) for number in range(keep)]
    try:
        for older, newer in reversed([*zip(versions[1:], versions[:-1], strict=True)][1:]):
            if newer.exists():
                newer.replace(older)
        versions[1].unlink(missing_ok=True)
        os.link(path, versions[1])
    except OSError as error:
        raise RunFailed(f"cannot keep the earlier checkpoint {versions[1]}: {error.strerror}") from error


def _version(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path


def usable_version(path: Path, keep: int) -> None:
    """Replace a damaged checkpoint by the newest version that is not damaged, if there is one."""
    for number in range(keep):
        version = _version(path, number)
        if is_intact(version):
            if number:
                write_atomically(path, version.read_bytes())
            return


def is_intact(path: Path) -> bool:
    """Whether the checkpoint can be read and its checksum matches."""
    try:
        _content(path)
    except UserError:
        return False
    return True


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    expected: Progress,
    stream: Stream | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> Progress:
    """Restore model, optimizer and generators from `path`.

    Raise UserError if the file is damaged or belongs to another run.
    """
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
    if scaler and (state := _part(scalars, _SCALER)):
        scaler.load_state_dict(state)
    random = [_part(tensors, _random_prefix(0))]
    while state := _part(tensors, _random_prefix(len(random))):
        random.append(state)
    (stream or Stream(progress.seed)).go_on(random, progress.steps_done)
    return progress


def saved_progress(path: Path) -> Progress | None:
    """Read only the progress in a checkpoint; None if the file cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return Progress(**json.loads((file.metadata() or {})["progress"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None


def check_checkpoint(path: Path, expected: Progress) -> None:
    """Raise UserError if the checkpoint is damaged or belongs to another run."""
    _read(path, expected)


def _read(path: Path, expected: Progress) -> tuple[Progress, dict[str, Tensor], dict[str, Tensor]]:
    progress, tensors, scalars = _content(path)
    if difference := progress.mismatch(expected):
        raise UserError(f"checkpoint {path} belongs to another run: {difference}")
    return progress, tensors, scalars


def _content(path: Path) -> tuple[Progress, dict[str, Tensor], dict[str, Tensor]]:
    """Return the content of a checkpoint; raise UserError if it is damaged."""
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
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"checkpoint {path} is damaged and cannot be read ({error}); remove it to start over"
        ) from error
    return progress, tensors, scalars


def _random_prefix(rank: int) -> str:
    """Prefix of a rank's generator states in the file. Rank 0 has no number, so that single-device files match."""
    return f"random/{rank}/" if rank else "random/"


def _checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """CRC-32 of all tensors and metadata. safetensors checks only sizes, so it would not notice a flipped bit."""
    checksum = zlib.crc32((metadata["progress"] + metadata["scalars"]).encode())
    for name in sorted(tensors):
        content = tensors[name].reshape(-1).view(torch.uint8).numpy().data
        checksum = zlib.crc32(content, zlib.crc32(name.encode(), checksum))
    return f"{checksum:08x}"


def _part(entries: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): entry for name, entry in entries.items() if name.startswith(prefix)}


def _unshared(model: nn.Module) -> dict[str, Tensor]:
    """State dict with each tied tensor under its first name only, because safetensors refuses shared memory."""
    pointers: set[int] = set()
    return {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not (tensor.data_ptr() in pointers or pointers.add(tensor.data_ptr()))  # type: ignore[func-returns-value]
    }


def _tied(model: nn.Module) -> bool:
    return len(_unshared(model)) < len(model.state_dict())
