"""Where a model is cut into stages: decided here, for plans and engines alike."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal

from scalewise.errors import UserError
from scalewise.plan import Section
from scalewise.spec import unknown

Balance = Literal["counted", "measured"]
FLOPS_PER_BYTE = 10
"""Flops that take a device as long as moving one byte: 5 to 20 on CPU cores and GPUs in float32."""
SLACK = 1.05
"""Cuts whose slowest stage takes this much longer than that of the best are as good; what is held and sent decides."""
HALVINGS = 40
ADAM_COPIES = 2
"""Of the weights, as its moments."""
MODEL_COPIES = 2
"""Weights and gradients; the optimizer's state comes on top."""


class TooManyStages(UserError):
    """For the places at which a model can be cut."""


def costs_of(sections: Sequence[Section]) -> list[float]:
    """As measured, else counted: what is computed, and what is moved."""
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
    """The sections of every stage: as named, 'encoder.3+decoder.1' beginning the second and third, or balanced, and
    each within `room_bytes` if that can be.

    `samples`: those whose activations each stage has at most. `state_copies`: of the weights, as optimizer's state.
    """
    stages = len(samples)
    if cut:
        return _named(sections, stages, cut.split("+"))
    check_stages(sections, stages)
    if stages == 1:
        return [range(len(sections))]
    return list(_balanced(tuple(sections), tuple(samples), room_bytes, MODEL_COPIES + state_copies))


def check_stages(sections: Sequence[Section], stages: int) -> None:
    """That there are enough places to cut at."""
    if not sections and stages > 1:
        raise UserError(
            "this model says nowhere that it can be cut into stages; name the places with cut=MODULE+MODULE"
        )
    if stages > max(len(sections), 1):
        raise TooManyStages(
            f"{stages} stages are too many for this model: it can be cut into {len(sections)} at most "
            f"({_names(sections)}); use fewer devices"
        )


def begins_the_model(name: str) -> UserError:
    return UserError(f"'{name}' begins the model: a cut before it leaves the first stage empty")


def check_cut(cut: str) -> None:
    """Each place once."""
    names = cut.split("+")
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"cut={cut} names '{name}' {names.count(name)} times; name each place once")


def _named(sections: Sequence[Section], stages: int, names: list[str]) -> list[range]:
    known = [section.name for section in sections]
    for name in names:
        if name not in known[1:]:
            if name in known[:1]:
                raise begins_the_model(name)
            raise unknown("place to cut", name, known[1:])
    starts = sorted({known.index(name) for name in names})
    if len(starts) + 1 != stages:
        places = f"{stages - 1} place{'s' * (stages > 2)}" if stages > 1 else "none"
        raise UserError(
            f"cut={'+'.join(names)} makes {len(starts) + 1} stages, and these devices need {stages}; name {places}, or "
            "use other --devices"
        )
    bounds = [0, *starts, len(sections)]
    return [range(first, end) for first, end in pairwise(bounds)]


@lru_cache(maxsize=256)
def _balanced(
    sections: tuple[Section, ...], samples: tuple[int, ...], room_bytes: int | None, copies: int
) -> tuple[range, ...]:
    """The quickest slowest stage; among those as good, the least memory on one device, then the least to send. Where
    memory is limited only of cuts that fit, or, if none does, of those that need least."""
    costs = [0.0, *accumulate(costs_of(sections))]
    by_samples = {count: [0, *accumulate(_held_by(each, count, copies) for each in sections)] for count in samples}
    held = [by_samples[count] for count in samples]
    """Of every stage, if it had all sections before each."""
    tenth = max(max(each[-1] for each in held) // 10, 1)
    room = math.inf if room_bytes is None else max(room_bytes, _least_held(held))
    reach = {count: [bisect_right(each, start + room) - 1 for start in each] for count, each in by_samples.items()}
    ends = [reach[count] for count in samples]
    """How far a stage may reach that begins there."""
    quickest = _evenest([costs] * len(samples), ends)

    def worth(stage: int, first: int, end: int) -> Worth | None:
        if end > ends[stage][first] or costs[end] - costs[first] > SLACK * quickest:
            return None
        sent = sum(sections[end - 1].passed_bytes) if end < len(sections) else 0
        return (held[stage][end] - held[stage][first]) // tenth, sent

    bounds = _best(len(sections), len(samples), worth)
    return tuple(range(first, end) for first, end in pairwise(bounds))


def _least_held(held: Sequence[Sequence[int]]) -> int:
    """By the fullest stage, in the cut that needs least."""
    bounds = _best(len(held[0]) - 1, len(held), lambda stage, first, end: (held[stage][end] - held[stage][first], 0))
    return max(held[stage][end] - held[stage][first] for stage, (first, end) in enumerate(pairwise(bounds)))


def _held_by(section: Section, samples: int, copies: int) -> int:
    return copies * section.trained_bytes + section.frozen_bytes + samples * section.kept_bytes


def _evenest(costs: Sequence[Sequence[float]], ends: Sequence[Sequence[int]] | None = None) -> float:
    """The most of one stage, in the evenest cut that leaves none empty; `costs` are, for every stage, those of all
    sections before each, and of all."""
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


Worth = tuple[float, int]
"""Of a stage: something whose largest counts, and something whose sum counts where that is equal; less is better."""


def _best(count: int, stages: int, worth: Callable[[int, int, int], Worth | None]) -> tuple[int, ...]:
    """The bounds of the best way to cut `count` things in a row into `stages` runs, none empty."""
    found: dict[int, tuple[Worth, tuple[int, ...]]] = {0: ((0, 0), (0,))}
    for stage in range(1, stages + 1):
        reached: dict[int, tuple[Worth, tuple[int, ...]]] = {}
        for first, ((most, total), bounds) in found.items():
            for end in range(first + 1, count - (stages - stage) + 1):
                own = worth(stage - 1, first, end)
                if own is None:
                    break
                new = (max(most, own[0]), total + own[1])
                if end not in reached or new < reached[end][0]:
                    reached[end] = new, (*bounds, end)
        found = reached
    return found[count][1]


def _names(sections: Sequence[Section]) -> str:
    shown = [section.name for section in sections]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:8], "...", shown[-1]])
