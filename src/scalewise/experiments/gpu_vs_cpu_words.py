"""What the comparison of CPU and GPU found, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scalewise.experiments.gpu_vs_cpu_probes import Task
from scalewise.experiments.stevens_claims import Claim
from scalewise.results.units import seconds_text

MUCH_LARGER, NOTICEABLE_SECONDS = 4, 0.001
"""Times the rows, so 64 times the work; less than a millisecond may be the call itself."""

TELLABLE = 0.05
"""A lead that grows by less does not."""


def survey_claims(
    GBps: Mapping[str, float],
    convolution: Mapping[str, Mapping[int, float]],
    tasks: Sequence[Task],
    busy: Mapping[str, float],
    cores: int,
) -> list[Claim]:
    """What the survey says of GPUs, judged by the numbers; without a GPU nothing can be told."""
    cpu, gpu = convolution["cpu"], convolution.get("gpu", {})
    judged: list[bool | None] = [None] * 4
    if gpu:
        leads = [cpu[batch] / gpu[batch] for batch in (min(cpu), max(cpu))]
        smallest = min((task for task in tasks if task.kind == "product"), key=lambda task: task.size)
        judged = [
            GBps["gpu"] > GBps["cpu"],
            leads[1] > leads[0] * (1 + TELLABLE),
            not smallest.worth_moving,
            busy["gpu"] < busy["cpu"] / 2,
        ]
    told = (
        ("GPUs are faster also because of bandwidth", bandwidth_words(GBps)),
        ("a GPU's lead on a convolution layer grows with the batch", convolution_words(cpu, gpu)),
        ("a small task costs more to move than it saves", moving_words(tasks, "product")),
        ("a GPU leaves the CPU to other tasks", free_words(busy, cores)),
    )
    return [Claim(says, "", words, holds) for (says, words), holds in zip(told, judged, strict=True)]


def headline(machine: str, claims: Sequence[Claim]) -> str:
    """What was found, in one sentence."""
    if all(claim.holds is None for claim in claims):
        return f"Found on {machine}, without a GPU: {claims[0].here}; {claims[1].here}"
    holding = sum(claim.holds is True for claim in claims)
    return f"Found on {machine}: {holding} of the survey's {len(claims)} claims about GPUs hold; {claims[1].here}"


def bandwidth_words(GBps: Mapping[str, float]) -> str:
    """The survey: GPUs are faster also because of bandwidth."""
    cpu = f"{GBps['cpu']:.0f} GB/s"
    if "gpu" not in GBps:
        return f"memory: the CPU copies at {cpu} (read and written)"
    ratio = GBps["gpu"] / GBps["cpu"]
    return f"memory: the GPU copies at {GBps['gpu']:.0f} GB/s, {ratio:.1f} times the CPU's {cpu} (read and written)"


def convolution_words(cpu: Mapping[int, float], gpu: Mapping[int, float]) -> str:
    """Seconds by batch; the survey: the ratio grows with the batch."""
    small, large = min(cpu), max(cpu)
    if not gpu:
        rates = [f"{batch / cpu[batch]:.0f} clips/s at batch {batch}" for batch in (small, large)]
        return f"convolution layer: the CPU trains it at {' and '.join(rates)}"
    ratios = {batch: cpu[batch] / gpu[batch] for batch in cpu}
    return (
        f"convolution layer: the GPU is {ratios[small]:.1f} times as fast at batch {small} and "
        f"{ratios[large]:.1f} times at batch {large}; the most is {max(ratios.values()):.1f} times"
    )


def moving_words(tasks: Sequence[Task], kind: str) -> str:
    """The survey: moving a small task can cost more than it saves."""
    mine = [task for task in tasks if task.kind == kind]
    if any(task.worth_moving is None for task in mine):
        largest = mine[-1]
        return f"{kind} of two {largest.size} x {largest.size} matrices: {seconds_text(largest.cpu_seconds)} on the CPU"
    small = [task.size for task in mine if not task.worth_moving]
    if not small:
        return f"{kind} of two matrices: worth moving to the GPU at every size from {mine[0].size}"
    if len(small) == len(mine):
        slow = mine[-1]
        return (
            f"{kind} of two matrices: never worth moving; at {slow.size} x {slow.size} the copies take "
            f"{seconds_text(slow.copy_seconds or 0)}, the CPU does it in {seconds_text(slow.cpu_seconds)}"
        )
    return f"{kind} of two matrices: too small to move up to {max(small)} x {max(small)}, worth it above"


def busy_words(tasks: Sequence[Task]) -> list[str]:
    """Products that take as long as much larger ones were not timed: the wait for busy cores was."""
    products = sorted((task for task in tasks if task.kind == "product"), key=lambda task: task.size)
    stuck = [
        (small, large)
        for small in products
        for large in products
        if large.size >= MUCH_LARGER * small.size
        and small.cpu_seconds > NOTICEABLE_SECONDS
        and large.cpu_seconds < 2 * small.cpu_seconds
    ]
    if not stuck:
        return []
    small, large = stuck[0][0], stuck[-1][1]
    return [
        f"the machine was busy: a product of two {small.size} x {small.size} matrices took the CPU "
        f"{seconds_text(small.cpu_seconds)}, one of {large.size} x {large.size} {seconds_text(large.cpu_seconds)}; "
        "such times do not grow with the work, and say nothing about the CPU: run it again on idle cores"
    ]


def free_words(busy: Mapping[str, float], cores: int) -> str:
    """The survey: the CPU is left to other tasks."""
    alone = f"training on the CPU keeps {busy['cpu']:.1f} of {cores} cores busy"
    if "gpu" not in busy:
        return f"cores: {alone}"
    return f"cores: {alone}, on the GPU {busy['gpu']:.1f}: {cores - busy['gpu']:.1f} are left free"
