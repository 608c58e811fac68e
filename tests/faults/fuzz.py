"""`make test-fuzz`: read mutated profiles, clusters, measurements and checkpoints.

Every file is either used or refused with a UserError or RunFailed: no other exception, at most 2 s of processor time,
and at most 300 MB more memory. The seed is printed; `--seed S --only N` repeats one file.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from scalewise.advice.advise import advise
from scalewise.core.errors import RunFailed, UserError
from scalewise.core.statistics import Interval
from scalewise.core.timeline import Lane, RecordedStep
from scalewise.formats.profile import Profile, ProfileDocument
from scalewise.formats.store import ENVIRONMENT_FILE, MEASUREMENTS_FILE, Environment, Measurement, Store
from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.cluster import cluster_template, read_cluster
from scalewise.reporting.report import findings_of
from scalewise.reporting.series import series_of

MOST_SECONDS, MOST_BYTES = 2.0, 300 * 10**6
_NASTY: list[Any] = [
    None, True, -1, 0, 1, 5, -3.5, 1e-300, 1e300, 2**63, 10**30, float("nan"), float("inf"), "", "x" * 10_000,
    "\x1b[2J", "<script>", "\udcff", [], {}, [[]], {"a": 1},
]  # fmt: skip
_NASTY_BYTES = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"-",
    b"9" * 400,
    b"1e999",
    b"nan",
    b"[" * 2000,
    b"{" * 2000,
    b'"',
    b"\\u001b",
]


class TooSlow(BaseException):
    """A file used more processor time than allowed."""


def _too_slow(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise TooSlow


PROFILE = {
    "workload": "linear",
    "device": "NVIDIA GeForce GTX 1080 Ti",
    "execution": "eager",
    "samples_per_epoch": 2000,
    "parameter_bytes": 48_408_880,
    "layers": [
        {"name": f"Linear-{number}", "parameter_bytes": 12_102_220, "activation_bytes": 4000, "flops": 6_000_000}
        for number in range(4)
    ],
    "steps": [
        {
            "batch": batch,
            "forward": 1e-3 * batch,
            "backward": 2e-3 * batch,
            "update": 1e-3,
            "load": 1e-4,
            "ready": [0.25, 0.5, 0.75, 1],
        }
        for batch in (10, 20, 50)
    ],
    "input_bytes": 48_000,
}


def measurements() -> tuple[str, str]:
    """Return the text of a measurements file and of its environments."""
    environment = Environment(hardware={"cpu": "a processor", "cores": 2, "memory_bytes": 10**9, "gpus": []})
    cells = [
        Measurement(
            workload="linear",
            strategy="mirrored" if devices > 1 else "single",
            devices=devices,
            device_kind="cpu",
            batch=batch,
            batch_per_device=batch // devices,
            optimizer="adam",
            protocol="quick",
            execution="eager",
            step_seconds=Interval(1e-3 * batch, 0.9e-3 * batch, 1.1e-3 * batch, 30),
            epoch_seconds=2.0 / batch,
            phases={"forward": 0.4e-3 * batch, "backward": 0.6e-3 * batch},
            timeline=RecordedStep(1e-3, [Lane(0, "compute", [("forward", 0, 4000), ("backward", 4000, 6000)])]),
            environment=environment.id,
            started="2026-01-01T00:00:00+00:00",
        )
        for devices in (1, 2)
        for batch in (10, 20, 50, 100)
    ]
    environments = json.dumps({environment.id: environment.model_dump(mode="json")})
    return "".join(cell.to_line().decode() for cell in cells), environments


def mutated_json(document: Any, chance: random.Random) -> Any:
    """Replace, remove or add values at a few random places of a JSON document."""
    document = json.loads(json.dumps(document))
    for _ in range(chance.randint(1, 3)):
        places = list(_places(document))
        parent, key = chance.choice(places)
        action = chance.randrange(4)
        if action == 0:
            del parent[key]
        elif action == 1 and isinstance(parent, list):
            parent.insert(key, parent[key])
        elif action == 2 or (action == 3 and type(parent[key]) is int):
            parent[key] = _similar(parent[key], chance)
        else:
            parent[key] = chance.choice(_NASTY)
        if not list(_places(document)):
            break
    return document


def _similar(value: Any, chance: random.Random) -> Any:
    """Return another value of the same type, which readers are more likely to accept."""
    if type(value) is int:
        return chance.choice([0, 1, 2, 3, 7, 1000, 10**9, value + 1, value * 10**6])
    if isinstance(value, float):
        return value * chance.choice([-1, 0, 1e-12, 0.5, 2, 1e6])
    return value * 2 if isinstance(value, (str, list)) else chance.choice(_NASTY)


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    entries = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(entries):
        yield document, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def mutated_bytes(content: bytes, chance: random.Random) -> bytes:
    """Flip, cut, repeat or insert bytes."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place, length = chance.randrange(len(data) + 1), chance.choice([1, 2, 8, 64, 1000])
        match chance.randrange(5):
            case 0 if place < len(data):
                data[place] ^= 1 << chance.randrange(8)
            case 1:
                del data[place : place + length]
            case 2:
                data[place:place] = data[place : place + length]
            case 3:
                data[place:place] = chance.choice(_NASTY_BYTES)
            case _:
                del data[place:]
    return bytes(data)


class Files:
    """Intact files, and what is done with a mutated one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.profile = folder / "intact.profile.json"
        Profile(ProfileDocument.model_validate(PROFILE)).write(self.profile)
        self.cluster = cluster_template(cluster_of("4x-gtx-1080-ti")).encode()
        self.lines, self.environments = measurements()
        self.checkpoint = self._checkpoint()

    def _checkpoint(self) -> bytes:
        import torch
        from torch import nn

        from scalewise.training.checkpoint import Progress, save_checkpoint

        path, model = self.folder / "intact.safetensors", nn.Linear(4, 3)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        save_checkpoint(path, model, optimizer, Progress("tiny", 16, 4, "adam", 0.1, 0, 1, "fp32", 7))
        return path.read_bytes()

    def kinds(self) -> dict[str, Callable[[random.Random], None]]:
        return {
            "profile": self._read_profile,
            "cluster": self._read_cluster,
            "measurements": self._read_measurements,
            "checkpoint": self._read_checkpoint,
        }

    def _read_profile(self, chance: random.Random) -> None:
        path = self.folder / "profile.json"
        text = json.dumps(mutated_json(PROFILE, chance)).encode("utf-8", "surrogatepass")
        path.write_bytes(text if chance.random() < 0.7 else mutated_bytes(self.profile.read_bytes(), chance))
        str(advise(profile=path, cluster="4x-gtx-1080-ti"))

    def _read_cluster(self, chance: random.Random) -> None:
        path = self.folder / "cluster.toml"
        lines = self.cluster.split(b"\n")
        number = chance.randrange(len(lines))
        key, equals, value = lines[number].partition(b" = ")
        if equals and chance.random() < 0.7:
            changed = [
                repr(chance.choice(_NASTY)).encode("utf-8", "replace"),
                value * 2,
                b"-" + value,
                value + b"0" * 9,
            ]
            lines[number] = key + equals + chance.choice(changed)
            path.write_bytes(b"\n".join(lines))
        else:
            path.write_bytes(mutated_bytes(self.cluster, chance))
        read_cluster(path)
        str(advise(profile=self.profile, cluster=str(path)))

    def _read_measurements(self, chance: random.Random) -> None:
        folder = self.folder / "sweep"
        folder.mkdir(exist_ok=True)
        lines = self.lines.splitlines()
        number = chance.randrange(len(lines))
        if chance.random() < 0.7:
            lines[number] = json.dumps(mutated_json(json.loads(lines[number]), chance))
        content = ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")
        content = content if chance.random() < 0.7 else mutated_bytes(content, chance)
        (folder / MEASUREMENTS_FILE).write_bytes(content)
        environments = self.environments.encode()
        (folder / ENVIRONMENT_FILE).write_bytes(
            environments if chance.random() < 0.7 else mutated_bytes(environments, chance)
        )
        cells = Store.read(folder)
        for series in series_of(cells, Store.environments(folder)):
            for finding in findings_of(series):
                str(finding)

    def _read_checkpoint(self, chance: random.Random) -> None:
        import torch
        from torch import nn

        from scalewise.training.checkpoint import Progress, load_checkpoint, saved_progress

        path, model = self.folder / "c.safetensors", nn.Linear(4, 3)
        path.write_bytes(mutated_bytes(self.checkpoint, chance))
        saved_progress(path)
        expected = Progress("tiny", 16, 4, "adam", 0.1, 0, 1, "fp32", 7)
        load_checkpoint(path, model, torch.optim.Adam(model.parameters()), expected)


def check(number: int, seed: int, files: Files) -> tuple[str, str, str]:
    """Read one mutated file; return its kind, what happened, and the details of a failure."""
    chance = random.Random(f"{seed}/{number}")
    kinds = files.kinds()
    kind = list(kinds)[number % len(kinds)]
    resource_before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    try:
        kinds[kind](chance)
        outcome = "used"
    except (UserError, RunFailed) as error:
        outcome = "refused" if "\n" not in str(error) else "several lines"
        if outcome != "refused":
            return kind, outcome, str(error)
    except TooSlow:
        return kind, "too slow", f"more than {MOST_SECONDS} s of processor time\n{traceback.format_exc()}"
    except BaseException:
        return kind, "traceback", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resource_before)
    if grown > MOST_BYTES:
        return kind, "too large", f"{grown / 1e6:.0f} MB, {time.process_time() - started:.1f} s"
    return kind, outcome, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    signal.signal(signal.SIGVTALRM, _too_slow)
    counts: Counter[str] = Counter()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        numbers = range(options.count) if options.only is None else [options.only]
        for number in numbers:
            kind, outcome, details = check(number, options.seed, files)
            counts[f"{kind} {outcome}"] += 1
            if details:
                failures += 1
                if failures <= 10:
                    print(f"--only {number}: {kind} {outcome}\n{details}", flush=True)
    print(", ".join(f"{name}: {count:,}" for name, count in sorted(counts.items())))
    print(f"{len(list(numbers)):,} files, {failures} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
