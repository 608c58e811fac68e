"""What typer refuses by itself, told as everything else is: in one sentence, with the value that was given."""

from __future__ import annotations

from typing import Any

import typer

from scalewise.errors import in_our_words

UsageError: Any = typer.BadParameter.__base__
"""typer carries its own copy of click in newer versions and uses the installed one in older ones."""


def sentence_of(error: Any) -> str:
    """'Invalid value for ...: 'gpu' is not one of ...; see scalewise train --help'."""
    message = in_our_words(error.format_message())
    message = " ".join(message.split()).rstrip(".")
    validation = getattr(error.__cause__, "errors", None)
    if validation and str(given := validation()[0]["input"]) not in message:
        message += f", not '{given}'"
    command = error.ctx.command_path if error.ctx else "scalewise"
    return f"{message[:1].lower()}{message[1:]}; see {command} --help"
