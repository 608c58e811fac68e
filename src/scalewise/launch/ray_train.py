"""`--on ray`: run a command on a Ray cluster through Ray Train's TorchTrainer."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalewise.core.errors import RunFailed
from scalewise.launch.host_process import HostPlace, free_port, start_command
from scalewise.launch.schedulers import Request, resumed

MOST_RESTARTS = 3
"""Largest number of times that Ray starts the command again after the loss of a node."""
BATCH_LINES = 50


def run(request: Request) -> int:
    """Run the command on the cluster, show its progress, and return its exit code; Ctrl-C ends it."""
    # Ray's own reports would hide the progress of the command.
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    address = request.texts.get("address", "auto")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", runtime_env=_runtime_environment())
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise RunFailed(f"cannot connect to the Ray cluster at '{address}': {_first_line(error)}") from None
    try:
        return _run_trainer(request)
    except KeyboardInterrupt:
        hint = "; continue with --resume" if resumed(request.arguments) != request.arguments else ""
        raise RunFailed(f"interrupted; the ranks on the Ray cluster were ended{hint}") from None
    finally:
        ray.shutdown()


def _runtime_environment() -> dict[str, Any]:
    """Environment of the workers: they import the same code as this process."""
    return {"env_vars": {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}}


def _run_trainer(request: Request) -> int:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    console = ray.remote(num_cpus=0)(Console).remote()
    gpus = request.numbers.get("gpus_per_node", 0)
    cpus = request.numbers.get("cpus_per_task", 1 if gpus else request.devices_per_node)
    resources = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    _tell(f"ray: {request.nodes} x {request.devices_per_node} devices requested")
    with tempfile.TemporaryDirectory(prefix="scalewise-ray-") as storage:
        trainer = TorchTrainer(
            run_host,
            train_loop_config={
                "arguments": list(request.arguments),
                "devices": request.devices_per_node,
                "secret": secrets.token_hex(32),
                "folder": str(Path.cwd()),
                "console": console,
            },
            scaling_config=ScalingConfig(
                num_workers=request.nodes,
                use_gpu=bool(gpus),
                resources_per_worker=resources,
                placement_strategy="STRICT_SPREAD" if request.nodes > 1 else "PACK",
            ),
            run_config=RunConfig(storage_path=storage, failure_config=FailureConfig(max_failures=MOST_RESTARTS)),
        )
        with _Follower(console):
            try:
                trainer.fit()
            except SystemExit:
                raise KeyboardInterrupt from None  # Ray Train ends the ranks at Ctrl-C, and then this process
            except Exception as error:
                raise RunFailed(f"the run on the Ray cluster failed: {_first_line(error)}") from None
    code, output = ray.get(console.result.remote())
    if code is None:
        raise RunFailed("the run on the Ray cluster ended without a result")
    sys.stdout.write(output)
    sys.stdout.flush()
    return int(code)


def run_host(config: Mapping[str, Any]) -> None:
    """Run the command on one host of the cluster, as a worker of Ray Train."""
    import ray

    from scalewise.runtime.exchange import broadcast_value

    context = ray.train.get_context()
    number, hosts, console = context.get_world_rank(), context.get_world_size(), config["console"]
    place: list[Any] = []
    if number == 0:
        address = ray.util.get_node_ip_address()
        place = [address, free_port(address), ray.get(console.begin.remote())]
    if hosts > 1:
        place = broadcast_value(place, 0)
    address, port, attempt = place
    # Ray starts workers in a folder of its own.
    arguments = resumed(config["arguments"], config["folder"]) if attempt else config["arguments"]
    run_name = context.get_experiment_name() or "ray"
    host = HostPlace(number, hosts, config["devices"], address, port, config["secret"], run_name, attempt)
    if number:
        start_command(arguments, host, folder=config["folder"]).wait()
        return
    with tempfile.TemporaryFile() as output:
        process = start_command(arguments, host, output, subprocess.PIPE, config["folder"])
        assert process.stderr is not None
        for line in process.stderr:
            ray.get(console.write.remote(line.decode(errors="replace")))
        code = process.wait()
        output.seek(0)
        ray.get(console.finish.remote(code, output.read().decode(errors="replace")))


class Console:
    """Actor that receives the messages and the result of the command."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.attempts = 0
        self.code: int | None = None
        self.output = ""

    def begin(self) -> int:
        """Count a start of the command; return the number of earlier ones."""
        self.attempts += 1
        return self.attempts - 1

    def write(self, line: str) -> None:
        self.lines.append(line)

    def take(self) -> list[str]:
        """Return the lines since the last call."""
        taken, self.lines = self.lines, []
        return taken

    def finish(self, code: int, output: str) -> None:
        self.code, self.output = code, output

    def result(self) -> tuple[int | None, str]:
        return self.code, self.output


class _Follower:
    """Prints the messages of the command while the block runs."""

    POLL_SECONDS = 0.5

    def __init__(self, console: Any) -> None:
        from threading import Event, Thread

        self._console = console
        self._ended = Event()
        self._thread = Thread(target=self._follow, daemon=True)

    def __enter__(self) -> _Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(5)
        self._show()

    def _follow(self) -> None:
        while not self._ended.wait(self.POLL_SECONDS):
            self._show()

    def _show(self) -> None:
        import ray

        try:
            lines = ray.get(self._console.take.remote(), timeout=5)
        except ray.exceptions.RayError:
            return
        sys.stderr.write("".join(lines))
        sys.stderr.flush()


def _tell(line: str) -> None:
    print(f"scalewise: {line}", file=sys.stderr, flush=True)


def _first_line(error: BaseException) -> str:
    """First line of Ray's message, and the cause at the end of its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[0] if len(lines) == 1 else f"{lines[0].rstrip(':')}: {lines[-1]}"
