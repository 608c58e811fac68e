"""`scalewise report`, `scalewise reproduce` and `scalewise validate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalewise.cli import shared
from scalewise.core.arguments import whole_numbers
from scalewise.core.errors import RunFailed, UserError
from scalewise.core.files import make_out_folder
from scalewise.core.specs import unknown
from scalewise.studies.registry import EXPERIMENTS

if TYPE_CHECKING:
    from scalewise.reporting.page_cells import WorkloadOutline

EXAMPLES = ("scalewise report sweep", "scalewise report --published --out study")


def _export(flag: str, metavar: str, text: str) -> Any:
    return shared.option("Export", flag, metavar=metavar, help=text, show_default=False)


def report(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", help="Folders that `scalewise measure` wrote.", show_default=False),
    ] = None,
    published: Annotated[
        bool,
        typer.Option("--published", help="Include the 96 published cells of the study."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for figures and findings.", show_default="the first folder"),
    ] = None,
    csv: Annotated[Path | None, _export("--csv", "FILE", "Write every cell with all its numbers as CSV.")] = None,
    trace: Annotated[
        Path | None,
        _export("--trace", "FILE", "Write the step of the best cell as a timeline that opens in Perfetto."),
    ] = None,
    tensorboard: Annotated[Path | None, _export("--tensorboard", "DIR", "Write the cells as TensorBoard runs.")] = None,
    mlflow: Annotated[
        str | None, _export("--mlflow", "URI", "Log a run per cell to an MLflow tracking server or folder.")
    ] = None,
    json: shared.Json = False,
) -> None:
    """Write DIR/report.html, one page that opens in any browser, with findings.md and figures beside it.

    The page shows speed-ups, times, phases and memory, measured and predicted, and needs no network.

    Folders of several machines can be combined: each cell is compared with the single device of its own machine.
    """
    from scalewise.cli.shared import show, spinner
    from scalewise.reporting.exporters import Exports
    from scalewise.reporting.report import report as verb

    exports = Exports(csv, trace, tensorboard, mlflow)
    outline = _outline() if folders else None  # loads torch, which the published cells do not need
    with spinner("predicting the measured cells"):
        result = verb(*(folders or []), out=out, published=published, outline=outline, exports=exports)
    show(result, json)


def _outline() -> WorkloadOutline:
    from scalewise.probe.untimed_profile import outline_of

    return outline_of


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            help="Name of the experiment; see `scalewise list experiments`.", metavar="EXPERIMENT", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for measurements, figures and findings.", show_default=False)],
    quick: Annotated[
        bool, typer.Option("--quick", help="Run fewer cells and steps: minutes instead of hours.")
    ] = False,
    device_kind: shared.DeviceKind = "auto",
    seed: Annotated[
        str | None,
        typer.Option(
            help="Seeds of sync-vs-async, separated by commas; findings cover all of them.", show_default="0,1,2"
        ),
    ] = None,
    on: shared.On = None,
    json: shared.Json = False,
) -> None:
    """Repeat a published experiment on this machine, draw it, and check which findings hold."""
    if experiment not in EXPERIMENTS:
        raise unknown("experiment", experiment, EXPERIMENTS)
    chosen = EXPERIMENTS[experiment]
    if device_kind != "auto" and not chosen.on_any_kind:
        raise UserError(f"experiment '{experiment}' chooses its own devices; leave --device-kind {device_kind} out")
    if seed is not None and not chosen.takes_seeds:
        raise UserError(f"experiment '{experiment}' has fixed seeds; leave --seed {seed} out")
    run_options: dict[str, Any] = {"device_kind": device_kind} if chosen.on_any_kind else {}
    if seed is not None:
        run_options["seeds"] = list(dict.fromkeys(whole_numbers("--seed", seed, least=0)))
    if on is not None:
        from scalewise.launch.schedulers import run_on

        run_on(on)
        return
    make_out_folder(out)
    from scalewise.cli.shared import progress_lines, show

    with progress_lines(experiment) as (print_line, update_spinner):
        if chosen.shows_progress:
            run_options["on_progress"] = lambda state: update_spinner(f"{state.done}/{state.total} cells, {state.text}")
        result = chosen.load()(out, quick, print_line, **run_options)
        update_spinner("writing the report")
        from scalewise.reporting.report import with_page

        result = with_page(result, out, _outline())
    show(result, json)
    if result.failed:
        raise RunFailed(f"{result.failed} runs of the experiment failed; see {out}")


def validate(
    table: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE|DIR|FILE.csv]...",
            help="Several devices: stevens, tensorflow, t4, small, data-parallel, nccl. One device: "
            "one_gpu_torchvision, one_gpu_cnn, tensorflow_2017, one_gpu_transformers, torchtitan. Or a folder that "
            "`scalewise measure` wrote, or a CSV file as for advise --measured.",
            show_default="all published tables",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Cluster on which DIR or the CSV file was measured, as for advise; its links are then used as given.",
            show_default="links fitted to other cells of DIR",
        ),
    ] = None,
    json: shared.Json = False,
) -> None:
    """Check predictions against published measurements or your own, and print their errors."""
    from scalewise.cli.shared import show
    from scalewise.core.units import EscapingConsole
    from scalewise.validation.validate import PUBLISHED
    from scalewise.validation.validate import validate as verb

    with EscapingConsole(stderr=True, quiet=not sys.stderr.isatty()).status("predicting") as status:
        result = verb(table or PUBLISHED, cluster, on_table=lambda name: status.update(f"predicting {name}"))
    show(result, json)
