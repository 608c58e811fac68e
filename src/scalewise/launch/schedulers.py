"""Option `--on`: run a command on a cluster through its scheduler."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewise.core.errors import UserError
from scalewise.core.specs import parse_spec, unknown

NUMBERS = ("nodes", "gpus_per_node", "devices_per_node", "cpus_per_task", "time", "mem_gb")


@dataclass(frozen=True)
class Scheduler:
    """A scheduler and the options that `--on` takes for it."""

    module: str
    options: tuple[str, ...]
    package: str | None = None
    """Package that it needs, as pip names it; the extra of the same name as the scheduler installs it."""
    imports: tuple[str, ...] = ()
    """Modules of the package and of what it depends on."""
    required: tuple[str, ...] = ()


SCHEDULERS = {
    "slurm": Scheduler(
        "scalewise.launch.slurm",
        (
            "partition", "nodes", "gpus_per_node", "devices_per_node", "time", "cpus_per_task", "mem_gb", "account",
            "qos", "constraint", "folder",
        ),
        "submitit",
        ("submitit",),
    ),
    "ray": Scheduler(
        "scalewise.launch.ray_train",
        ("address", "nodes", "gpus_per_node", "devices_per_node", "cpus_per_task"),
        "ray[train]",
        ("ray", "pyarrow"),
    ),
    "kubernetes": Scheduler(
        "scalewise.launch.manifests",
        ("image", "nodes", "gpus_per_node", "devices_per_node", "namespace", "runtime", "file"),
        required=("image",),
    ),
    "sky": Scheduler(
        "scalewise.launch.manifests",
        ("accelerators", "nodes", "gpus_per_node", "devices_per_node", "infra", "file"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """A command to run on a cluster."""

    scheduler: str
    arguments: tuple[str, ...]
    """Arguments of `scalewise`, without --on."""
    texts: Mapping[str, str]
    numbers: Mapping[str, int]

    @property
    def nodes(self) -> int:
        return self.numbers.get("nodes", 1)

    @property
    def devices_per_node(self) -> int:
        return self.numbers.get("devices_per_node", self.numbers.get("gpus_per_node", 1))

    @property
    def command(self) -> str:
        return self.arguments[0]


def run_on(text: str, arguments: Sequence[str] | None = None) -> None:
    """Run the command of this process on a cluster; exit with its exit code if it fails."""
    request = read_request(text, sys.argv[1:] if arguments is None else arguments)
    scheduler = SCHEDULERS[request.scheduler]
    if not all(importlib.util.find_spec(module) for module in scheduler.imports):
        raise UserError(
            f"--on {request.scheduler} needs the package {scheduler.package}; install it: "
            f"pip install '{scheduler.package}'"
        )
    code = importlib.import_module(scheduler.module).run(request)
    if code:
        sys.exit(code)


def read_request(text: str, arguments: Sequence[str]) -> Request:
    """Parse 'slurm:partition=gpu,nodes=2'; raise UserError if an option is unknown or not a number."""
    spec = parse_spec(text)
    if spec.name not in SCHEDULERS:
        raise unknown("scheduler of --on", spec.name, SCHEDULERS)
    scheduler = SCHEDULERS[spec.name]
    numbers: dict[str, int] = {}
    for key, value in spec.options.items():
        if key not in scheduler.options:
            raise unknown(f"option of --on {spec.name}", key, scheduler.options)
        if key in NUMBERS:
            if not value.isdecimal() or (int(value) < 1 and key != "gpus_per_node"):
                raise UserError(f"--on {spec.name}: {key} is '{value}'; it must be a whole number of at least 1")
            numbers[key] = int(value)
    if missing := [key for key in scheduler.required if key not in spec.options]:
        raise UserError(f"--on {spec.name} needs {missing[0]}; write --on {spec.name}:{missing[0]}=...")
    texts = {key: value for key, value in spec.options.items() if key not in NUMBERS}
    return Request(spec.name, without_on(arguments), texts, numbers)


def without_on(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments without `--on TEXT` and `--on=TEXT`."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == "--on":
            skip = True
        elif not argument.startswith("--on="):
            kept.append(argument)
    return tuple(kept)


def resumed(arguments: Sequence[str], folder: Path | str = ".") -> tuple[str, ...]:
    """Return the arguments with which a restarted job continues: from its checkpoint, or after its finished cells.

    `folder`: the folder in which the command runs.
    """
    progress = _value_of("--checkpoint" if arguments[0] == "train" else "--out", arguments)
    if (
        "--resume" in arguments
        or arguments[0] not in ("train", "measure")
        or not (progress and (Path(folder) / progress).exists())
    ):
        return tuple(arguments)
    return (*(argument for argument in arguments if argument != "--overwrite"), "--resume")


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == flag:
            return value if equals else next(iter(arguments[number + 1 :]), None)
    return None
