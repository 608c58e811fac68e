"""What typer refuses by itself, told as everything else is: in one sentence, with the value that was given."""

from __future__ import annotations

import re
from typing import Any

import typer

UsageError: Any = typer.BadParameter.__base__
"""typer carries its own copy of click in newer versions and uses the installed one in older ones."""

GUESS = re.compile(r"[.,]? \(?(?:Did you mean|Possible options:) ([^?()]*)[?)]*$")
"""How click and typer end a sentence about a name that is nearly one they know."""
NUMBERS = {"int": "a whole number", "integer": "a whole number", "float": "a number"}


def sentence_of(error: Any) -> str:
    """'Invalid value for ...: 'gpu' is not one of ...; see scalewise train --help'."""
    message = re.sub(
        r"('[^']*') is not a valid (int|integer|float)\b",
        lambda found: f"it must be {NUMBERS[found[2]]}, not {found[1]}",
        " ".join(error.format_message().split()).rstrip("."),
    )
    message = GUESS.sub(r" (did you mean \1?)", message)
    command = error.ctx.command_path if error.ctx else "scalewise"
    return f"{message[:1].lower()}{message[1:]}; see {command} --help"
