"""`--on slurm`: submit a command through submitit, show the queue and the progress, and return its exit code."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

from scalewise.core.errors import RunFailed, UserError
from scalewise.launch.host_process import HostPlace, announce_address, start_command, wait_for_address
from scalewise.launch.schedulers import Request, resumed

POLL_SECONDS = 1.0
MINUTES = 60
"""Time limit of a job without the option `time`."""
MOST_TIMEOUTS = 20
"""Largest number of times that a job that reached its time limit is submitted again."""
SAVE_SECONDS = 80.0
"""Longest wait for a checkpoint before the time limit; Slurm warns 90 s before."""
NAMED = ("partition", "account", "qos", "constraint")
"""Options that submitit takes as `slurm_NAME`."""


def run(request: Request) -> int:
    """Submit the command, follow it, and return its exit code; Ctrl-C cancels the job."""
    if shutil.which("sbatch") is None:
        raise UserError("--on slurm needs the command 'sbatch', which is not installed here; run it on a login node")
    folder = Path(request.texts.get("folder", "scalewise-jobs")) / f"{request.command}-{secrets.token_hex(4)}"
    folder.mkdir(parents=True, mode=0o700)
    job = _submit(request, folder.resolve())
    where = f" to partition {request.texts['partition']}" if "partition" in request.texts else ""
    _tell(f"slurm job {job} submitted{where}: {request.nodes} x {request.devices_per_node} devices; logs in {folder}")
    follower = Follower(job, folder)
    try:
        return follower.follow()
    except KeyboardInterrupt:
        subprocess.run(["scancel", job], check=False)
        hint = "; continue with --resume" if resumed(request.arguments) != request.arguments else ""
        raise RunFailed(f"interrupted; slurm job {job} was cancelled{hint}") from None


def _submit(request: Request, folder: Path) -> str:
    import submitit

    executor = submitit.AutoExecutor(folder=folder, cluster="slurm", slurm_max_num_timeout=MOST_TIMEOUTS)
    parameters: dict[str, Any] = {
        "name": f"scalewise-{request.command}",
        "timeout_min": request.numbers.get("time", MINUTES),
        "nodes": request.nodes,
        "tasks_per_node": 1,
        "cpus_per_task": request.numbers.get(
            "cpus_per_task", 1 if "gpus_per_node" in request.numbers else request.devices_per_node
        ),
        "slurm_additional_parameters": {"requeue": True},
    }
    if request.numbers.get("gpus_per_node"):
        parameters["gpus_per_node"] = request.numbers["gpus_per_node"]
    if "mem_gb" in request.numbers:
        parameters["mem_gb"] = request.numbers["mem_gb"]
    if request.command == "measure":
        # A sweep continues with the cells that fit the remaining hosts.
        parameters["slurm_additional_parameters"]["no-kill"] = True
        parameters["slurm_srun_args"] = ["--no-kill"]
    parameters |= {f"slurm_{key}": value for key, value in request.texts.items() if key in NAMED}
    executor.update_parameters(**parameters)
    try:
        job = executor.submit(HostTask(request.arguments, str(folder), request.devices_per_node, secrets.token_hex(32)))
    except submitit.core.utils.FailedJobError as error:
        raise RunFailed(f"slurm refused the job: {_last_line(str(error))}") from None
    return str(job.job_id)


@dataclass
class HostTask:
    """Task of one node of the job: runs the command there. submitit pickles it."""

    arguments: tuple[str, ...]
    folder: str
    devices: int
    secret: str
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def __call__(self) -> int:
        node, attempt = int(os.environ.get("SLURM_NODEID", "0")), int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        folder = Path(self.folder)
        file = folder / f"address-{attempt}.json"
        address, port = wait_for_address(file) if node else announce_address(file, _own_address())
        place = HostPlace(
            node,
            int(os.environ.get("SLURM_NNODES", "1")),
            self.devices,
            address,
            port,
            self.secret,
            os.environ["SLURM_JOB_ID"],
            attempt,
        )
        arguments = resumed(self.arguments) if attempt else self.arguments
        if node:
            self.process = start_command(arguments, place)
            return self._wait()
        with (folder / "output.txt").open("wb") as output, (folder / "progress.txt").open("ab") as progress:
            self.process = start_command(arguments, place, output, progress)
            code = self._wait()
        (folder / "exit.txt").write_text(str(code))
        return code

    def checkpoint(self) -> Any:
        """Called by submitit before the time limit: end the command, which saves, and run it again."""
        import submitit

        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(SAVE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        (Path(self.folder) / "exit.txt").unlink(missing_ok=True)
        return submitit.helpers.DelayedSubmission(HostTask(self.arguments, self.folder, self.devices, self.secret))

    def _wait(self) -> int:
        process = self.process
        assert process is not None
        # Slurm sends SIGTERM before it cancels or requeues a job; the command then saves its checkpoint.
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        return process.wait()


def _own_address() -> str:
    """Address of this node at which the other nodes of the job reach it."""
    try:
        return socket.gethostbyname(os.environ["SLURM_LAUNCH_NODE_IPADDR"])
    except (KeyError, OSError):
        return socket.gethostbyname(socket.gethostname())


class Follower:
    """Shows the state and the output of a job."""

    def __init__(self, job: str, folder: Path) -> None:
        self._job, self._folder = job, folder
        self._shown_bytes = 0
        self._state = ""

    def follow(self) -> int:
        """Return the exit code of the command when the job has left the queue."""
        while (state := self._queue_state()) is not None:
            if state and state != self._state:
                self._state = state
                _tell(f"slurm job {self._job}: {state}")
            self._show_progress()
            sleep(POLL_SECONDS)
        self._show_progress()
        exit_file, output = self._folder / "exit.txt", self._folder / "output.txt"
        if not exit_file.exists():
            raise RunFailed(
                f"slurm job {self._job} ended without a result (last state: {self._state}); see {self._folder}"
            )
        sys.stdout.write(output.read_text())
        sys.stdout.flush()
        return int(exit_file.read_text())

    def _queue_state(self) -> str | None:
        """State and reason in the queue; empty if the controller does not answer, None if the job has left."""
        answer = subprocess.run(
            ["squeue", "--noheader", "--jobs", self._job, "--format", "%T %R"],
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode:
            return None if "Invalid job id" in answer.stderr else ""
        lines = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
        return lines[0] if lines else None

    def _show_progress(self) -> None:
        file = self._folder / "progress.txt"
        if not file.exists():
            return
        with file.open("rb") as progress:
            progress.seek(self._shown_bytes)
            new = progress.read()
        self._shown_bytes += len(new)
        if new:
            sys.stderr.write(new.decode(errors="replace"))
            sys.stderr.flush()


def _tell(line: str) -> None:
    print(f"scalewise: {line}", file=sys.stderr, flush=True)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"
