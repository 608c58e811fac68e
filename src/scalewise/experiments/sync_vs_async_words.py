"""What the times say, in words: who was sooner where, and so when each is the better choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from scalewise.results.units import seconds_text

EVEN = 0.05
"""Differences up to this part of the shorter time are called even."""


class Rated(Protocol):
    @property
    def samples_per_second(self) -> float | None: ...


Times = Mapping[str, float | None]
"""By strategy, the synchronous one first; None: the loss was never reached."""


def findings(times: Mapping[str, Times], ran: Mapping[str, Mapping[str, Rated]], target: float) -> list[str]:
    """One sentence per condition, then when to choose which."""
    said = [sentence(name, each, target) for name, each in times.items()]
    if "a straggler" in ran and "equal devices" in ran:
        said.append(_throughput(ran))
    sooner = [name for name, each in times.items() if winner(each) == "asynchronous"]
    later = [name for name, each in times.items() if winner(each) == "synchronous"]
    even = [name for name, each in times.items() if winner(each) == "even"]
    choice = []
    if sooner:
        choice.append(f"asynchronous training was the better choice with {_listed(sooner)}")
    if later:
        choice.append(f"synchronous training with {_listed(later)}")
    if even:
        choice.append(f"they were even with {_listed(even)}")
    return [
        _capital("; ".join(choice)) + ".",
        *said,
        "An asynchronous update is made from one worker's part of a batch: the same samples make as many more, smaller "
        "updates as there are workers, which by itself may be quicker or slower to a loss. The order of its updates "
        "differs from run to run, and these are single runs.",
    ]


def winner(times: Times) -> str:
    synchronous, asynchronous = times.values()
    if synchronous is None and asynchronous is None:
        return "neither"
    if synchronous is None or asynchronous is None:
        return "asynchronous" if synchronous is None else "synchronous"
    if abs(synchronous - asynchronous) <= EVEN * min(synchronous, asynchronous):
        return "even"
    return "asynchronous" if asynchronous < synchronous else "synchronous"


def sentence(name: str, times: Times, target: float) -> str:
    """'With a straggler, loss 1.20 took 30 s synchronously and 12 s asynchronously: 2.5 times as long.'"""
    synchronous, asynchronous = times.values()
    if synchronous is None or asynchronous is None:
        spoken = [
            f"{seconds_text(seconds) if seconds is not None else 'was never reached'} {how}"
            for seconds, how in ((synchronous, "synchronously"), (asynchronous, "asynchronously"))
        ]
        return f"With {name}, loss {target:.2f}: {' and '.join(spoken)}."
    longer, shorter = max(synchronous, asynchronous), min(synchronous, asynchronous)
    slower = "synchronous" if synchronous > asynchronous else "asynchronous"
    return (
        f"With {name}, loss {target:.2f} took {seconds_text(synchronous)} synchronously and "
        f"{seconds_text(asynchronous)} asynchronously: {slower} training took {longer / shorter:.2f} times as long."
    )


def _throughput(ran: Mapping[str, Mapping[str, Rated]]) -> str:
    kept = []
    for strategy in ran["equal devices"]:
        before, after = (
            ran["equal devices"][strategy].samples_per_second,
            ran["a straggler"][strategy].samples_per_second,
        )
        kept.append(f"{after / before:.0%}" if before and after else "nothing")
    return (
        f"One worker at half speed left synchronous training {kept[0]} of its samples per second, and asynchronous "
        f"training {kept[1]}."
    )


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
