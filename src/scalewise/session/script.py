"""The person's own script: ranks run it again only if a task needs something that is defined in it.

Left alone, multiprocessing has every new process run the main script first, so that scripts without a guard start
themselves over and over, and a command line is loaded again by each rank.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from scalewise.errors import UserError

_running_again = False


@contextmanager
def out_of_sight() -> Iterator[None]:
    """While processes are started: they find no script to run."""
    main: Any = sys.modules["__main__"]
    kept = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    vars(main).update(dict.fromkeys(kept))
    try:
        yield
    finally:
        vars(main).update(kept)


def needed_by(order: bytes) -> dict[str, Any]:
    """How a rank finds the script if this pickle refers to it; empty if it does not."""
    if b"__main__" not in order:
        return {}
    found = {key: value for key, value in spawn.get_preparation_data("").items() if key.startswith("init_main")}
    if not found or not Path(found.get("init_main_from_path", __file__)).is_file():
        raise UserError(
            "what is defined in a notebook or at a prompt cannot reach other processes; import it from a file"
        )
    return found


def run_again(found: dict[str, Any]) -> None:
    """On a rank; multiprocessing remembers what has been run and names it '__mp_main__', which guards rely on."""
    global _running_again
    _running_again = True
    try:
        spawn.prepare(found)
    finally:
        _running_again = False


def refuse_a_session() -> None:
    """A script that is being run by a rank must not start ranks of its own."""
    if _running_again:
        raise UserError(
            "ranks run this script too, because the task needs something defined in it; "
            "put what starts the session under: if __name__ == '__main__':"
        )
