"""A real Slurm on emulated nodes: munge, slurmctld and one slurmd per node, in network namespaces of this machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import psutil

from scalewise.launch.emulated_hosts import Host, emulate_hosts

ROOT = Path(__file__).parents[2]
TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "nsenter", "unshare")
START_SECONDS = 60.0
CONFIGURATION = """
ClusterName=scalewise
SlurmctldHost=controller({controller})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=2
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=15
InactiveLimit=0
KillWait=10
MinJobAge=2
JobRequeue=1
{nodes}
PartitionName=cpu Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def missing_tools() -> list[str]:
    return [tool for tool in TOOLS if shutil.which(tool) is None]


@dataclass
class SlurmCluster:
    """A running Slurm; commands run on the controller's host."""

    folder: Path
    controller: Host
    nodes: dict[str, Host]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        python_path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PYTHONPATH": python_path}

    def command(self, *words: str) -> list[str]:
        return ["nsenter", f"--net={self.controller.namespace}", "--", *words]

    def run(self, *words: str) -> str:
        """Return the output of a Slurm command."""
        result = subprocess.run(
            self.command(*words), env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        return result.stdout + result.stderr

    def start_scalewise(self, *words: str, folder: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(sys.executable, "-m", "scalewise", *words),
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, condition: str, *words: str, seconds: float = START_SECONDS) -> str:
        """Wait until the output of a command contains a text."""
        deadline = monotonic() + seconds
        while condition not in (output := self.run(*words)):
            assert monotonic() < deadline, f"{' '.join(words)} does not show '{condition}' but: {output}"
            sleep(0.2)
        return output

    def start_node(self, name: str) -> None:
        self._start(name, self.nodes[name], name, "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """End the daemon of a node and everything that it started, as the loss of the machine would."""
        end_host(self.nodes[name])
        self.daemons.pop(name).wait()

    def _start(self, key: str, host: Host, hostname: str, *words: str) -> None:
        inside = ["unshare", "--uts", "sh", "-c", f'hostname {hostname}; exec "$@"', "sh", *words]
        with (self.folder / f"{key}.out").open("ab") as log:
            self.daemons[key] = subprocess.Popen(
                ["nsenter", f"--net={host.namespace}", "--", *inside],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {"key-file": key, "socket": self.folder / "munge.socket", "pid-file": self.folder / "munge.pid"}
        files |= {"log-file": self.folder / "munge.log", "seed-file": self.folder / "munge.seed"}
        options = [f"--{option}={path}" for option, path in files.items()]
        self._start("munge", self.controller, "controller", "munged", "--foreground", "--force", *options)
        nodes = [
            f"NodeName={name} NodeAddr={host.address} CPUs=2 RealMemory=2000 State=UNKNOWN"
            for name, host in self.nodes.items()
        ]
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(controller=self.controller.address, folder=self.folder, nodes="\n".join(nodes))
        )
        self._start("slurmctld", self.controller, "controller", "slurmctld", "-D")
        for name in self.nodes:
            self.start_node(name)
        self.wait_for(f"{len(self.nodes)} idle", "sinfo", "--noheader", "--format", "%D %t")

    def stop(self) -> None:
        for host in (*self.nodes.values(), self.controller):
            end_host(host)
        for daemon in self.daemons.values():
            daemon.wait()


@contextmanager
def slurm_cluster(folder: Path, nodes: Sequence[str] = ("node1", "node2")) -> Iterator[SlurmCluster]:
    """Start Slurm with these nodes, joined by links of 10 Gbit/s; end all daemons with the block."""
    folder.chmod(0o755)
    with ExitStack() as stack:
        controller, *hosts = stack.enter_context(emulate_hosts(1 + len(nodes), "10gbit"))
        cluster = SlurmCluster(folder, controller, dict(zip(nodes, hosts, strict=True)))
        stack.callback(cluster.stop)
        cluster.start()
        yield cluster


def end_host(host: Host) -> None:
    """End every process on an emulated host, also daemons that have left their parents."""
    number = host.namespace.stat().st_ino
    for process in psutil.process_iter():
        try:
            if Path(f"/proc/{process.pid}/ns/net").stat().st_ino == number:
                process.send_signal(signal.SIGKILL)
        except (psutil.Error, OSError):
            continue
