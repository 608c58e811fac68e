"""`scalewise tune` that prints its progress on stdout, for the test that interrupts it."""

from __future__ import annotations

import sys

from scalewise.cli import main
from scalewise.tuning import trials
from scalewise.tuning.tune import _Run


def printing(run: _Run, text: str) -> None:
    print(len(run.finished), text, flush=True)


if __name__ == "__main__":
    trials.BLOCK_SECONDS = 0.02
    _Run.report = printing  # type: ignore[method-assign,assignment]
    sys.argv = ["scalewise", "tune", sys.argv[1], "--input", "1x8x8", "--classes", "3", "--batch", "4"]
    main()
