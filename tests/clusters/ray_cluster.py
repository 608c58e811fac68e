"""A real Ray cluster on two emulated hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

from scalewise.launch.emulated_hosts import Host, emulate_hosts
from tests.clusters.slurm_cluster import ROOT, end_host

PORT = 6379
START_SECONDS = 120.0
OBJECT_STORE_BYTES = 80 * 2**20


@dataclass
class RayCluster:
    """A running Ray; commands run on the head's host."""

    folder: Path
    hosts: list[Host]
    daemons: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{self.hosts[0].address}:{PORT}"

    @property
    def environment(self) -> dict[str, str]:
        python_path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        return {
            **os.environ,
            "PYTHONPATH": python_path,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(self.folder),
            # Both hosts have this machine's name, which gloo would resolve to loopback.
            "GLOO_SOCKET_IFNAME": self.hosts[0].interface,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def command(self, host: Host, *words: str) -> list[str]:
        return ["nsenter", f"--net={host.namespace}", "--", *words]

    def start_node(self, number: int, cpus: int = 2) -> None:
        """Start a node of the cluster; node 0 is the head."""
        host = self.hosts[number]
        where = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self.folder}"]
        words = [
            *(where if number == 0 else [f"--address={self.address}"]),
            f"--node-ip-address={host.address}",
            f"--num-cpus={cpus}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--disable-usage-stats",
            "--block",
        ]
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", *words]
        with (self.folder / f"node{number}.out").open("ab") as log:
            self.daemons[number] = subprocess.Popen(
                self.command(host, *ray),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_for_nodes(self, count: int) -> None:
        deadline = monotonic() + START_SECONDS
        script = f"import ray; ray.init('{self.address}', log_to_driver=False, logging_level='error'); " + (
            "print(sum(node['Alive'] for node in ray.nodes()))"
        )
        while True:
            answer = subprocess.run(
                self.command(self.hosts[0], sys.executable, "-c", script),
                env=self.environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if answer.stdout.strip() == str(count):
                return
            assert monotonic() < deadline, answer.stderr[-2000:]
            sleep(0.5)

    def kill_node(self, number: int) -> None:
        """End everything on a host, as the loss of the machine would."""
        end_host(self.hosts[number])
        self.daemons.pop(number).wait()

    def start_scalewise(self, *words: str, folder: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(self.hosts[0], sys.executable, "-m", "scalewise", *words),
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def stop(self) -> None:
        for host in self.hosts:
            end_host(host)
        for daemon in self.daemons.values():
            daemon.wait()


@contextmanager
def ray_cluster(folder: Path) -> Iterator[RayCluster]:
    """Start Ray on two hosts joined by a link of 10 Gbit/s; end it with the block."""
    with ExitStack() as stack:
        cluster = RayCluster(folder, stack.enter_context(emulate_hosts(2, "10gbit")))
        stack.callback(cluster.stop)
        for number in (0, 1):
            cluster.start_node(number)
        cluster.wait_for_nodes(2)
        yield cluster
