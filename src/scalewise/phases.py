"""The names under which a step accounts for its seconds, in the order they are shown."""

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
