"""Findings and figure of the synchronous and asynchronous comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from scalewise.core.units import seconds_text
from scalewise.reporting.figure_style import COLOURS, FAINT, INK, new_figure, save, styled
from scalewise.reporting.finding import listed
from scalewise.studies.sync_vs_async_runs import WINDOW_SAMPLES, LossPoint, TrainingRun, seconds_to

if TYPE_CHECKING:
    from matplotlib.axes import Axes


EVEN = 0.05
"""Largest difference, relative to the shorter time, at which two times count as equal."""
ADVERBS = ("synchronously", "asynchronously")
MOST_THROUGHPUT_KEPT = 1.05
"""Largest fraction of its throughput that a run with a straggler can keep, allowing for noise."""
NAMES = ("synchronous", "asynchronous")

Times = Mapping[str, float | None]
"""Seconds to the target loss by strategy, synchronous first; None if it was never reached."""
StrategyRuns = Mapping[str, TrainingRun]
"""Runs by strategy, synchronous first."""


@dataclass(frozen=True)
class SeedResult:
    """Results of all conditions with one seed."""

    seed: int
    target: float
    """Target loss."""
    times: Mapping[str, Times]
    """Times to the target loss by condition."""
    runs: Mapping[str, StrategyRuns]
    """Runs by condition."""


def findings(results: Sequence[SeedResult]) -> list[str]:
    """Say which strategy is faster under which conditions, then describe each condition."""
    sentences: list[str] = []
    compared: dict[str, list[Times]] = {}
    for name in results[0].times:
        for result in results:
            if obstacle := _comparison_obstacle(name, result):
                sentences.append(_seed_prefix(result, results) + obstacle)
            else:
                compared.setdefault(name, []).append(result.times[name])
        if name in compared:
            sentences.append(sentence(name, compared[name], target_text(results)))
        for result in results:
            sentences += [_seed_prefix(result, results) + text for text in _resumed(result.runs[name])]
    kept = _throughput_kept(results)
    sentences += _throughput(kept)
    number_of_runs = f"{len(results)} runs of each" if len(results) > 1 else "a single run of each"
    return [
        _choice({} if _impossible(kept) else compared, results)
        + " The machine's speed changed between the runs." * _impossible(kept),
        *sentences,
        *_final_losses(results),
        "An asynchronous update uses one worker's share of a batch, so the same samples give more and smaller updates; "
        "this alone may make training faster or slower. The order of asynchronous updates differs from run to run, and "
        f"these results are from {number_of_runs}.",
    ]


def target_text(results: Sequence[SeedResult]) -> str:
    """Format the target loss, or the range of target losses of several seeds: '0.19 to 0.22'."""
    ends = [f"{end(result.target for result in results):.2f}" for end in (min, max)]
    return " to ".join(dict.fromkeys(ends))


def reached_before_death(times: Times, runs: StrategyRuns) -> list[str]:
    """Return the strategies that reached the target before the worker died."""
    return [
        strategy
        for strategy, seconds in times.items()
        if (death := runs[strategy].death_seconds) is not None and seconds is not None and seconds < death
    ]


def shared_cores(workers: int, servers: int, cores: int) -> list[str]:
    """Return a remark if there are fewer cores than processes."""
    if cores >= workers + servers:
        return []
    return [
        f"{workers} workers and {servers} parameter server{'s' * (servers > 1)} are {workers + servers} processes on "
        f"{cores} core{'s' * (cores > 1)}, so they slow each other down in every run."
    ]


def _seed_prefix(result: SeedResult, results: Sequence[SeedResult]) -> str:
    return f"Seed {result.seed}: " if len(results) > 1 else ""


def _comparison_obstacle(name: str, result: SeedResult) -> str:
    """Say why the two times of a condition cannot be compared; return an empty string if they can."""
    times, runs = result.times[name], result.runs[name]
    for label, run in zip(NAMES, runs.values(), strict=True):
        if run.reason:
            return f"With {name}, the runs cannot be compared: the {label} run {run.reason}."
    adverbs = dict(zip(times, ADVERBS, strict=True))
    early = [
        f"{adverbs[strategy]} after {seconds_text(times[strategy] or 0.0)} (the worker died after "
        f"{seconds_text(runs[strategy].death_seconds or 0.0)})"
        for strategy in reached_before_death(times, runs)
    ]
    if not early:
        return ""
    return (
        f"With {name}, loss {result.target:.2f} was reached before the worker died: {' and '.join(early)}. These times "
        "do not show the effect of a death."
    )


def _resumed(runs: StrategyRuns) -> list[str]:
    return [
        f"The worker's death ended the synchronous run {seconds_text(run.death_seconds)} after its first batch; the "
        f"remaining worker resumed from the last checkpoint {seconds_text(run.resumed_seconds - run.death_seconds)} "
        "later."
        for run in runs.values()
        if run.death_seconds is not None and run.resumed_seconds is not None
    ]


def _final_losses(results: Sequence[SeedResult]) -> list[str]:
    """Compare the final losses; with several seeds say which is lower if all agree."""
    losses_of: dict[str, list[list[float]]] = {}
    for result in results:
        for name, runs in result.runs.items():
            if all(run.smoothed for run in runs.values()):
                losses_of.setdefault(name, []).append([run.smoothed[-1].loss for run in runs.values()])
    joint = " and " if len(results) == 1 else " against "
    texts = [
        joint.join(listed([f"{loss:.3f}" for loss in losses]) for losses in zip(*by_seed, strict=True))
        + f" with {name}{_lower_text(by_seed) if len(by_seed) > 1 else ''}"
        for name, by_seed in losses_of.items()
    ]
    if not texts:
        return []
    if len(results) > 1:
        return [f"Final losses, synchronous against asynchronous: {'; '.join(texts)}."]
    return [
        f"Final losses, synchronous and asynchronous: {', '.join(texts)}. One run of each does not show which strategy "
        "ends lower."
    ]


def _lower_text(losses: Sequence[Sequence[float]]) -> str:
    winners = {winner(dict(zip(NAMES, pair, strict=True))) for pair in losses}
    if winners == {"even"}:
        return " (no difference)"
    if len(winners) > 1:
        return " (the seeds disagree on which is lower)"
    return f" ({winners.pop()} training ends lower with every seed)"


def _choice(compared: Mapping[str, Sequence[Times]], results: Sequence[SeedResult]) -> str:
    """Say which strategy is faster under which conditions; with several seeds only if all agree."""
    outcomes = ("asynchronous", "synchronous", "even", "neither", "open")
    conditions: dict[str, list[str]] = {outcome: [] for outcome in outcomes}
    for name, by_seed in compared.items():
        winners = {winner(times) for times in by_seed}
        few = f" ({len(by_seed)} of {len(results)} seeds)" if len(by_seed) < len(results) else ""
        conditions[winners.pop() if len(winners) == 1 else "open"].append(name + few)
    loss = f"loss {target_text(results)}"
    complete = all(len(by_seed) == len(results) for by_seed in compared.values())
    all_seeds = f" with all {len(results)} seeds" if complete else " with all seeds that could be compared"
    seeds = all_seeds if len(results) > 1 else ""
    faster = [f"{label} training with {listed(conditions[label])}" for label in NAMES[::-1] if conditions[label]]
    sentences = [
        *([f"Faster to {loss}{seeds}: {'; '.join(faster)}."] if faster else []),
        *([f"No difference with {listed(conditions['even'])}."] if conditions["even"] else []),
        *([f"Neither reached {loss} with {listed(conditions['neither'])}."] if conditions["neither"] else []),
        *([f"The seeds disagree with {listed(conditions['open'])}."] if conditions["open"] else []),
    ]
    return " ".join(sentences) or "Nothing could be compared."


def winner(times: Times) -> str:
    """Return the faster strategy, 'even', or 'neither' if no strategy reached the target."""
    synchronous, asynchronous = times.values()
    if synchronous is None and asynchronous is None:
        return "neither"
    if synchronous is None or asynchronous is None:
        return "asynchronous" if synchronous is None else "synchronous"
    if abs(synchronous - asynchronous) <= EVEN * min(synchronous, asynchronous):
        return "even"
    return "asynchronous" if asynchronous < synchronous else "synchronous"


def sentence(name: str, seeds: Sequence[Times], loss: str) -> str:
    """Compare the times to the target loss under one condition, listing the times of all seeds."""
    pairs = [list(times.values()) for times in seeds]
    columns = zip(*pairs, strict=True)
    never = "was never reached" if len(seeds) == 1 else "never"
    texts = [
        f"{listed([never if seconds is None else seconds_text(seconds) for seconds in column])} {adverb}"
        for column, adverb in zip(columns, ADVERBS, strict=True)
    ]
    ratios = [before / after for before, after in pairs if before is not None and after is not None]
    if len(ratios) < len(pairs):
        return f"With {name}, loss {loss}: {' and '.join(texts)}{_seeds_text(seeds)}."
    ratio = median(ratios)
    slower = "synchronous" if ratio > 1 else "asynchronous"
    in_median = " (median)" if len(seeds) > 1 else ""
    return (
        f"With {name}, loss {loss} took {' and '.join(texts)}{_seeds_text(seeds)}: {slower} training took "
        f"{max(ratio, 1 / ratio):.2f} times as long{in_median}."
    )


def _seeds_text(seeds: Sequence[Times]) -> str:
    return f" with {len(seeds)} seeds" if len(seeds) > 1 else ""


def _throughput_kept(results: Sequence[SeedResult]) -> list[float]:
    """Return the fraction of its throughput that each strategy keeps with a straggler (median); empty if unknown."""
    fractions: list[list[float]] = []
    for result in results:
        if not {"a straggler", "equal devices"} <= result.runs.keys():
            return []
        rates = [
            (result.runs["a straggler"][strategy].samples_per_second, equal.samples_per_second)
            for strategy, equal in result.runs["equal devices"].items()
        ]
        kept = [after / before for after, before in rates if after and before]
        if len(kept) < len(rates):
            return []
        fractions.append(kept)
    return [median(column) for column in zip(*fractions, strict=True)]


def _impossible(kept: list[float]) -> bool:
    return max(kept, default=0.0) > MOST_THROUGHPUT_KEPT


def _throughput(kept: list[float]) -> list[str]:
    if not kept:
        return []
    text = (
        f"With one worker at half speed, synchronous training kept {kept[0]:.0%} of its throughput and asynchronous "
        f"training {kept[1]:.0%}"
    )
    if _impossible(kept):
        return [
            f"{text}, which is impossible: the machine's speed changed between the runs, so neither the throughputs "
            "nor the times can be compared."
        ]
    return [f"{text}."]


LEGEND_ROW = 0.1
"""Fraction of a panel's height that the curves leave free for each row of the legend."""
DEATH: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 2))}


@styled
def draw(results: Sequence[SeedResult], about: Mapping[str, str], machine: str, folder: Path) -> list[Path]:
    """Draw the loss over time, a panel per condition and a line per strategy and seed."""
    names = list(results[0].runs)
    rows = -(-len(names) // 2)
    lines = f" One line per seed ({len(results)})." if len(results) > 1 else ""
    dots = f"Dots: loss {target_text(results)} reached."
    figure, axes = new_figure(
        "Synchronous and asynchronous training: loss over time",
        machine,
        rows=rows,
        columns=2,
        width=9.0,
        height=1.0 + 3.0 * rows,
        subtitle=f"Loss averaged over the last {WINDOW_SAMPLES} samples. {dots}{lines}",
    )
    for panel, name in zip(axes, names, strict=False):
        for strategy, colour, label in zip(results[0].runs[name], COLOURS, NAMES, strict=False):
            _draw_runs(panel, [(result, result.runs[name][strategy]) for result in results], colour, label)
        for target in {result.target for result in results}:
            panel.axhline(target, color=FAINT, linestyle=":", linewidth=1, zorder=0)
        panel.set_title(f"With {name}", pad=18)
        panel.annotate(
            about[name],
            (0, 1),
            (0, 5),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=8.5,
            color=FAINT,
        )
        runs = [run for result in results for run in result.runs[name].values()]
        highest = max((point.loss for run in runs for point in run.smoothed), default=1.0)
        _draw_deaths(panel, [list(result.runs[name].values()) for result in results], highest)
        panel.set_xlim(0)
        legend = panel.legend(loc="upper right", handlelength=1.6, labelspacing=0.3)
        panel.set_ylim(0, highest / (1 - LEGEND_ROW * len(legend.get_texts())))
        panel.set_xlabel("seconds")
        panel.set_ylabel("training loss")
    for unused in axes[len(names) :]:
        unused.set_visible(False)
    return save(figure, folder, "sync-vs-async")


def _draw_runs(panel: Axes, runs: Sequence[tuple[SeedResult, TrainingRun]], colour: str, label: str) -> None:
    times = [None if run.reason else seconds_to(run.smoothed, result.target) for result, run in runs]
    texts = [
        "failed" if run.reason else "never" if seconds is None else _seconds(seconds)
        for (_, run), seconds in zip(runs, times, strict=True)
    ]
    panel.plot([], [], color=colour, label=f"{label}: {', '.join(texts)}")
    resumed = False
    for (result, run), reached in zip(runs, times, strict=True):
        before, after = _split(run.smoothed, run.resumed_seconds)
        _line(panel, before, colour, len(runs))
        _line(panel, after, colour, len(runs))
        if before and after:
            ends = [before[-1], after[0]]
            panel.plot([p.seconds for p in ends], [p.loss for p in ends], color=colour, linestyle=(0, (1, 2)))
            resumed = True
        if reached is not None:
            panel.plot([reached], [result.target], marker="o", color=colour, markersize=7, zorder=3)
    if resumed:
        panel.plot([], [], color=colour, linestyle=(0, (1, 2)), label="stopped, resumed from checkpoint")


def _draw_deaths(panel: Axes, seeds: Sequence[Sequence[TrainingRun]], highest: float) -> None:
    deaths = [
        (run.death_seconds, colour)
        for runs in seeds
        for run, colour in zip(runs, COLOURS, strict=False)
        if run.death_seconds
    ]
    if not deaths:
        return
    for death, colour in deaths:
        panel.plot([death, death], [0, highest], **DEATH, color=colour, zorder=1)
    seconds = [death for death, _ in deaths]
    text = " and ".join(map(_seconds, seconds))
    if len(seeds) > 1:
        text = f"{min(seconds):.1f} to {_seconds(max(seconds))}"
    panel.plot([], [], **DEATH, color=INK, label=f"worker 1 killed at {text}")


def _line(panel: Axes, points: Sequence[LossPoint], colour: str, seeds: int) -> None:
    look: dict[str, Any] = {} if seeds == 1 else {"linewidth": 1.4, "alpha": 0.8}
    panel.plot([p.seconds for p in points], [p.loss for p in points], color=colour, **look)


def _split(points: Sequence[LossPoint], resumed: float | None) -> tuple[list[LossPoint], list[LossPoint]]:
    """Split the points of a run at the moment when it was resumed."""
    before = [point for point in points if resumed is None or point.seconds < resumed]
    return before, list(points[len(before) :])


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:.0f} s"
