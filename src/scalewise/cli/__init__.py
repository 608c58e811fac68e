"""The command line. Nothing here imports torch until a command needs it."""

from __future__ import annotations

import os
import sys

from scalewise.errors import RunFailed, UserError


def main() -> None:
    """Run the command; a UserError or RunFailed becomes one sentence and its exit code."""
    # Read as torch loads: below errors it only remarks that rehearsed hosts have no DNS name.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from scalewise.cli.app import app

    try:
        app(prog_name="scalewise")
    except UserError as error:
        _fail(str(error), 2)
    except RunFailed as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("interrupted", 1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; Python would complain once more at exit
        sys.exit(1)


def _fail(sentence: str, code: int) -> None:
    print(f"scalewise: {sentence}", file=sys.stderr)
    sys.exit(code)
