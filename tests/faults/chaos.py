"""`make test-chaos`: random faults in training runs with `--max-restarts`.

Every run must end with the weights of an undisturbed run, or with a sentence that names the first cause and a
checkpoint from which it resumes to these weights. Nothing may be left behind. The seed is printed; `--seed S --only N`
repeats one fault.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file

from tests.command import command, finish, start

STRATEGIES = ["mirrored", "ring", "parameter-server", "central-storage", "layers", "pipeline", "tensor", "sharded"]
ON_SEVERAL_HOSTS = [strategy for strategy in STRATEGIES if strategy != "central-storage"]
FAULTS = ["kill -9", "SIGSTOP", "SIGTERM", "full disk", "link down"]
STEPS = 400
LINE = ["train", "tests.tiny:float64", "--device-kind", "cpu", "--batch", 4, "--samples", 40, "--steps", STEPS]
TIMEOUT = ["--timeout", 8]
WAIT_SECONDS = 300.0


@dataclass
class Trial:
    """One run, its fault, and what came of it."""

    number: int
    seed: int
    folder: Path
    undisturbed: Callable[[str], Path]
    """Checkpoint of an undisturbed run of a strategy."""
    problems: list[str] = field(default_factory=list)

    def run(self) -> tuple[str, str, str]:
        """Return the strategy, the fault and the outcome: 'recovered', 'stopped' or 'failed'."""
        chance = random.Random(f"{self.seed}/{self.number}")
        is_root = os.geteuid() == 0
        fault = chance.choice(FAULTS if is_root else FAULTS[:3])
        strategy = chance.choice(ON_SEVERAL_HOSTS if fault == "link down" else STRATEGIES)
        disk = self.folder / "disk"
        disk.mkdir()
        if fault == "full disk":
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], check=True)
        try:
            return strategy, fault, self._disturb(strategy, fault, disk / "c.safetensors", chance)
        finally:
            if fault == "full disk":
                subprocess.run(["umount", "--lazy", disk], check=True)

    def _disturb(self, strategy: str, fault: str, saved: Path, chance: random.Random) -> str:
        line = [*LINE, "--strategy", strategy, "--devices", 2]
        hosts = ["--hosts", 2, "--link", "1gbit"] if fault == "link down" else []
        recovery = [*TIMEOUT, "--max-restarts", 2, "--checkpoint-every", 20]
        process = start(*line, *hosts, *recovery, "--checkpoint", saved, "--json", start_new_session=True)
        while not saved.exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.random() * 0.3)
        ranks = [child for child in _children(process.pid) if child.name().startswith("sw ")]
        if ranks and process.poll() is None:
            self._inject(fault, process.pid, chance.choice(ranks), saved)
        try:
            output = finish(process, WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.problems.append(f"no end within {WAIT_SECONDS:g} s")
            os.killpg(process.pid, signal.SIGKILL)
            return "failed"
        for child in _children(process.pid):
            self.problems.append(f"process {child.pid} ({child.name()}) is left")
        with suppress(FileNotFoundError):
            (saved.parent / "filler").unlink()
        outcome = "recovered" if output.code == 0 else "stopped"
        if output.code == 0:
            if not json.loads(output.stdout)["restarts"]:
                outcome = "undisturbed"
        elif "Traceback" in output.stderr or ("--resume" not in output.stderr and "cannot write" not in output.stderr):
            self.problems.append(f"code {output.code}: {output.stderr[-600:]}")
        else:
            again = subprocess.run(
                command(*line, "--checkpoint", saved, "--resume"), capture_output=True, text=True, check=False
            )
            if again.returncode:
                self.problems.append(f"not resumed after '{output.stderr.strip()}': {again.stderr[-300:]}")
                return "failed"
        self._compare(saved, self.undisturbed(strategy))
        left = {path.name for path in saved.parent.iterdir()} - {saved.name}
        if left:
            self.problems.append(f"left in the folder: {sorted(left)}")
        return "failed" if self.problems else outcome

    def _inject(self, fault: str, launcher: int, rank: psutil.Process, saved: Path) -> None:
        if fault == "kill -9":
            rank.kill()
        elif fault == "SIGSTOP":
            rank.suspend()
        elif fault == "SIGTERM":
            os.killpg(launcher, signal.SIGTERM)
        elif fault == "full disk":
            with suppress(OSError), (saved.parent / "filler").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        else:
            down = ["nsenter", "--target", str(rank.pid), "--net", "ip", "link", "set", "wire0", "down"]
            subprocess.run(down, check=False, capture_output=True)

    def _compare(self, saved: Path, undisturbed: Path) -> None:
        first, second = load_file(saved), load_file(undisturbed)
        different = [name for name in second if name not in first or not torch.equal(first[name], second[name])]
        if different or first.keys() != second.keys():
            self.problems.append(f"other values than undisturbed: {different[:5]}")


def _children(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="scalewise-chaos-") as place:

        def undisturbed(strategy: str) -> Path:
            path = Path(place) / f"{strategy}.safetensors"
            if not path.exists():
                line = [*LINE, "--strategy", strategy, "--devices", 2, "--checkpoint", path]
                subprocess.run(command(*line), check=True, capture_output=True)
            return path

        for number in range(options.count) if options.only is None else [options.only]:
            folder = Path(place) / f"trial-{number}"
            folder.mkdir()
            trial = Trial(number, options.seed, folder, undisturbed)
            started = time.monotonic()
            strategy, fault, outcome = trial.run()
            counts[outcome] += 1
            seconds = time.monotonic() - started
            print(f"{number:3} {strategy:17} {fault:10} {outcome} ({seconds:.0f} s)", *trial.problems, flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    sys.exit(bool(counts["failed"]))


if __name__ == "__main__":
    main()
