"""Execute the example notebook and save it with its outputs: `make notebook`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "will_more_devices_help.ipynb"
SECONDS = 600
"""Most seconds for one cell."""


def executed(path: Path) -> Any:
    """Run all cells in the notebook's folder; return the notebook with its outputs, without times and warnings."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(path.parent)}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return notebook


def code_of(path: Path) -> list[str]:
    """Return the source of the code cells."""
    return [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "110")
    nbformat.write(executed(NOTEBOOK), NOTEBOOK)
    print(f"executed {NOTEBOOK.name}", file=sys.stderr)
