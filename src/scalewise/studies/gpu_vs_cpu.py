"""Comparison of CPU and GPU: experiment, findings and figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time

import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from scalewise.core.files import write_atomically
from scalewise.core.units import seconds_text
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.launch.devices import cpu_name
from scalewise.reporting.figure_style import COLOURS, INK, MARKERS, batch_axis, new_figure, number_text, save, styled
from scalewise.reporting.finding import ExperimentResult, write_markdown
from scalewise.studies.stevens import Claim
from scalewise.sweep.environment import cores_in_use, load_remarks, roughness

CPU = torch.device("cpu")
FLOAT_BYTES = 4
CHANNELS, KERNELS, KERNEL, CLIP = 1, 50, 200, 12_000
"""Shape of the first layer of the study's convolutional model and of its input."""

FEWEST_CALLS, ENOUGH_CALLS, MOST_CALLS = 3, 30, 500
STRETCH = 4
"""Factor by which the time budget is extended until there are `ENOUGH_CALLS`."""


@dataclass(frozen=True)
class Task:
    """A matrix operation of one size, timed on the CPU and on the GPU, with the copies to the GPU and back."""

    kind: str
    size: int
    """Rows and columns of each square matrix."""
    cpu_seconds: float
    copy_seconds: float | None
    """Time of the copies to the GPU and back; None without a GPU."""
    gpu_seconds: float | None
    """Time on the GPU; None without a GPU."""

    @property
    def worth_moving(self) -> bool | None:
        if self.copy_seconds is None or self.gpu_seconds is None:
            return None
        return self.copy_seconds + self.gpu_seconds < self.cpu_seconds


def seconds_of(work: Callable[[], object], device: torch.device, budget_seconds: float) -> float:
    """Return the shortest time of a call, after two warm-up calls and including synchronization with the device.

    The shortest call is the least disturbed by other load. On busy cores most calls are disturbed, so the budget is
    extended until there are enough calls.
    """

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(2):
        work()
    wait()
    times: list[float] = []
    began = perf_counter()
    while len(times) < FEWEST_CALLS or (
        len(times) < MOST_CALLS
        and perf_counter() - began < budget_seconds * (STRETCH if len(times) < ENOUGH_CALLS else 1)
    ):
        start = perf_counter()
        work()
        wait()
        times.append(perf_counter() - start)
    return min(times)


def memory_GBps(device: torch.device, megabytes: int, budget_seconds: float) -> float:
    """Measure the bandwidth of copying an array larger than any cache, counting bytes read plus bytes written."""
    source = torch.ones(megabytes * 1_000_000 // FLOAT_BYTES, device=device)
    target = torch.empty_like(source)
    seconds = seconds_of(lambda: target.copy_(source), device, budget_seconds)
    return 2 * source.nbytes / seconds / 1e9


def convolution_seconds(device: torch.device, batch: int, budget_seconds: float) -> float:
    """Time forward and backward of one convolution layer with its data on the device."""
    layer = nn.Conv1d(CHANNELS, KERNELS, KERNEL, padding=KERNEL // 2).to(device)
    clips = torch.randn(batch, CHANNELS, CLIP, device=device)

    def work() -> None:
        layer(clips).sum().backward()

    return seconds_of(work, device, budget_seconds)


def tasks(sizes: Sequence[int], gpu: torch.device | None, budget_seconds: float) -> list[Task]:
    """Time sums (little work per byte) and products (much work per byte) of two square matrices."""
    kinds: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"sum": torch.add, "product": torch.mm}
    results = []
    for kind, operation in kinds.items():
        for size in sizes:
            left, right = torch.randn(size, size), torch.randn(size, size)
            on_cpu = _compute_seconds(operation, left, right, CPU, budget_seconds)
            copy = _copy_seconds(left, right, gpu, budget_seconds) if gpu else None
            on_gpu = _compute_seconds(operation, left.to(gpu), right.to(gpu), gpu, budget_seconds) if gpu else None
            results.append(Task(kind, size, on_cpu, copy, on_gpu))
    return results


def _compute_seconds(
    operation: Callable[[Tensor, Tensor], Tensor],
    left: Tensor,
    right: Tensor,
    device: torch.device,
    budget_seconds: float,
) -> float:
    return seconds_of(lambda: operation(left, right), device, budget_seconds)


def _copy_seconds(left: Tensor, right: Tensor, gpu: torch.device, budget_seconds: float) -> float:
    """Time copying both operands to the GPU and the result back, from memory that is not pinned."""
    result = torch.empty_like(left, device=gpu)

    def copy() -> None:
        left.to(gpu)
        right.to(gpu)
        result.cpu()

    return seconds_of(copy, gpu, budget_seconds)


def cores_busy(device: torch.device, batch: int, seconds: float) -> float:
    """Return the CPU seconds used per second while a convolution layer trains on the device."""
    layer = nn.Conv1d(CHANNELS, KERNELS, KERNEL, padding=KERNEL // 2).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    clips = torch.randn(batch, CHANNELS, CLIP, device=device)
    ended = torch.cuda.Event(blocking=True) if device.type == "cuda" else None
    began, began_cpu = perf_counter(), process_time()
    while perf_counter() - began < seconds:
        for _ in range(4):
            optimizer.zero_grad()
            layer(clips).sum().backward()
            optimizer.step()
        if ended:
            ended.record()
            ended.synchronize()  # sleep instead of spinning, so that waiting uses no CPU time
    return (process_time() - began_cpu) / (perf_counter() - began)


COLOUR_OF = {"cpu": INK, "gpu": COLOURS[0], "copy": COLOURS[1]}


@styled
def draw(
    GBps: Mapping[str, float],
    convolution: Mapping[str, Mapping[int, float]],
    tasks: Sequence[Task],
    busy: Mapping[str, float],
    cores: int,
    machine: str,
    out: Path,
    note: str = "",
) -> list[Path]:
    """Draw four panels; without a GPU two panels, with bandwidth and cores in the subtitle."""
    products = [task for task in tasks if task.kind == "product"]
    if "gpu" not in GBps:
        numbers = f"Memory is copied at {GBps['cpu']:.3g} GB/s; training keeps {busy['cpu']:.2g} of {cores} cores busy."
        figure, [layer, product] = new_figure(
            "CPU only: this machine has no GPU", machine, columns=2, width=9.2, height=4.0, subtitle=note or numbers
        )
    else:
        figure, [memory, layer, product, free] = new_figure(
            "CPU and GPU", machine, rows=2, columns=2, width=9.2, height=7.0, subtitle=note
        )
        _bars(memory, GBps, "memory bandwidth", "GB/s, read and written")
        _bars(free, busy, "CPU cores busy during training", "cores")
        free.set_ylim(0, max(cores, *busy.values()) * 1.12)
    _layer(layer, convolution)
    _tasks(product, products)
    return save(figure, out, "gpu-vs-cpu")


def _bars(axes: Axes, values: Mapping[str, float], title: str, label: str) -> None:
    names = [name.upper() for name in values]
    bars = axes.bar(names, list(values.values()), color=[COLOUR_OF[name] for name in values], width=0.5)
    axes.bar_label(bars, [number_text(value) for value in values.values()], padding=2)
    axes.set_title(title)
    axes.set_ylabel(label)
    axes.set_xlim(-0.7, len(names) - 0.3)
    axes.set_ylim(0, max(values.values()) * 1.12)
    axes.grid(axis="y")


def _layer(axes: Axes, convolution: Mapping[str, Mapping[int, float]]) -> None:
    batches = list(convolution["cpu"])
    if "gpu" in convolution:
        values = [convolution["cpu"][batch] / convolution["gpu"][batch] for batch in batches]
        axes.plot(batches, values, color=COLOUR_OF["gpu"], marker=MARKERS[0])
        axes.axhline(1, color=INK, linewidth=1)
        axes.set_title("convolution layer: speed-up of the GPU")
        axes.set_ylabel("speed-up over the CPU")
    else:
        values = [batch / convolution["cpu"][batch] for batch in batches]
        axes.plot(batches, values, color=COLOUR_OF["cpu"], marker=MARKERS[0])
        axes.set_title("convolution layer on the CPU")
        axes.set_ylabel("clips per second")
    axes.set_ylim(0, max(*values, 1.0) * 1.08)
    axes.set_xlabel("batch size")
    axes.grid(axis="y")
    batch_axis(axes, batches, 2)


def _tasks(axes: Axes, tasks: Sequence[Task]) -> None:
    sizes = [task.size for task in tasks]
    lines = {"cpu": [task.cpu_seconds for task in tasks]}
    if all(task.gpu_seconds is not None for task in tasks):
        lines["gpu"] = [task.gpu_seconds or 0 for task in tasks]
        lines["copy"] = [task.copy_seconds or 0 for task in tasks]
    labels = {"cpu": "on the CPU", "gpu": "on the GPU", "copy": "copies to the GPU and back"}
    for number, (name, seconds) in enumerate(lines.items()):
        axes.plot(sizes, seconds, color=COLOUR_OF[name], marker=MARKERS[number], label=labels[name])
    batch_axis(axes, sizes, 2)
    axes.set_yscale("log")
    axes.set_title("product of two square matrices" + ("" if len(lines) > 1 else ", on the CPU"))
    axes.set_xlabel("rows and columns")
    axes.set_ylabel("seconds")
    axes.grid(axis="y")
    if len(lines) > 1:
        axes.legend(loc="upper left")


MUCH_LARGER, NOTICEABLE_SECONDS = 4, 0.001
"""Ratio of rows (64 times the work) and time from which products are compared; shorter times may be call overhead."""

SMALLEST_GROWTH = 0.05
"""Smallest relative growth of the GPU's speed-up that counts as growth."""


def survey_claims(
    GBps: Mapping[str, float],
    convolution: Mapping[str, Mapping[int, float]],
    tasks: Sequence[Task],
    busy: Mapping[str, float],
    cores: int,
) -> list[Claim]:
    """Check the survey's claims about GPUs against the measurements; without a GPU all are uncertain."""
    cpu, gpu = convolution["cpu"], convolution.get("gpu", {})
    verdicts: list[bool | None] = [None] * 4
    if gpu:
        speedups = [cpu[batch] / gpu[batch] for batch in (min(cpu), max(cpu))]
        smallest = min((task for task in tasks if task.kind == "product"), key=lambda task: task.size)
        verdicts = [
            GBps["gpu"] > GBps["cpu"],
            speedups[1] > speedups[0] * (1 + SMALLEST_GROWTH),
            not smallest.worth_moving,
            busy["gpu"] < busy["cpu"] / 2,
        ]
    statements = (
        ("GPUs are faster partly because of memory bandwidth", bandwidth_words(GBps)),
        ("the GPU's speed-up of a convolution layer grows with the batch", convolution_words(cpu, gpu)),
        ("moving a small task to the GPU takes longer than it saves", moving_words(tasks, "product")),
        ("training on a GPU leaves the CPU free for other tasks", free_words(busy, cores)),
    )
    return [Claim(statement, "", words, holds) for (statement, words), holds in zip(statements, verdicts, strict=True)]


def headline(machine: str, claims: Sequence[Claim]) -> str:
    """Summarize the result in one sentence."""
    if all(claim.holds is None for claim in claims):
        return f"Found on {machine}, without a GPU: {claims[0].here}; {claims[1].here}"
    holding = sum(claim.holds is True for claim in claims)
    return f"Found on {machine}: {holding} of the survey's {len(claims)} claims about GPUs hold; {claims[1].here}"


def bandwidth_words(GBps: Mapping[str, float]) -> str:
    """Compare the memory bandwidth of CPU and GPU."""
    cpu = f"{GBps['cpu']:.0f} GB/s"
    if "gpu" not in GBps:
        return f"memory: the CPU copies at {cpu} (read and written)"
    ratio = GBps["gpu"] / GBps["cpu"]
    return f"memory: the GPU copies at {GBps['gpu']:.0f} GB/s, {ratio:.1f} times the CPU's {cpu} (read and written)"


def convolution_words(cpu: Mapping[int, float], gpu: Mapping[int, float]) -> str:
    """Compare the convolution layer on CPU and GPU; the arguments are seconds by batch."""
    small, large = min(cpu), max(cpu)
    if not gpu:
        rates = [f"{batch / cpu[batch]:.0f} clips/s at batch {batch}" for batch in (small, large)]
        return f"convolution layer: the CPU trains {' and '.join(rates)}"
    ratios = {batch: cpu[batch] / gpu[batch] for batch in cpu}
    return (
        f"convolution layer: the GPU is {ratios[small]:.1f} times as fast at batch {small} and "
        f"{ratios[large]:.1f} times at batch {large} (at most {max(ratios.values()):.1f} times)"
    )


def moving_words(tasks: Sequence[Task], kind: str) -> str:
    """Say from which size on a task is faster on the GPU, including the copies."""
    of_kind = [task for task in tasks if task.kind == kind]
    if any(task.worth_moving is None for task in of_kind):
        largest = of_kind[-1]
        return f"{kind} of two {largest.size} x {largest.size} matrices: {seconds_text(largest.cpu_seconds)} on the CPU"
    small = [task.size for task in of_kind if not task.worth_moving]
    smallest, largest = of_kind[0], of_kind[-1]
    if not small:
        return (
            f"{kind} of two matrices: the GPU is faster, copies included, at every size from {smallest.size} x "
            f"{smallest.size}"
        )
    if len(small) == len(of_kind):
        return (
            f"{kind} of two matrices: the GPU is never faster, copies included; at {largest.size} x {largest.size} the "
            f"copies take {seconds_text(largest.copy_seconds or 0)} and the CPU {seconds_text(largest.cpu_seconds)}"
        )
    return (
        f"{kind} of two matrices: the CPU is faster up to {max(small)} x {max(small)}; above, the GPU is, copies "
        "included"
    )


def busy_words(tasks: Sequence[Task]) -> list[str]:
    """Return a warning if small products take as long as much larger ones, because cores were busy."""
    products = sorted((task for task in tasks if task.kind == "product"), key=lambda task: task.size)
    disturbed = [
        (small, large)
        for small in products
        for large in products
        if large.size >= MUCH_LARGER * small.size
        and small.cpu_seconds > NOTICEABLE_SECONDS
        and large.cpu_seconds < 2 * small.cpu_seconds
    ]
    if not disturbed:
        return []
    small, large = disturbed[0][0], disturbed[-1][1]
    return [
        f"the machine was busy: the CPU took {seconds_text(small.cpu_seconds)} for a product of two {small.size} x "
        f"{small.size} matrices and {seconds_text(large.cpu_seconds)} for {large.size} x {large.size}; these times do "
        "not measure the CPU, so run the experiment again on idle cores"
    ]


def free_words(busy: Mapping[str, float], cores: int) -> str:
    """Say how many cores training keeps busy and leaves free."""
    on_cpu = f"training on the CPU keeps {busy['cpu']:.1f} of {cores} cores busy"
    if "gpu" not in busy:
        return f"cores: {on_cpu}"
    return f"cores: {on_cpu}, training on the GPU {busy['gpu']:.1f}, which leaves {cores - busy['gpu']:.1f} free"


BATCHES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
QUICK_BATCHES = (1, 2, 5, 10, 20)
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
QUICK_SIZES = SIZES[:7]
MEGABYTES = 400
BUSY_BATCH = 20
BUSY = "The machine was busy: some times do not measure the CPU."
NO_GPU = "this machine has no GPU, so only the CPU part is run; run the experiment on a machine with a GPU to compare"


def run(out: Path, quick: bool, log: Callable[[str], None]) -> ExperimentResult:
    """Run the experiment, about half a minute if `quick`, on all CPU cores."""
    gpu = torch.device("cuda", 0) if torch.cuda.is_available() else None
    devices = {"cpu": CPU, **({"gpu": gpu} if gpu else {})}
    cores = len(allowed_cores())
    budget = 0.3 if quick else 2.0
    machine = f"{cores} cores of {cpu_name()}" + (f", {torch.cuda.get_device_name(gpu)}" if gpu else "")
    used = cores_in_use()
    busy_remarks = load_remarks(used, cores)
    for remark in (*([] if gpu else [NO_GPU]), *busy_remarks):
        log(remark)
    log("measuring memory bandwidth ...")
    GBps = {name: memory_GBps(device, MEGABYTES, budget) for name, device in devices.items()}
    log(f"  {bandwidth_words(GBps)}")
    convolution: dict[str, dict[int, float]] = {}
    for name, device in devices.items():
        log(f"timing a convolution layer on the {name.upper()} ...")
        batches = QUICK_BATCHES if quick else BATCHES
        convolution[name] = {batch: convolution_seconds(device, batch, budget) for batch in batches}
    log("timing sums and products of matrices ...")
    task_results = tasks(QUICK_SIZES if quick else SIZES, gpu, budget / 3)
    log("measuring busy cores during training ...")
    busy = {name: cores_busy(device, BUSY_BATCH, 1.0 if quick else 10.0) for name, device in devices.items()}
    claims = survey_claims(GBps, convolution, task_results, busy, cores)
    result = ExperimentResult(
        "gpu-vs-cpu",
        [
            *([] if gpu else [NO_GPU]),
            *(f"survey: {claim.statement}: {claim.verdict} ({claim.here})" for claim in claims),
            moving_words(task_results, "sum"),
            *busy_words(task_results),
            *busy_remarks,
        ],
        ["task", "CPU", "copies", "GPU", "GPU faster"],
        [_row(task) for task in task_results],
        draw(GBps, convolution, task_results, busy, cores, machine, out, BUSY if busy_words(task_results) else ""),
        [out / "gpu-vs-cpu.json", out / "findings.md"],
        {
            "machine": machine,
            "memory_GBps": GBps,
            "convolution_seconds": convolution,
            "tasks": [asdict(task) | {"worth_moving": task.worth_moving} for task in task_results],
            "cores_busy": busy,
            "cores": cores,
            "claims": [{**vars(claim), "verdict": claim.verdict} for claim in claims],
        },
        headline=headline(machine, claims) + roughness(used, cores, []),
    )
    write_atomically(out / "gpu-vs-cpu.json", json.dumps(result.to_json(), indent=2).encode())
    write_markdown(out / "findings.md", result.to_markdown())
    return result


def _row(task: Task) -> list[str]:
    return [
        f"{task.kind} {task.size} x {task.size}",
        seconds_text(task.cpu_seconds),
        "-" if task.copy_seconds is None else seconds_text(task.copy_seconds),
        "-" if task.gpu_seconds is None else seconds_text(task.gpu_seconds),
        {True: "yes", False: "no", None: "-"}[task.worth_moving],
    ]
