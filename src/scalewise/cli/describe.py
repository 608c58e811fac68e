"""`scalewise describe`."""

from __future__ import annotations

from scalewise.cli import options
from scalewise.cli.options import WorkloadName


def describe(
    workload: WorkloadName,
    input: options.InputShape = None,
    classes: options.Classes = None,
    json: options.Json = False,
) -> None:
    """Show a workload's layers: output shapes, parameters, memory, flops."""
    from scalewise.cli.output import show
    from scalewise.verbs.describe import describe as verb
    from scalewise.workloads.resolve import resolve

    show(verb(resolve(workload, input, classes)), json)
