"""Options of a training run: types, defaults and help texts; what each execution option changes; checked settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from scalewise.core.errors import UserError
from scalewise.core.specs import parse_spec, unknown

DeviceKind = Literal["auto", "cpu", "cuda", "slice"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
GivenPrecision = Literal["fp32", "tf32", "bf16", "fp16", "bf16-weights", "fp16-weights"]
"""Precision of given step times: as for training (bf16 and fp16 are autocast with fp32 weights), or with 16-bit
weights and gradients."""
Execution = Literal["eager", "graph", "compile", "auto"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
MemoryFormat = Literal["contiguous", "channels_last"]
Convolutions = Literal["direct", "fft", "auto"]
CheckpointEvery = Literal["auto"]

AUTO_STRATEGY = "auto"
"""Name for the strategy that `advise` recommends."""
DEFAULT_BATCH = 20
MOST_SAMPLES = 10**9
MOST_CHECKPOINTS = 100
OPTIMIZERS = ("adam", "adamw", "sgd", "momentum", "adagrad", "adafactor")
LOADS = {
    "auto": "keep all samples on the device if they fit next to the model, else stream them",
    "device": "keep all samples on the device; one gather per batch",
    "stream": "DataLoader with pinned memory and prefetching: stream:workers=4",
    "files": "read and decode each sample from its file in every epoch, as in the study: files:workers=0",
}
"""Ways to load samples, for `--load`."""

DEVICES, TRAINING, DATA, COMPUTATION, OUTPUT = "Devices", "Training", "Data", "Computation", "Output files"
"""Panels of `scalewise train --help`."""


@dataclass(frozen=True)
class Help:
    """Presentation of an option on the command line."""

    text: str
    panel: str
    flag: str | None = None
    """Name on the command line, if it differs from the field name."""
    metavar: str | None = None
    shown_default: str | None = None
    """Text shown in place of a default of None; if it is None, no default is shown."""


def _help(panel: str, text: str, **more: str) -> dict[str, Help]:
    return {"help": Help(text, panel, **more)}


@dataclass(frozen=True)
class TrainingOptions:
    """Options of `scalewise train` and `scalewise.train`."""

    strategy: str = field(
        default="single",
        metadata=_help(
            DEVICES,
            "Parallelism strategy; see `scalewise list strategies`. auto: the fastest exact strategy that `advise` "
            "predicts on this machine for up to --devices devices (1: all devices).",
        ),
    )
    devices: int = field(default=1, metadata=_help(DEVICES, "Number of devices, over all hosts."))
    device_kind: str = field(
        default="auto",
        metadata=_help(DEVICES, "cpu: one core per device. cuda: one GPU per device. slice: devices share one GPU."),
    )
    hosts: int = field(default=1, metadata=_help(DEVICES, "Number of emulated hosts (network namespaces; needs root)."))
    link: str | None = field(
        default=None,
        metadata=_help(DEVICES, "Bandwidth of the links between emulated hosts, such as 1gbit or 200mbit."),
    )
    slow: Mapping[int, float] | None = field(
        default=None,
        metadata=_help(DEVICES, "Limit a rank to a share of its cores, such as 1=0.5.", metavar="RANK=SHARE"),
    )
    slice_percent: int | None = field(
        default=None, metadata=_help(DEVICES, "Percent of the GPU per slice.", shown_default="100 / devices")
    )
    cores_per_device: int = field(default=1, metadata=_help(DEVICES, "Cores and threads per cpu device."))
    timeout_seconds: float = field(
        default=60.0,
        metadata=_help(
            DEVICES,
            "Seconds after which a hung rank fails the run (at least 30 during start-up).",
            flag="--timeout",
        ),
    )
    batch: int | None = field(
        default=None,
        metadata=_help(
            TRAINING, "Global batch: samples per update, over all devices.", shown_default=str(DEFAULT_BATCH)
        ),
    )
    batch_per_device: int | None = field(
        default=None, metadata=_help(TRAINING, "Batch per device, instead of the global batch.")
    )
    epochs: int | None = field(default=None, metadata=_help(TRAINING, "Passes over the data.", shown_default="1"))
    steps: int | None = field(
        default=None,
        metadata=_help(
            TRAINING,
            "Number of batches, instead of epochs. Each batch is one update, or with parameter-server-async one update "
            "by every worker.",
        ),
    )
    optimizer: str | None = field(
        default=None,
        metadata=_help(TRAINING, "adam, adamw, sgd, momentum, adagrad or adafactor.", shown_default="the workload's"),
    )
    learning_rate: float | None = field(
        default=None, metadata=_help(TRAINING, "Learning rate of the optimizer.", shown_default="the workload's")
    )
    accumulate: int = field(
        default=1,
        metadata=_help(
            TRAINING, "Compute each batch in this many parts and accumulate gradients: less memory, same result."
        ),
    )
    seed: int = field(default=0, metadata=_help(TRAINING, "Seed of the initial weights and of shuffling."))
    data: Path | None = field(
        default=None,
        metadata=_help(DATA, "Folder or file with the data.", shown_default="found on this machine or generated"),
    )
    samples: int | None = field(
        default=None, metadata=_help(DATA, "Use at most N samples, evenly spaced.", metavar="N", shown_default="all")
    )
    input_shape: str | None = field(
        default=None,
        metadata=_help(DATA, "Shape of one input sample of your nn.Module.", flag="--input", metavar="3x224x224"),
    )
    classes: int | None = field(default=None, metadata=_help(DATA, "Number of classes of your nn.Module."))
    precision: Precision = field(
        default="fp32",
        metadata=_help(
            COMPUTATION,
            "Precision of matrix multiplications; all except fp32 change the training result. fp16: with dynamic loss "
            "scaling.",
        ),
    )
    execution: Execution = field(
        default="auto",
        metadata=_help(
            COMPUTATION,
            "graph: run the whole step as one CUDA graph. compile: torch.compile. auto: graph where it is possible, "
            "else eager. Changes nothing but rounding.",
        ),
    )
    compile_mode: CompileMode = field(
        default="default",
        metadata=_help(
            COMPUTATION,
            "Mode of torch.compile. reduce-overhead and max-autotune also use CUDA graphs. Changes nothing but "
            "rounding.",
        ),
    )
    memory_format: MemoryFormat = field(
        default="contiguous",
        metadata=_help(
            COMPUTATION,
            "Memory layout of images and of 2-D convolutions; channels_last suits the matrix units of GPUs. Changes "
            "nothing but rounding.",
        ),
    )
    convolutions: Convolutions = field(
        default="direct",
        metadata=_help(
            COMPUTATION,
            "Algorithm of convolutions with long kernels. fft: by Fourier transforms. auto: the faster one for each "
            "layer, timed before training. Changes nothing but rounding.",
        ),
    )
    tuned: bool = field(
        default=False,
        metadata=_help(
            COMPUTATION,
            "Use the execution options that `scalewise tune` found fastest for this workload, device and precision.",
        ),
    )
    load: str = field(
        default="auto",
        metadata=_help(
            COMPUTATION,
            "How samples are loaded. device: all in device memory. stream:workers=4: by 4 loader processes. files: "
            "read from their files in every epoch. auto: device if they fit, else stream.",
        ),
    )
    checkpoint: Path | None = field(
        default=None,
        metadata=_help(
            OUTPUT, "Save a checkpoint to this file after every epoch and at the end, atomically.", metavar="FILE"
        ),
    )
    checkpoint_every: int | CheckpointEvery | None = field(
        default=None,
        metadata=_help(
            OUTPUT,
            "Steps between checkpoints. auto: as often as possible while saving takes at most 2 % of the time.",
            metavar="N|auto",
        ),
    )
    keep_checkpoints: int = field(
        default=1, metadata=_help(OUTPUT, "Checkpoints to keep: FILE, and the ones before as FILE.1, FILE.2 ...")
    )
    max_restarts: int = field(
        default=0,
        metadata=_help(
            OUTPUT,
            "Restart a run that loses a rank from its last checkpoint, at most N times. Needs --checkpoint; the result "
            "is that of an uninterrupted run.",
            metavar="N",
        ),
    )
    min_devices: int | None = field(
        default=None,
        metadata=_help(
            OUTPUT,
            "Restart with fewer devices, down to N, if a restart made no progress. Results then agree up to rounding; "
            "random dropout masks differ.",
            metavar="N",
            shown_default="--devices",
        ),
    )
    resume: bool = field(default=False, metadata=_help(OUTPUT, "Continue from the checkpoint."))
    overwrite: bool = field(default=False, metadata=_help(OUTPUT, "Replace an existing checkpoint."))
    trace: Path | None = field(
        default=None, metadata=_help(OUTPUT, "Write a timeline that opens in Perfetto.", metavar="FILE")
    )


HELP: dict[str, Help] = {option.name: option.metadata["help"] for option in fields(TrainingOptions)}
"""Help of every option by field name."""


def flag_of(name: str) -> str:
    """Return an option's name on the command line: 'timeout_seconds' -> '--timeout'."""
    return HELP[name].flag or f"--{name.replace('_', '-')}"


def check_optimizer(name: str) -> None:
    """Raise a UserError if there is no optimizer of this name."""
    if name not in OPTIMIZERS:
        raise unknown("optimizer", name, OPTIMIZERS)


def check_samples(samples: int | None) -> None:
    """Raise a UserError if no workload can have this number of samples."""
    if samples is None:
        return
    if samples < 1:
        raise UserError(f"--samples must be at least 1, not {samples}")
    if samples > MOST_SAMPLES:
        raise UserError(f"--samples is {samples:,}; it must be at most {MOST_SAMPLES:,}")


def check_data(load: str, data: Path | None, samples: int | None) -> None:
    """Raise a UserError for data options that are invalid for any workload."""
    read_load(load)
    check_samples(samples)
    if data is not None and not data.exists():
        raise UserError(f"--data is '{data}', which does not exist")


def read_load(load: str) -> tuple[str, int]:
    """Parse a `--load` option into method and number of loader processes; raise UserError if it is invalid."""
    spec = parse_spec(load)
    if spec.name not in LOADS:
        raise unknown("way to load", spec.name, LOADS)
    if spec.name in ("stream", "files"):
        return spec.name, _workers(spec.options, load)
    if spec.options:
        raise UserError(f"--load {spec.name} takes no options, got '{load}'")
    return spec.name, 0


def _workers(options: Any, load: str) -> int:
    for key in options:
        if key != "workers":
            raise unknown(f"option of --load {load.partition(':')[0]}", key, ["workers"])
    text = options.get("workers", "0")
    if not text.isdecimal():
        raise UserError(f"--load {load}: workers is '{text}'; it must be a whole number from 0")
    return int(text)


class Effect(Enum):
    """What an option changes in comparison with plain eager training in fp32."""

    ROUNDING = "nothing but rounding"
    RESULT = "the training result"


EFFECTS: Mapping[str, Mapping[str, Effect]] = {
    "execution": dict.fromkeys(get_args(Execution), Effect.ROUNDING),
    "compile_mode": dict.fromkeys(get_args(CompileMode), Effect.ROUNDING),
    "memory_format": dict.fromkeys(get_args(MemoryFormat), Effect.ROUNDING),
    "convolutions": dict.fromkeys(get_args(Convolutions), Effect.ROUNDING),
    "precision": {"fp32": Effect.ROUNDING, "tf32": Effect.RESULT, "bf16": Effect.RESULT, "fp16": Effect.RESULT},
}
"""Option -> value -> what it changes."""

MODES_WITH_GRAPHS: Mapping[CompileMode, CompileMode] = {
    "reduce-overhead": "default",
    "max-autotune": "max-autotune-no-cudagraphs",
}
"""Compile modes that use CUDA graphs -> mode that generates the same kernels without CUDA graphs."""


@dataclass(frozen=True)
class ExecutionOptions:
    """How a device computes a training step. TrainingOptions documents the fields."""

    execution: Execution = TrainingOptions.execution
    compile_mode: CompileMode = TrainingOptions.compile_mode
    memory_format: MemoryFormat = TrainingOptions.memory_format
    convolutions: Convolutions = TrainingOptions.convolutions
    precision: Precision = TrainingOptions.precision

    @property
    def compiles(self) -> bool:
        return self.execution == "compile"

    @property
    def effects(self) -> dict[str, Effect]:
        """What each option that differs from its default changes, by field name."""
        return {name: EFFECTS[name][value] for name, value in self.changed.items()}

    @property
    def same_mathematics(self) -> bool:
        """Whether training gives the weights of plain fp32 training up to rounding."""
        return all(EFFECTS[option.name][getattr(self, option.name)] is Effect.ROUNDING for option in fields(self))

    @property
    def changed(self) -> dict[str, str]:
        """Options that differ from their defaults, by field name."""
        return {
            option.name: value for option in fields(self) if (value := getattr(self, option.name)) != option.default
        }

    @property
    def flags(self) -> list[str]:
        """Command-line arguments of the options that differ from their defaults."""
        return [text for name, value in self.changed.items() for text in (flag_of(name), value)]

    @property
    def label(self) -> str:
        """Short name of the options: 'compile (reduce-overhead), channels_last, bf16', or 'eager'."""
        mode = f" ({self.compile_mode})" if self.compile_mode != TrainingOptions.compile_mode else ""
        parts = [f"compile{mode}" if self.compiles else {"graph": "CUDA graph"}.get(self.execution, "")]
        parts += [self.memory_format] if self.memory_format != TrainingOptions.memory_format else []
        parts += [f"{self.convolutions} convolutions"] if self.convolutions != TrainingOptions.convolutions else []
        parts += [self.precision] if self.precision != TrainingOptions.precision else []
        return ", ".join(filter(None, parts)) or "eager"

    def check(self) -> None:
        """Raise a UserError for unknown values and for options that have no effect together."""
        hints = get_type_hints(ExecutionOptions)
        for option in fields(self):
            value, valid = getattr(self, option.name), get_args(hints[option.name])
            if value not in valid:
                raise UserError(f"{flag_of(option.name)} is '{value}'; valid: {', '.join(valid)}")
        if self.compile_mode != TrainingOptions.compile_mode and not self.compiles:
            raise UserError(
                f"--compile-mode {self.compile_mode} needs --execution compile, but --execution is {self.execution}"
            )

    def __str__(self) -> str:
        return " ".join(self.flags) or "defaults"


MOST_PENDING_STEPS = 4096
"""Number of steps that may be issued to a GPU before the loop waits for it."""


@dataclass(frozen=True)
class Settings:
    """Training options of a rank; `check` runs before any rank starts.

    TrainingOptions documents the fields that are the same there.
    """

    batch: int
    """Global batch: samples per update, over all devices."""
    epochs: int | None = 1
    """Number of passes over the data; None if `steps` is given."""
    steps: int | None = TrainingOptions.steps
    optimizer: str | None = TrainingOptions.optimizer
    learning_rate: float | None = TrainingOptions.learning_rate
    accumulate: int = TrainingOptions.accumulate
    """Number of parts into which each device splits its share of a batch."""
    seed: int = TrainingOptions.seed
    precision: Precision = TrainingOptions.precision
    execution: Execution = TrainingOptions.execution
    compile_mode: CompileMode = TrainingOptions.compile_mode
    memory_format: MemoryFormat = TrainingOptions.memory_format
    convolutions: Convolutions = TrainingOptions.convolutions
    load: str = TrainingOptions.load
    checkpoint: Path | None = TrainingOptions.checkpoint
    checkpoint_every: int | CheckpointEvery | None = TrainingOptions.checkpoint_every
    keep_checkpoints: int = TrainingOptions.keep_checkpoints
    resume: bool = TrainingOptions.resume
    traced: bool = False
    """Record operations that overlap with backward, for a timeline."""

    @property
    def execution_options(self) -> ExecutionOptions:
        return ExecutionOptions(
            self.execution, self.compile_mode, self.memory_format, self.convolutions, self.precision
        )

    def with_execution(self, options: ExecutionOptions) -> Settings:
        """Return these settings with other execution options."""
        return replace(self, **asdict(options))

    def check(self) -> None:
        """Raise a UserError for settings that are invalid for any data."""
        self.execution_options.check()
        read_load(self.load)
        if self.optimizer is not None:
            check_optimizer(self.optimizer)
        if self.batch < 1:
            raise UserError(f"--batch is {self.batch}; it must be at least 1")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"--seed is {self.seed}; it must be a whole number from 0 to 2^63 - 1")
        for flag, value in (("--epochs", self.epochs), ("--steps", self.steps), ("--accumulate", self.accumulate)):
            if value is not None and value < 1:
                raise UserError(f"{flag} is {value}; it must be at least 1")
        if not 1 <= self.keep_checkpoints <= MOST_CHECKPOINTS:
            raise UserError(f"--keep-checkpoints is {self.keep_checkpoints}; it must be 1 to {MOST_CHECKPOINTS}")
        if isinstance(self.checkpoint_every, int) and self.checkpoint_every < 1:
            raise UserError(f"--checkpoint-every is {self.checkpoint_every}; it must be at least 1")
        if self.learning_rate is not None and not (self.learning_rate > 0 and isfinite(self.learning_rate)):
            raise UserError(f"--learning-rate is {self.learning_rate}; it must be a finite number above 0")
        if (self.resume or self.checkpoint_every) and self.checkpoint is None:
            flag = "--resume" if self.resume else "--checkpoint-every"
            raise UserError(f"{flag} needs --checkpoint FILE")

    def check_fits(self, samples: int, source: str) -> None:
        """Raise a UserError if the batch is larger than the data."""
        if self.batch > samples:
            raise UserError(
                f"--batch is {self.batch:,} but there are only {samples:,} samples ({source}); use at most {samples:,}"
            )

    def total_steps(self, samples: int) -> int:
        """Return the number of updates of the whole run."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 1) * steps_per_epoch(samples, self.batch)

    def saves_after(self, step: int, samples: int) -> bool:
        """Return whether to save a checkpoint after a step: at the end of an epoch, of an interval or of the run."""
        if self.checkpoint is None:
            return False
        return (
            step == self.total_steps(samples)
            or step % steps_per_epoch(samples, self.batch) == 0
            or (isinstance(self.checkpoint_every, int) and step % self.checkpoint_every == 0)
        )


def steps_per_epoch(samples: int, batch: int) -> int:
    """Return the number of batches per epoch, including a smaller last one."""
    return -(-samples // batch)
