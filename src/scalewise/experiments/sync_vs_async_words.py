"""What the times say, in words: who was sooner where, with every seed, and how far each came in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

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


@dataclass(frozen=True)
class Trial:
    """All conditions with one seed: the loss that was to be reached, when it was, and the runs."""

    seed: int
    target: float
    times: Mapping[str, Times]
    ran: Mapping[str, Both]


def findings(trials: Sequence[Trial]) -> list[str]:
    """Who was sooner where, then a sentence or two per condition."""
    said: list[str] = []
    compared: dict[str, list[Times]] = {}
    for name in trials[0].times:
        for trial in trials:
            if flaw := _flaw(name, trial):
                said.append(_with_seed(trial, trials) + flaw)
            else:
                compared.setdefault(name, []).append(trial.times[name])
        if name in compared:
            said.append(sentence(name, compared[name], aimed_for(trials)))
        said += [_with_seed(trial, trials) + each for trial in trials for each in _resumed(trial.ran[name])]
    kept = _kept(trials)
    said += _throughput(kept)
    several = f"{len(trials)} runs of each" if len(trials) > 1 else "single runs"
    return [
        _choice({} if _impossible(kept) else compared, trials)
        + " The machine's speed changed between the runs." * _impossible(kept),
        *said,
        *_ends(trials),
        "An asynchronous update is made from one worker's part of a batch: the same samples make as many more, smaller "
        "updates as there are workers, which by itself may be quicker or slower to a loss. The order of its updates "
        f"differs from run to run, and these are {several}.",
    ]


def aimed_for(trials: Sequence[Trial]) -> str:
    """'0.21', or '0.19 to 0.22': every seed has its own."""
    ends = [f"{end(trial.target for trial in trials):.2f}" for end in (min, max)]
    return " to ".join(dict.fromkeys(ends))


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


def _with_seed(trial: Trial, trials: Sequence[Trial]) -> str:
    return f"Seed {trial.seed}: " if len(trials) > 1 else ""


def _flaw(name: str, trial: Trial) -> str:
    """Why two times are no comparison; empty if they are one."""
    times, both = trial.times[name], trial.ran[name]
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
        f"With {name}, loss {trial.target:.2f} was reached before the death, {' and '.join(early)}: this says nothing "
        "about deaths."
    )


def _resumed(both: Both) -> list[str]:
    return [
        f"The death ended the synchronous run {seconds_text(ran.death_seconds)} after its first batch; the worker that "
        f"was left went on from the last checkpoint {seconds_text(ran.resumed_seconds - ran.death_seconds)} later."
        for ran in both.values()
        if ran.death_seconds is not None and ran.resumed_seconds is not None
    ]


def _ends(trials: Sequence[Trial]) -> list[str]:
    """Told with one seed, judged only if all of several agree."""
    ends: dict[str, list[list[float]]] = {}
    for trial in trials:
        for name, both in trial.ran.items():
            if all(each.smoothed for each in both.values()):
                ends.setdefault(name, []).append([each.smoothed[-1].loss for each in both.values()])
    beside = " and " if len(trials) == 1 else " against "
    told = [
        beside.join(listed([f"{loss:.3f}" for loss in losses]) for losses in zip(*each, strict=True))
        + f" with {name}{_lower(each) if len(each) > 1 else ''}"
        for name, each in ends.items()
    ]
    if not told:
        return []
    if len(trials) > 1:
        return [f"Losses at the end of the runs, synchronous against asynchronous: {'; '.join(told)}."]
    return [
        f"Losses at the end of the runs, synchronous and asynchronous: {', '.join(told)}. With another seed the other "
        "may end lower: from one run of each nothing follows about where they end."
    ]


def _lower(ends: Sequence[Sequence[float]]) -> str:
    who = {winner(dict(zip(_NAMES, each, strict=True))) for each in ends}
    if who == {"even"}:
        return " (no difference)"
    if len(who) > 1:
        return " (seeds do not agree on the lower)"
    return f" ({who.pop()} training ends lower with every seed)"


def _choice(compared: Mapping[str, Sequence[Times]], trials: Sequence[Trial]) -> str:
    """When is each the better choice? With several seeds, only if all say so."""
    sooner: dict[str, list[str]] = {key: [] for key in ("asynchronous", "synchronous", "even", "neither", "open")}
    for name, each in compared.items():
        who = {winner(times) for times in each}
        few = f" ({len(each)} of {len(trials)} seeds)" if len(each) < len(trials) else ""
        sooner[who.pop() if len(who) == 1 else "open"].append(name + few)
    loss = f"loss {aimed_for(trials)}"
    of_all = all(len(each) == len(trials) for each in compared.values())
    every = f" with every one of {len(trials)} seeds" if of_all else " with every seed that was compared"
    seeds = every if len(trials) > 1 else ""
    chosen = [f"{who} training with {listed(sooner[who])}" for who in _NAMES[::-1] if sooner[who]]
    said = [
        *([f"Sooner at {loss}{seeds}: {'; '.join(chosen)}."] if chosen else []),
        *([f"It makes no difference with {listed(sooner['even'])}."] if sooner["even"] else []),
        *([f"Neither came down to {loss} with {listed(sooner['neither'])}."] if sooner["neither"] else []),
        *([f"Seeds do not agree with {listed(sooner['open'])}."] if sooner["open"] else []),
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


def sentence(name: str, seeds: Sequence[Times], loss: str) -> str:
    """'With a straggler, loss 1.20 took 30 s synchronously and 12 s asynchronously: synchronous training took 2.50
    times as long.' Of several seeds, the seconds of each."""
    every = [list(times.values()) for times in seeds]
    columns = zip(*every, strict=True)
    never = "was never reached" if len(seeds) == 1 else "never"
    told = [
        f"{listed([never if each is None else seconds_text(each) for each in column])} {how}"
        for column, how in zip(columns, HOW, strict=True)
    ]
    ratios = [before / after for before, after in every if before is not None and after is not None]
    if len(ratios) < len(every):
        return f"With {name}, loss {loss}: {' and '.join(told)}{_of(seeds)}."
    ratio = median(ratios)
    slower = "synchronous" if ratio > 1 else "asynchronous"
    typical = " in the median" if len(seeds) > 1 else ""
    return (
        f"With {name}, loss {loss} took {' and '.join(told)}{_of(seeds)}: {slower} training took "
        f"{max(ratio, 1 / ratio):.2f} times as long{typical}."
    )


def _of(seeds: Sequence[Times]) -> str:
    return f" with {len(seeds)} seeds" if len(seeds) > 1 else ""


def _kept(trials: Sequence[Trial]) -> list[float]:
    """The part of its samples per second that each has left beside a straggler, in the median; empty where it is not
    known."""
    found: list[list[float]] = []
    for trial in trials:
        if not {"a straggler", "equal devices"} <= trial.ran.keys():
            return []
        rates = [
            (trial.ran["a straggler"][strategy].samples_per_second, equal.samples_per_second)
            for strategy, equal in trial.ran["equal devices"].items()
        ]
        kept = [after / before for after, before in rates if after and before]
        if len(kept) < len(rates):
            return []
        found.append(kept)
    return [median(column) for column in zip(*found, strict=True)]


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
