"""Where output goes: results to stdout as a table or one JSON document, all else to stderr."""

from __future__ import annotations

import json
import sys

from rich.console import Console

from scalewise.results.printable import Printable


def show(result: Printable, as_json: bool) -> None:
    """Print a result the way it was asked for."""
    if as_json:
        json.dump(result.to_json(), sys.stdout, indent=2)
        print()
    else:
        Console(highlight=False).print(result)
