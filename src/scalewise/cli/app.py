"""Commands of the command line, in groups, and texts of usage errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from scalewise import __version__
from scalewise.cli import advise, inspect, measure, report, train, tune
from scalewise.cli import report as reproduce
from scalewise.cli import report as validate

UsageError: Any = typer.BadParameter.__base__
"""Base class of click's usage errors. Newer versions of typer contain their own copy of click."""

SUGGESTION = re.compile(r"[.,]? \(?(?:Did you mean|Possible options:) ([^?()]*)[?)]*$")
"""End of click's message about a misspelt name."""
NUMBERS = {"int": "a whole number", "integer": "a whole number", "float": "a number"}


def usage_error_text(error: Any) -> str:
    """Return "invalid value for ...: 'gpu' is not one of ...; see scalewise train --help"."""
    message = re.sub(
        r"('[^']*') is not a valid (int|integer|float)\b",
        lambda match: f"it must be {NUMBERS[match[2]]}, not {match[1]}",
        " ".join(error.format_message().split()).rstrip("."),
    )
    message = SUGGESTION.sub(r" (did you mean \1?)", message)
    command = error.ctx.command_path if error.ctx else "scalewise"
    return f"{message[:1].lower()}{message[1:]}; see {command} --help"


DECIDE, RUN, MEASURE, REPRODUCE, INSPECT = "Decide", "Run", "Measure", "Reproduce", "Inspect"
"""Groups of commands in `scalewise --help`."""

app = typer.Typer(
    name="scalewise",
    help="Will more GPUs make your training faster? Predict it, train with any parallelism strategy, and measure "
    "where the time goes.",
    epilog="Start with: scalewise advise linear --cluster 4x-gtx-1080-ti --batch 100",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(group: str, command: Callable[..., None], *examples: str, name: str | None = None) -> None:
    """Add a command to a group of `--help`, with examples below its own help."""
    title = "Example: " if len(examples) == 1 else "Examples:\n\n"
    app.command(name, epilog=title + "\n\n".join(examples), rich_help_panel=group)(command)


_add(DECIDE, advise.advise, *advise.EXAMPLES)
_add(DECIDE, validate.validate, "scalewise validate stevens")
_add(DECIDE, tune.tune, *tune.EXAMPLES)
_add(RUN, train.train, "scalewise train conv --batch 50 --epochs 3 --checkpoint conv.safetensors")
_add(
    MEASURE,
    measure.measure,
    "scalewise measure linear conv --devices 1,2 --batch 10,50 --samples 200 --out sweep",
)
_add(MEASURE, report.report, *report.EXAMPLES)
_add(MEASURE, inspect.profile, "scalewise profile linear --batch 10,20,50 --out linear.profile.json")
_add(REPRODUCE, reproduce.reproduce, "scalewise reproduce sync-vs-async --quick --out sync-vs-async")
_add(INSPECT, inspect.describe, *inspect.DESCRIBE_EXAMPLES)
_add(INSPECT, inspect.listing, "scalewise list workloads", name="list")
app.add_typer(inspect.app, name="clusters", rich_help_panel=INSPECT)
_add(INSPECT, inspect.doctor, "scalewise doctor --json")
_add(INSPECT, inspect.data, "scalewise data speech")


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        print(f"scalewise {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        context.get_help()  # prints it
        raise typer.Exit
