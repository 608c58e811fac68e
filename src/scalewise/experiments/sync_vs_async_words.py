"""What the times say, in words: who was sooner where, and how far each came in the end."""

from __future__ import annotations

from collections.abc import Mapping

from scalewise.experiments.sync_vs_async_runs import Ran
from scalewise.findings.finding import listed
from scalewise.results.units import seconds_text

EVEN = 0.05
"""Differences up to this part of the shorter time are called even."""
HOW = ("synchronously", "asynchronously")
ALL_OF_IT = 1.05
"""A part of its throughput that no run can keep beside a straggler, but for noise."""
_NAMES = ("synchronous", "asynchronous")

Times = Mapping[str, float | None]
"""By strategy, the synchronous one first; None: the loss was never reached."""
Both = Mapping[str, Ran]
"""The runs in the same order."""


def findings(times: Mapping[str, Times], ran: Mapping[str, Both], target: float) -> list[str]:
    """Who was sooner where, then a sentence or two per condition."""
    said: list[str] = []
    compared: dict[str, Times] = {}
    for name, each in times.items():
        if flaw := _flaw(name, each, ran[name], target):
            said.append(flaw)
        else:
            compared[name] = each
            said.append(sentence(name, each, target))
        said += _resumed(ran[name])
    kept = _kept(ran) if "a straggler" in ran and "equal devices" in ran else []
    said += _throughput(kept)
    return [
        _choice({} if _impossible(kept) else compared, target)
        + " The machine's speed changed between the runs." * _impossible(kept),
        *said,
        *_ends(ran),
        "An asynchronous update is made from one worker's part of a batch: the same samples make as many more, smaller "
        "updates as there are workers, which by itself may be quicker or slower to a loss. The order of its updates "
        "differs from run to run, and these are single runs.",
    ]


def reached_before_death(times: Times, both: Both) -> list[str]:
    """Strategies that were at the loss before the worker died: their times are not of a run with a death."""
    return [
        strategy
        for strategy, seconds in times.items()
        if (death := both[strategy].death_seconds) is not None and seconds is not None and seconds < death
    ]


def shared_cores(workers: int, servers: int, cores: int) -> list[str]:
    """Where processes wait for each other's cores, which is neither strategy's fault."""
    if cores >= workers + servers:
        return []
    return [
        f"{workers} workers and {servers} parameter server{'s' * (servers > 1)} are {workers + servers} processes on "
        f"{cores} core{'s' * (cores > 1)}: in every run they take computing time from each other."
    ]


def _flaw(name: str, times: Times, both: Both, target: float) -> str:
    """Why two times are no comparison; empty if they are one."""
    how = dict(zip(times, HOW, strict=True))
    for strategy, ran in both.items():
        if ran.reason:
            return f"With {name}, nothing can be compared: {how[strategy]}, training {ran.reason}."
    early = [
        f"{how[strategy]} after {seconds_text(times[strategy] or 0.0)} (the death came at "
        f"{seconds_text(both[strategy].death_seconds or 0.0)})"
        for strategy in reached_before_death(times, both)
    ]
    if not early:
        return ""
    return (
        f"With {name}, loss {target:.2f} was reached before the death, {' and '.join(early)}: this says nothing about "
        "deaths."
    )


def _resumed(both: Both) -> list[str]:
    return [
        f"The death ended the synchronous run {seconds_text(ran.death_seconds)} after its first batch; the worker that "
        f"was left went on from the last checkpoint {seconds_text(ran.resumed_seconds - ran.death_seconds)} later."
        for ran in both.values()
        if ran.death_seconds is not None and ran.resumed_seconds is not None
    ]


def _ends(ran: Mapping[str, Both]) -> list[str]:
    """Told, and not judged: each is of one seed."""
    ends = [
        f"{' and '.join(f'{each.smoothed[-1].loss:.3f}' for each in both.values())} with {name}"
        for name, both in ran.items()
        if all(each.smoothed for each in both.values())
    ]
    if not ends:
        return []
    return [
        f"Losses at the end of the runs, synchronous and asynchronous: {', '.join(ends)}. With another seed the other "
        "may end lower: from one run of each nothing follows about where they end."
    ]


def _choice(times: Mapping[str, Times], target: float) -> str:
    """When is each the better choice?"""
    sooner: dict[str, list[str]] = {"asynchronous": [], "synchronous": [], "even": [], "neither": []}
    for name, each in times.items():
        sooner[winner(each)].append(name)
    chosen = [f"{who} training with {listed(sooner[who])}" for who in _NAMES[::-1] if sooner[who]]
    said = [
        *([f"Sooner at loss {target:.2f}: {'; '.join(chosen)}."] if chosen else []),
        *([f"It makes no difference with {listed(sooner['even'])}."] if sooner["even"] else []),
        *([f"Neither came down to loss {target:.2f} with {listed(sooner['neither'])}."] if sooner["neither"] else []),
    ]
    return " ".join(said) or "Nothing could be compared."


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


def _kept(ran: Mapping[str, Both]) -> list[float]:
    """The part of its samples per second that each has left beside a straggler; empty where they are not known."""
    rates = [
        (ran["a straggler"][strategy].samples_per_second, ran["equal devices"][strategy].samples_per_second)
        for strategy in ran["equal devices"]
    ]
    kept = [after / before for after, before in rates if after and before]
    return kept if len(kept) == len(rates) else []


def _impossible(kept: list[float]) -> bool:
    return max(kept, default=0.0) > ALL_OF_IT


def _throughput(kept: list[float]) -> list[str]:
    if not kept:
        return []
    told = f"{kept[0]:.0%} of its samples per second, and asynchronous training {kept[1]:.0%}"
    if _impossible(kept):
        return [
            f"Beside a worker at half speed, synchronous training had {told}, which cannot be: the machine had other "
            "speeds in other runs, so neither these rates nor the times are to be compared."
        ]
    return [f"One worker at half speed left synchronous training {told}."]
