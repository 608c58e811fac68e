"""The list of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from scalewise import __version__
from scalewise.cli import advise, data, describe, doctor, listing, measure, profile, report, reproduce, train, validate

app = typer.Typer(
    name="scalewise",
    help="Will more GPUs make your training faster? Train it, measure it, and see where the time goes.",
    epilog="Example: scalewise train linear --batch 20 --epochs 2",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command(epilog="Example: scalewise train conv --batch 50 --epochs 3 --checkpoint conv.safetensors")(train.train)
app.command(epilog="Example: scalewise measure linear conv --devices 1,2 --batch 10,50 --samples 200 --out sweep")(
    measure.measure
)
app.command(epilog="Example: scalewise describe unet:width=16")(describe.describe)
app.command(epilog="Example: scalewise profile linear --batch 10,20,50 --out linear.profile.json")(profile.profile)
app.command(epilog="\n\n".join(["Examples:", *report.EXAMPLES]))(report.report)
app.command(epilog="Example: scalewise reproduce sync-vs-async --quick --out sync-vs-async")(reproduce.reproduce)
app.command(epilog="\n\n".join(["Examples:", *advise.EXAMPLES]))(advise.advise)
app.command(epilog="Example: scalewise validate stevens")(validate.validate)
app.command(epilog="Example: scalewise doctor --json")(doctor.doctor)
app.command(epilog="Example: scalewise data speech")(data.data)
app.command("list", epilog="Example: scalewise list workloads")(listing.listing)


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
