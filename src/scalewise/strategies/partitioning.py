"""Partition a model into balanced stages."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal

from scalewise.core.errors import UserError
from scalewise.core.specs import unknown
from scalewise.strategies.plan import Section

Balance = Literal["counted", "measured"]
FLOPS_PER_BYTE = 10
"""Flops that a device computes in the time of moving one byte: 5 to 20 on CPU cores and GPUs in float32."""
SLACK = 1.05
"""Partitions whose slowest stage is within this factor of the best are equally good; memory and bytes sent decide."""
HALVINGS = 40
ADAM_COPIES = 2
"""Copies of the weights in Adam's state (its two moments)."""
MODEL_COPIES = 2
"""Copies of the weights without optimizer state: weights and gradients."""


class TooManyStages(UserError):
    """The model has fewer sections than the requested number of stages."""


def costs_of(sections: Sequence[Section]) -> list[float]:
    """Cost of every section: measured seconds if there are any, otherwise flops plus bytes moved in flops."""
    if any(section.seconds for section in sections):
        return [section.seconds for section in sections]
    return [section.flops + FLOPS_PER_BYTE * section.kept_bytes for section in sections]


def stage_ranges(
    sections: Sequence[Section],
    samples: Sequence[int],
    cut: str = "",
    room_bytes: int | None = None,
    state_copies: int = ADAM_COPIES,
) -> list[range]:
    """Sections of every stage.

    Args:
        samples: for each stage, the largest number of samples whose activations it keeps.
        cut: modules that begin the second, third, ... stage, as 'encoder.3+decoder.1'; empty: balanced stages.
        room_bytes: memory of a device; balanced stages fit it if that is possible.
        state_copies: copies of the weights in the optimizer state.
    """
    stages = len(samples)
    if cut:
        return _ranges_by_name(sections, stages, cut.split("+"))
    check_stages(sections, stages)
    if stages == 1:
        return [range(len(sections))]
    return list(_balanced_ranges(tuple(sections), tuple(samples), room_bytes, MODEL_COPIES + state_copies))


def check_stages(sections: Sequence[Section], stages: int) -> None:
    """Raise UserError if the model cannot be split into this number of stages."""
    if not sections and stages > 1:
        raise UserError(
            "this model cannot be split into stages automatically",
            "name the modules that begin the second, third, ... stage with cut=MODULE+MODULE",
        )
    if stages > max(len(sections), 1):
        raise TooManyStages(
            f"{stages} stages are too many for this model: it can be split into {len(sections)} at most",
            "use fewer devices",
            _names(sections),
        )


def begins_the_model(name: str) -> UserError:
    return UserError(
        f"cut: '{name}' is the first module of the model, which would leave the first stage empty",
        "name modules that begin the second, third, ... stage",
    )


def check_cut(cut: str) -> None:
    """Raise UserError if a module is named more than once."""
    names = cut.split("+")
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"cut={cut} names '{name}' {names.count(name)} times", "name each module once")


def _ranges_by_name(sections: Sequence[Section], stages: int, names: list[str]) -> list[range]:
    valid = [section.name for section in sections]
    for name in names:
        if name not in valid[1:]:
            if name in valid[:1]:
                raise begins_the_model(name)
            raise unknown("module to cut at", name, valid[1:])
    starts = sorted({valid.index(name) for name in names})
    if len(starts) + 1 != stages:
        needed = f"name {stages - 1} module{'s' * (stages > 2)}" if stages > 1 else "leave cut out"
        raise UserError(
            f"cut={'+'.join(names)} makes {len(starts) + 1} stages, but the devices need {stages}",
            f"{needed}, or change --devices",
        )
    bounds = [0, *starts, len(sections)]
    return [range(first, end) for first, end in pairwise(bounds)]


@lru_cache(maxsize=256)
def _balanced_ranges(
    sections: tuple[Section, ...], samples: tuple[int, ...], room_bytes: int | None, copies: int
) -> tuple[range, ...]:
    """Partition with the fastest slowest stage; among equally good ones, with the least memory on a device, then with
    the fewest bytes sent.

    With limited memory, only partitions that fit are considered, or those that need least if none fits.
    """
    costs = [0.0, *accumulate(costs_of(sections))]
    by_samples = {
        count: [0, *accumulate(_held_by(section, count, copies) for section in sections)] for count in samples
    }
    held = [by_samples[count] for count in samples]
    """For every stage, cumulative bytes of the sections if all were in that stage."""
    tenth = max(max(cumulative[-1] for cumulative in held) // 10, 1)
    room = math.inf if room_bytes is None else max(room_bytes, _least_held(held))
    farthest = {
        count: [bisect_right(cumulative, start + room) - 1 for start in cumulative]
        for count, cumulative in by_samples.items()
    }
    ends = [farthest[count] for count in samples]
    """For every stage and first section, the farthest end that fits in memory."""
    quickest = _smallest_maximum([costs] * len(samples), ends)

    def cost(stage: int, first: int, end: int) -> StageCost | None:
        if end > ends[stage][first] or costs[end] - costs[first] > SLACK * quickest:
            return None
        sent = sum(sections[end - 1].passed_bytes) if end < len(sections) else 0
        return (held[stage][end] - held[stage][first]) // tenth, sent

    bounds = _best_bounds(len(sections), len(samples), cost)
    return tuple(range(first, end) for first, end in pairwise(bounds))


def _least_held(held: Sequence[Sequence[int]]) -> int:
    """Bytes of the fullest stage in the partition that needs the least memory."""
    bounds = _best_bounds(
        len(held[0]) - 1, len(held), lambda stage, first, end: (held[stage][end] - held[stage][first], 0)
    )
    return max(held[stage][end] - held[stage][first] for stage, (first, end) in enumerate(pairwise(bounds)))


def _held_by(section: Section, samples: int, copies: int) -> int:
    return copies * section.trained_bytes + section.frozen_bytes + samples * section.kept_bytes


def _smallest_maximum(costs: Sequence[Sequence[float]], ends: Sequence[Sequence[int]] | None = None) -> float:
    """Cost of the most expensive stage in the most even partition without empty stages.

    `costs`: for every stage, cumulative costs of the sections, starting with 0.
    """
    count = len(costs[0]) - 1

    def is_enough(limit: float) -> bool:
        at = 0
        for stage, before in enumerate(costs):
            reached = bisect_right(before, before[at] + limit) - 1
            reached = min(reached, ends[stage][at] if ends else count, count - (len(costs) - 1 - stage))
            if reached <= at:
                return False
            at = reached
        return at == count

    low, high = 0.0, float(max(before[-1] for before in costs))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


StageCost = tuple[float, int]
"""Cost of a stage. A partition is as good as the largest first element; ties are decided by the sum of the second."""


def _best_bounds(count: int, stages: int, cost: Callable[[int, int, int], StageCost | None]) -> tuple[int, ...]:
    """Bounds of the cheapest partition of `count` consecutive items into `stages` non-empty runs.

    `cost(stage, first, end)` returns None if the run, and any longer one, is not allowed.
    """
    best: dict[int, tuple[StageCost, tuple[int, ...]]] = {0: ((0, 0), (0,))}
    for stage in range(1, stages + 1):
        extended: dict[int, tuple[StageCost, tuple[int, ...]]] = {}
        for first, ((most, total), bounds) in best.items():
            for end in range(first + 1, count - (stages - stage) + 1):
                own = cost(stage - 1, first, end)
                if own is None:
                    break
                new = (max(most, own[0]), total + own[1])
                if end not in extended or new < extended[end][0]:
                    extended[end] = new, (*bounds, end)
        best = extended
    return best[count][1]


def _names(sections: Sequence[Section]) -> str:
    names = [section.name for section in sections]
    return ", ".join(names if len(names) <= 12 else [*names[:8], "...", names[-1]])
