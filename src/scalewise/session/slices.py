"""Slices of one GPU: ranks with a fixed share of its multiprocessors each, through a CUDA MPS daemon of our own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scalewise.errors import RunFailed, UserError
from scalewise.session.janitor import afterwards

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_CONTROL = "nvidia-cuda-mps-control"
_START_SECONDS = 20


@contextmanager
def slices(devices: int, percent: int | None) -> Iterator[dict[str, str]]:
    """The environment that makes a process one slice, if it is set before CUDA starts there.

    MPS shares multiprocessors, not memory bandwidth or caches. The GPU's clocks, compute mode and partitions stay as
    they are, and so does any other MPS daemon: ours has its own folder. It ends with the block, or with this process.
    """
    control = shutil.which(_CONTROL)
    if control is None:
        raise UserError(
            f"slices need CUDA MPS, but the command '{_CONTROL}' is not installed; use --device-kind cuda or cpu"
        )
    folder = Path(tempfile.mkdtemp(prefix="scalewise-mps-"))
    pipes, logs = folder / "pipes", folder / "logs"
    mps = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes), "CUDA_MPS_LOG_DIRECTORY": str(logs)}
    with afterwards(_end(control, mps, folder)):
        pipes.mkdir()
        logs.mkdir()
        _start(control, mps, folder)
        share = 100 // devices if percent is None else percent
        # The daemon was shown one GPU, which is therefore number 0 to everyone behind it.
        yield mps | {SHARE: str(share), "CUDA_VISIBLE_DEVICES": "0"}


def _start(control: str, mps: dict[str, str], folder: Path) -> None:
    first_gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    # Not a pipe: the daemon would keep it open, and we would wait for its end.
    said = folder / "start.txt"
    with said.open("w") as output:
        try:
            started = subprocess.run(
                [control, "-d"],
                env={**os.environ, **mps, "CUDA_VISIBLE_DEVICES": first_gpu},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                timeout=_START_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RunFailed(f"{_CONTROL} did not start within {_START_SECONDS} s") from None
    if started.returncode:
        raise RunFailed(
            f"{_CONTROL} did not start (exit code {started.returncode}): {' '.join(said.read_text().split())}"
        )


def _end(control: str, mps: dict[str, str], folder: Path) -> str:
    """Ask the daemon to quit, see that it and its servers are gone within five seconds, else kill them by id."""
    ask = f"timeout 5 {shlex.quote(control)} 2>/dev/null"
    pid_file = shlex.quote(str(Path(mps["CUDA_MPS_PIPE_DIRECTORY"]) / f"{_CONTROL}.pid"))
    return "\n".join(
        [
            *(f"export {name}={shlex.quote(value)}" for name, value in mps.items()),
            f"daemon=$(cat {pid_file} 2>/dev/null)",
            f"servers=$(echo get_server_list | {ask})",
            f"echo quit -t 2 | {ask}",
            "for i in $(seq 50); do",
            '  left=""; for id in $daemon $servers; do kill -0 "$id" 2>/dev/null && left="$left $id"; done',
            '  [ -z "$left" ] && break; sleep 0.1',
            "done",
            '[ -z "$left" ] || kill -9 $left',
            f"rm -rf {shlex.quote(str(folder))}",
        ]
    )
