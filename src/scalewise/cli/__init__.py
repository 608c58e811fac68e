"""Command line. No module of it imports torch until a command needs it."""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any, NoReturn

from scalewise.core.errors import RunFailed, UserError

INTERRUPTED = 130
"""Exit code that typer returns for Ctrl-C."""
_UNDER_TORCHRUN = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def main() -> None:
    """Run the command; under torchrun on the first host only, with ranks on all hosts."""
    if _UNDER_TORCHRUN.issubset(os.environ):
        from scalewise.launch.host_process import run_on_hosts

        run_on_hosts(_run_command)
    else:
        _run_command()


def _run_command() -> None:
    """Run the command; print an error as one sentence and exit with its code."""
    # torch reads this when it is imported. Its warnings would only say that emulated hosts have no DNS name.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from scalewise.cli.app import UsageError, app, usage_error_text

    _open_standard_streams()
    before = _end_on_sigterm()
    try:
        code = app(prog_name="scalewise", standalone_mode=False)
        sys.stdout.flush()
    except UserError as error:
        _fail(str(error), 2)
    except UsageError as error:
        _fail(usage_error_text(error), 2)
    except RunFailed as error:
        if os.environ.get("SCALEWISE_TRACEBACK"):
            print(getattr(error, "details", ""), file=sys.stderr)
        _fail(str(error), 1)
    except OSError as error:
        if os.environ.get("SCALEWISE_TRACEBACK"):
            raise
        if error.filename is not None:  # a named file, not standard output
            _fail(f"cannot use {error.filename}: {error.strerror}", 1)
        _discard_output()
        _fail(f"cannot write the output: {error.strerror or error}", 1)
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    if code == INTERRUPTED:
        _fail("interrupted", 1)


def _open_standard_streams() -> None:
    """Replace closed streams, and let them write every character.

    A file that is opened later would get the number of a closed stream, and be overwritten with the output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # Writing to stdout fails, so that the result is not lost silently.
            descriptor = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))
    codecs.register_error(_REPLACE, _replacement)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors=_REPLACE)


_REPLACE = "scalewise-replace"
_IN_ASCII = {"µ": "u", "±": "+-", "█": "#", "·": ".", "×": "x", "²": "2", "≥": ">=", "→": "->", "…": "...", "–": "-"}


def _replacement(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the terminal's encoding does not have."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(character, "?") for character in text), error.end


def _end_on_sigterm() -> Any:
    """Have SIGTERM, which schedulers send, end a command as Ctrl-C does; return the handler before."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return None

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
        raise KeyboardInterrupt

    return signal.signal(signal.SIGTERM, interrupt)


def _discard_output() -> None:
    """Redirect stdout to the null device, so that Python does not report the failed write again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> NoReturn:
    from scalewise.core.units import printable

    print(f"scalewise: {printable(message)}", file=sys.stderr)
    sys.exit(code)
