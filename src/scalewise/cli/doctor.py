"""`scalewise doctor`."""

from __future__ import annotations

from scalewise.cli import options


def doctor(json: options.Json = False) -> None:
    """Show what this machine can do: devices, memory, torch, backends; what is missing, and how to get it."""
    from scalewise.cli.output import show
    from scalewise.verbs.doctor import doctor as verb

    show(verb(), json)
