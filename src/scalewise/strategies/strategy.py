"""What every strategy is: a name, options, whether it is exact, and a plan of one step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping
from functools import cache
from types import NoneType
from typing import Any, ClassVar, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints

from scalewise.errors import UserError
from scalewise.plan import Footprint, Plan
from scalewise.spec import unknown

Backend = Literal["gloo", "nccl"]
AT_LEAST = "at least"
"""Key of a field's metadata: the least value of an option that need not be above 0."""
LEAST_PIECE_MB = 0.001
"""Of what travels in pieces: below, there are more messages than bytes to send."""
IF_NONE = "if none"
"""Key of a field's metadata: what an option that is not given amounts to."""
NAMED = "named"
"""Metadata of an option that names modules: what becomes of them."""


class Strategy(Protocol):
    """A frozen dataclass whose fields are its options; no torch."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @property
    def exact(self) -> bool:
        """After k steps the weights equal single-device training on the same batches, within float tolerance."""
        ...

    def plan(self, footprint: Footprint, devices: int, batch: int, backend: Backend = "gloo") -> Plan: ...


Kind = TypeVar("Kind")


@cache
def _hints_of(kind: Hashable) -> dict[str, Any]:
    """Compiled from their texts, which takes longer than all else here."""
    return get_type_hints(kind)


def with_options(kind: type[Kind], name: str, texts: Mapping[str, str]) -> Kind:
    """Build `kind` from options written as text, each read as its field's type says."""
    hints = _hints_of(kind)  # type: ignore[arg-type]
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, text in texts.items():
        if not fields:
            raise UserError(f"'{name}' takes no options, got '{key}'")
        if key not in fields:
            raise unknown(f"option of {name}", key, fields)
        values[key] = _read(f"option '{key}' of {name}", text, hints[key], fields[key].metadata.get(AT_LEAST))
    return kind(**values)


def choices_of(kind: type[Any]) -> dict[str, str]:
    """What an option can be, where a default does not say it: 'none|fp16|powersgd', or a number of one's own."""
    hints = _hints_of(kind)  # type: ignore[arg-type]
    told = {}
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if get_origin(hint) is Literal:
            told[field.name] = "|".join(get_args(hint))
        elif NoneType in get_args(hint):
            otherwise = field.metadata.get(IF_NONE, "torch's own if not given")
            told[field.name] = f"(a number; {otherwise})"
        elif hint is str:
            told[field.name] = "MODULE+MODULE" + (f" ({field.metadata[NAMED]})" if NAMED in field.metadata else "")
    return told


def options_of(strategy: Strategy) -> dict[str, Any]:
    """The options as values, for output."""
    return dataclasses.asdict(strategy)  # type: ignore[call-overload,no-any-return]


def batch_shares(strategy: Strategy, devices: int) -> int:
    """Into how many shares a batch is cut: devices that share one model all see the whole of theirs."""
    if getattr(strategy, "one_model", False):
        return 1
    return max(1, devices // getattr(strategy, "inside", 1))


def servers_of(strategy: Strategy) -> int:
    """Processes that it needs beside its workers."""
    return getattr(strategy, "servers", 0)


def _read(what: str, text: str, hint: Any, least: float | None) -> Any:
    if NoneType in get_args(hint):
        [hint] = [each for each in get_args(hint) if each is not NoneType]
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
