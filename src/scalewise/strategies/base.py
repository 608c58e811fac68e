"""Base class of all parallelism strategies, and the parsing of their options."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from scalewise.core.errors import UserError
from scalewise.core.specs import unknown
from scalewise.core.training_options import ExecutionOptions, MemoryFormat, flag_of
from scalewise.hardware.collectives import Backend
from scalewise.strategies.plan import Footprint, Plan
from scalewise.strategies.rank_memory import LayerMemories, RankMemory, TrainingRun
from scalewise.strategies.server_plan import Piece

AT_LEAST = "at least"
"""Metadata key of an option field: smallest value allowed; without it the value must be above 0."""
LEAST_PIECE_MB = 0.001
"""Smallest `piece_MB`: below it, message overhead exceeds the payload."""
IF_NONE = "if none"
"""Metadata key of an option field: effect of not giving the option."""
NAMED = "named"
"""Metadata key of an option field that names modules: how the named modules are used."""

COMPILED_RANKS: Mapping[str, Sequence[str]] = {
    "execution": ("eager", "compile", "auto"),
    "compile_mode": ("default", "max-autotune-no-cudagraphs"),
    "memory_format": get_args(MemoryFormat),
    "convolutions": ("direct", "fft"),
    "precision": ("fp32", "tf32", "bf16"),
}
"""Execution options of ranks whose layers torch can compile and call in any memory format."""


class SessionKind(Enum):
    """Process layout of a strategy."""

    ONE_PROCESS = "one process drives all devices"
    RANKS = "one process per device"
    RANKS_AND_SERVERS = "one process per device, and server processes beside them"


class Strategy(ABC):
    """Base class of every strategy: a frozen dataclass whose fields are the strategy's options.

    Strategies import no torch. The defaults describe data parallelism with one process per device: every device has
    the whole model and a share of the batch.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[bool] = False
    """The strategy runs on one device only, as the baseline of all other strategies."""

    one_model: ClassVar[bool] = False
    """All devices together hold one copy of the model, and all process the whole batch."""
    one_host: ClassVar[bool] = False
    """All devices must be on one host."""
    gathers_weights: ClassVar[bool] = False
    """Weights are gathered again for every part of an accumulated batch."""
    updates_on_host: ClassVar[bool] = False
    """The optimizer runs in host memory, even if the devices are GPUs."""
    for_large_models: ClassVar[bool] = False
    """The strategy can train models that do not fit one device; out-of-memory errors suggest it."""
    splits_batch: ClassVar[bool] = False
    """The strategy splits a batch by itself, so --accumulate saves no memory."""

    executions: ClassVar[Mapping[str, Sequence[str]]] = {
        "execution": ("eager", "auto"),
        "memory_format": ("contiguous",),
        "convolutions": ("direct",),
        "precision": ("fp32", "tf32", "bf16"),
    }
    """Execution option -> values that ranks of this strategy can use."""
    why_no_graph: ClassVar[str] = "communication cannot be captured"
    """Why a step is not one CUDA graph."""

    @property
    def session_kind(self) -> SessionKind:
        return SessionKind.RANKS

    @property
    def asynchronous(self) -> bool:
        """Whether workers proceed without waiting for each other."""
        return False

    @property
    def servers(self) -> int:
        """Number of server processes."""
        return 0

    @property
    def max_staleness(self) -> int | None:
        """Largest staleness of an applied gradient; None: unbounded."""
        return 0

    @property
    def replacements(self) -> int:
        """Largest number of dead workers that are replaced during a run."""
        return 0

    @property
    def overlaps(self) -> bool:
        """Whether communication overlaps with computation."""
        return True

    @property
    def standard(self) -> bool:
        """Whether this is the usual choice of PyTorch users, preferred among strategies of about equal speed."""
        return False

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether the weights equal those of single-device training on the same batches, within float tolerance."""

    @property
    def inside(self) -> int:
        """Number of devices that together hold one copy of the model."""
        return 1

    @property
    def in_stages(self) -> bool:
        """Whether every device holds consecutive layers."""
        return False

    @property
    def cuts_layers(self) -> bool:
        """Whether layers are split, so that every device holds a part of each."""
        return False

    @property
    def pads_last_batch(self) -> bool:
        """Whether the short last batch of an epoch is padded and takes as long as a full one."""
        return False

    @property
    def plans_microbatches(self) -> bool:
        """Whether the number of micro-batches is chosen automatically."""
        return False

    @abstractmethod
    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan:
        """Plan the operations of one step: compute, sends and collectives with their dependencies."""

    def plan_first(
        self,
        footprint: Footprint,
        devices: int,
        batch: int,
        backend: Backend = "gloo",
        followed: int = 1,  # noqa: ARG002
    ) -> Plan:
        """Plan a step on many devices: about `followed` of them individually, which represent all others."""
        return self.plan(footprint, devices, batch, backend)

    def simulated(self, footprint: Footprint) -> Strategy:  # noqa: ARG002
        """Variant whose step takes as long and is simulated faster, such as larger pieces of a large model."""
        return self

    def rounds(self, footprint: Footprint, devices: int, batch: int, rounds: int) -> Plan:
        """Plan several steps of asynchronous workers."""
        raise NotImplementedError(f"{self.name} is synchronous")

    def pieces(self, elements: int, element_bytes: int) -> tuple[Piece, ...]:  # noqa: ARG002
        """Split the parameters into the pieces that are sent to servers and back; empty without servers."""
        return ()

    def samples_at_once(self, run: TrainingRun) -> int:
        """Number of samples that a rank processes at once."""
        return run.part_of_share

    def rank_memory(self, rank: int, run: TrainingRun, layers: LayerMemories) -> RankMemory:  # noqa: ARG002
        """Memory of one rank. `layers` describes the whole model at `samples_at_once` samples."""
        return RankMemory(layers, run.inputs(run.part_of_share), gradients="stay" if run.accumulate > 1 else "anew")

    def variants(self) -> Sequence[tuple[str, Strategy]]:
        """Alternative options that `advise` compares with the defaults, with a description of each."""
        return ()

    def default_on(self, backend: Backend, hosts: int) -> Strategy:  # noqa: ARG002
        """Variant of the strategy that `advise` considers on a cluster with this backend and number of hosts."""
        return self

    def check_devices(self, devices: int) -> None:  # noqa: B027
        """Raise UserError if the strategy cannot run on this number of devices."""

    def check_gpus(self, devices: int, gpus: int) -> None:  # noqa: B027
        """Raise UserError if the machine has too few GPUs (`gpus`) for `devices`."""

    def check_hosts(self, hosts: int) -> None:  # noqa: B027
        """Raise UserError if the strategy cannot run on this number of hosts."""

    def check_execution(self, options: ExecutionOptions) -> None:
        """Raise UserError if ranks of this strategy cannot use an execution option."""
        for name, valid in self.executions.items():
            value = getattr(options, name)
            if value in valid:
                continue
            if value == "graph":
                raise UserError(f"--execution graph is not possible: {self.why_no_graph}; use eager or auto")
            raise UserError(f"{self.name} does not support {flag_of(name)} {value}; valid: {', '.join(valid)}")

    def seen_at_once(self, devices: int, microbatches: int | None) -> str:  # noqa: ARG002
        """Part of a batch over which batch norm computes its statistics; empty: the whole batch."""
        return "" if devices == 1 else "one device's samples"

    def twin(self, devices: int) -> str | None:  # noqa: ARG002
        """Name of another strategy that does the same on this number of devices."""
        return None


Kind = TypeVar("Kind")


@cache  # evaluating annotation strings is the slowest part of option parsing
def _type_hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def with_options(kind: type[Kind], name: str, texts: Mapping[str, str]) -> Kind:
    """Build `kind` from options given as text, parsed according to the field types."""
    hints = _type_hints(kind)  # type: ignore[arg-type]
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, text in texts.items():
        if not fields:
            raise UserError(f"'{name}' takes no options, got '{key}'")
        if key not in fields:
            raise unknown(f"option of {name}", key, fields)
        values[key] = _parsed(f"option '{key}' of {name}", text, hints[key], fields[key].metadata.get(AT_LEAST))
    return kind(**values)


def choices_of(kind: type[Any]) -> dict[str, str]:
    """Text of the valid values of options, for help: {'compress': 'none|fp16|powersgd'}.

    Options whose default shows their type are left out.
    """
    hints = _type_hints(kind)  # type: ignore[arg-type]
    choices = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if get_origin(hint) is Literal:
            choices[field.name] = "|".join(get_args(hint))
        elif NoneType in get_args(hint):
            without = field.metadata.get(IF_NONE, "torch's default if not given")
            choices[field.name] = f"(a number; {without})"
        elif hint is str:
            choices[field.name] = "MODULE+MODULE" + (f" ({field.metadata[NAMED]})" if NAMED in field.metadata else "")
    return choices


def options_of(strategy: Strategy) -> dict[str, Any]:
    """Options of a strategy as values."""
    return dataclasses.asdict(strategy)  # type: ignore[call-overload,no-any-return]


def batch_shares(strategy: Strategy, devices: int) -> int:
    """Number of shares into which a global batch is split: one per copy of the model."""
    return 1 if strategy.one_model else max(1, devices // strategy.inside)


def _parsed(what: str, text: str, hint: Any, least: float | None) -> Any:
    if NoneType in get_args(hint):
        [hint] = [member for member in get_args(hint) if member is not NoneType]
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if text not in choices:
            raise UserError(f"{what} is '{text}'; valid: {', '.join(map(str, choices))}")
        return text
    if hint is str:
        return text
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise UserError(f"{what} is '{text}'; valid: true, false")
        return text.lower() == "true"
    try:
        value = hint(text)
    except ValueError:
        raise UserError(f"{what} is '{text}'; it must be {'a whole number' if hint is int else 'a number'}") from None
    if not math.isfinite(value) or (value <= 0 if least is None else value < least):
        raise UserError(f"{what} is {text}; it must be {'above 0' if least is None else f'{least} or more'}")
    return value
