"""In which order every device of a pipeline works on its micro-batches, as torch.distributed.pipelining has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gpipe", "1f1b", "interleaved"]


@dataclass(frozen=True, order=True)
class Work:
    """Forward or backward of one micro-batch through one stage."""

    phase: Literal["forward", "backward"]
    stage: int
    microbatch: int


def schedule_of(kind: Kind, devices: int, stages_each: int, microbatches: int) -> list[list[Work]]:
    """What each device does. Stage s is on device s % devices."""
    if kind == "gpipe":
        return [_gpipe(device, microbatches) for device in range(devices)]
    if kind == "1f1b":
        return [_one_by_one(device, devices, microbatches) for device in range(devices)]
    return [_interleaved(device, devices, stages_each, microbatches) for device in range(devices)]


def most_under_way(schedule: Sequence[Sequence[Work]], stages: int) -> list[int]:
    """Of every stage, the micro-batches that have been through forward and not yet through backward, at most."""
    now, most = [0] * stages, [0] * stages
    for works in schedule:
        for work in works:
            now[work.stage] += 1 if work.phase == "forward" else -1
            most[work.stage] = max(most[work.stage], now[work.stage])
    return most


def _gpipe(stage: int, microbatches: int) -> list[Work]:
    """F0 F1 F2 F3 B0 B1 B2 B3"""
    numbers = range(microbatches)
    return [Work("forward", stage, each) for each in numbers] + [Work("backward", stage, each) for each in numbers]


def _one_by_one(stage: int, stages: int, microbatches: int) -> list[Work]:
    """Of the first of two stages: F0 F1 B0 F2 B1 F3 B2 B3. No more micro-batches are held than stages follow."""
    ahead = min(microbatches, stages - stage)
    work = [Work("forward", stage, each) for each in range(ahead)]
    for each in range(microbatches):
        work.append(Work("backward", stage, each))
        if ahead + each < microbatches:
            work.append(Work("forward", stage, ahead + each))
    return work


def _interleaved(device: int, devices: int, stages_each: int, microbatches: int) -> list[Work]:
    """Rounds of micro-batches go through a device's first stage, then its second, and so on; backward from the last."""
    in_round = microbatches // max(1, microbatches // devices)
    total = stages_each * microbatches
    ahead = min((stages_each - 1) * in_round + 2 * (devices - 1 - device), total)
    done: Counter[tuple[str, int]] = Counter()

    def next_of(phase: Literal["forward", "backward"], local: int) -> Work:
        stage = local * devices + device
        done[phase, stage] += 1
        return Work(phase, stage, done[phase, stage] - 1)

    forward: Callable[[int], Work] = lambda turn: next_of("forward", turn // in_round % stages_each)  # noqa: E731
    backward: Callable[[int], Work] = lambda turn: next_of(  # noqa: E731
        "backward", stages_each - 1 - turn // in_round % stages_each
    )
    work = [forward(turn) for turn in range(ahead)]
    for turn in range(total - ahead):
        work += [forward(ahead + turn), backward(turn)]
    return work + [backward(turn) for turn in range(total - ahead, total)]
