"""The names under which a step accounts for its seconds, in the order they are shown."""

from __future__ import annotations

from collections.abc import Mapping

PHASES = (
    "load",
    "scatter",
    "pull",
    "broadcast",
    "receive",
    "forward",
    "gather",
    "loss",
    "backward",
    "reduce",
    "push",
    "send",
    "update",
    "idle",
)

BETWEEN_DEVICES = frozenset({"scatter", "pull", "broadcast", "receive", "gather", "reduce", "push", "send"})
"""Phases in which a device sends, receives or waits for another."""


def shared_out(phases: Mapping[str, float], seconds: float) -> dict[str, float]:
    """A step of so many seconds, by the shares that phases have of theirs."""
    whole = sum(phases.values())
    return {phase: phases[phase] / whole * seconds for phase in PHASES if phase in phases} if whole else {}
