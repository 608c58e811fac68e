"""The command line. Nothing here imports torch until a command needs it."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from scalewise.errors import RunFailed, UserError

INTERRUPTED = 130
"""What typer makes of a Ctrl-C."""


def main() -> None:
    """Run the command; whatever ends it badly becomes one sentence and its exit code."""
    # Read as torch loads: below errors it only remarks that rehearsed hosts have no DNS name.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from scalewise.cli.app import app
    from scalewise.cli.usage import UsageError, sentence_of

    try:
        code = app(prog_name="scalewise", standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        _fail(str(error), 2)
    except UsageError as error:
        _fail(sentence_of(error), 2)
    except RunFailed as error:
        if os.environ.get("SCALEWISE_TRACEBACK"):
            print(getattr(error, "details", ""), file=sys.stderr)
        _fail(str(error), 1)
    except OSError as error:
        if error.filename is not None:  # a named file, not standard output
            raise
        _drop_output()
        _fail(f"cannot write the output: {error.strerror}", 1)
    if code == INTERRUPTED:
        _fail("interrupted", 1)


def _drop_output() -> None:
    """Where output cannot go, Python would complain once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(sentence: str, code: int) -> NoReturn:
    print(f"scalewise: {sentence}", file=sys.stderr)
    sys.exit(code)
