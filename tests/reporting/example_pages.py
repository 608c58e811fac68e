"""Documents of pages for tests: measured cells with predictions, advice on three clusters, tuning, awkward names."""

from __future__ import annotations

from functools import cache
from typing import Any

from scalewise.advice.advise import advise
from scalewise.core.statistics import Interval
from scalewise.core.timeline import Lane, RecordedStep
from scalewise.formats.profile import ProfileDocument
from scalewise.formats.store import Environment, Measurement
from scalewise.formats.train_result import BytesPerStep
from scalewise.published.stevens import stevens_profile
from scalewise.reporting.page_cells import predict_cells
from scalewise.reporting.page_json import Page, page_of_measurements, page_of_tuning
from tests.reporting.test_series import measured

SAMPLES = 2_000
MACHINE = Environment(
    hardware={"cpu": "Some CPU", "cores": 4, "memory_bytes": 16_000_000_000},
    versions={"torch": "2.13"},
    data="spoken digits",
    samples_per_epoch=SAMPLES,
)
AWKWARD = "</script><script>alert('x')</script> \"quoted\" & <b>bold</b> \u2028 名前 🚀"
STRATEGY_FACTORS = {"mirrored": 1.0, "ring": 1.2, "data-parallel": 1.5}
DISCONTINUED = "=cmd|' /C calc'!A0"


def timed(strategy: str, devices: int, batch: int, seconds: float, **more: Any) -> Measurement:
    """Return a timed cell with phases, bytes and memory."""
    phases = {"forward": 0.3 * seconds, "backward": 0.5 * seconds, "update": 0.1 * seconds, "load": 0.1 * seconds}
    if devices > 1:
        phases |= {"backward": 0.3 * seconds, "reduce": 0.2 * seconds}
    fields: dict[str, Any] = {
        "step_seconds": Interval(seconds, seconds * 0.98, seconds * 1.03, 20),
        "phases": phases,
        "bytes_per_step": BytesPerStep(planned=1, traced=1, busiest=48_000_000 if devices > 1 else 0),
        "peak_memory_bytes": 300_000_000 + 1_000_000 * batch // devices,
        "environment": MACHINE.id,
        "timeline": recorded(seconds) if (strategy, devices) == ("mirrored", 2) else None,
        **more,
    }
    return measured(strategy, devices, batch, seconds, **fields)


def recorded(seconds: float) -> RecordedStep:
    """Return a recorded step of two devices, in which a bucket is reduced beside backward."""
    computing = [("load", 0, 1000), ("forward", 1000, 3000), ("backward", 4000, 3000), ("reduce", 7000, 2000)]
    computing.append(("update", 9000, 1000))
    lanes = [Lane(rank, "compute", computing) for rank in (0, 1)]
    return RecordedStep(seconds, [*lanes, Lane(0, "network", [("reduce", 5000, 4000)])])


def grid(
    batches: tuple[int, ...] = (20, 40, 80, 160), counts: tuple[int, ...] = (2, 4), **more: Any
) -> list[Measurement]:
    """Return cells of one device and of three strategies on several, and one that ran out of memory."""
    cells = [timed("single", 1, batch, 0.02 + 0.001 * batch, **more) for batch in batches]
    for strategy, factor in STRATEGY_FACTORS.items():
        cells += [
            timed(strategy, count, batch, factor * (0.025 + 0.001 * batch / count), **more)
            for count in counts
            for batch in batches
        ]
    full: dict[str, Any] = {
        "status": "oom",
        "reason": "rank 1: full",
        "step_seconds": None,
        "phases": {},
        "timeline": None,
        "peak_memory_bytes": None,
    }
    return [*cells, timed("mirrored", counts[-1], 2 * batches[-1], 1.0, **{**full, **more})]


def outline(workload: str, _shape: str | None, _classes: int | None) -> ProfileDocument:
    return stevens_profile("linear").model_copy(update={"workload": workload, "steps": ()})


def grid_page() -> Page:
    """Return the page of a grid with predictions beside its cells."""
    cells = grid()
    predictions, notes = predict_cells(cells, {MACHINE.id: MACHINE}, outline)
    return page_of_measurements(
        "Report on sweep", cells, {MACHINE.id: MACHINE}, predictions, (), ["1 cell: oom"], notes
    )


def page_of(cells: list[Measurement], title: str = "Report") -> Page:
    return page_of_measurements(title, cells, {MACHINE.id: MACHINE})


def awkward_page() -> Page:
    """Return a page in which every name contains markup, quotes, line separators and other scripts."""
    machine = Environment(**{**MACHINE.model_dump(), "data": AWKWARD, "versions": {AWKWARD: AWKWARD}})
    names = {"workload": AWKWARD, "environment": machine.id}
    cells = [Measurement(**{**vars(cell), **names}) for cell in grid(batches=(20, 40), counts=(2,))]
    cells[-1] = Measurement(**{**vars(cells[-1]), "reason": DISCONTINUED})
    cells[1] = Measurement(**{**vars(cells[1]), "workload": DISCONTINUED})
    return page_of_measurements(AWKWARD, cells, {machine.id: machine}, remarks=[AWKWARD], notes=[AWKWARD])


def many_cells(count: int) -> list[Measurement]:
    """Return at least `count` cells of a few workloads."""
    batches = tuple(range(10, 10 + 10 * (count // 60 + 1), 10))
    cells: list[Measurement] = []
    for workload in ("linear", "conv", "unet", "transformer"):
        cells += [Measurement(**{**vars(cell), "workload": workload}) for cell in grid(batches, (2, 4, 8, 16, 32))]
    return cells[:count]


@cache
def advice_document() -> dict[str, Any]:
    """Return an `advise` document with a comparison of three clusters."""
    clusters = ("8x-v100-nvlink", "4x-rtx-3090-nvlink", "8 x v100-nvlink, 4 hosts, 100gbe")
    results = [
        advise("ResNet-50", step_time="0.062@32", cluster=name, batch=[256, 512], samples=1_281_167)
        for name in clusters
    ]
    documents = [result.to_dict() for result in results]
    costs = (412.7, 96.2, 1530.0)
    comparison = [
        {
            "cluster": document["cluster"],
            "best": document["verdict"]["best"],
            "seconds_to_finish": 90 * document["verdict"]["best"]["epoch_seconds"],
            "cost": cost,
            "price_source": "catalogue",
            "quality": quality,
        }
        for document, cost, quality in zip(documents, costs, ("scaled", "scaled", "specification"), strict=True)
    ]
    first = comparison[0]["cluster"]
    verdict = {**documents[0]["verdict"], "recommended": first, "recommendation": f"Fastest: {first}."}
    return {**documents[0], "comparison": comparison, "verdict": verdict}


def tune_document() -> dict[str, Any]:
    """Return a `tune` document with an option of lower precision and one that was skipped."""

    def trial(label: str, median: float | None, same: bool = True, **more: Any) -> dict[str, Any]:
        times = {"median": median, "low": median * 0.98, "high": median * 1.04, "n": 20} if median else None
        return {
            "options": {"label": label},
            "label": label,
            "step_seconds": times,
            "speedup": 0.05 / median if median else None,
            "peak_memory_bytes": 4_200_000_000 if median else None,
            "deviation": {"loss": 1e-7, "gradients": 3e-6, "rounding": 1e-7} if median else None,
            "compile_seconds": 12.5 if "compile" in label else 0.0,
            "same_mathematics": same,
            "skipped": None,
            **more,
        }

    trials = [
        trial("eager", 0.05),
        trial("channels-last", 0.041),
        trial("compile, channels-last", 0.029),
        trial("compile, channels-last, bf16", 0.016, same=False),
        trial("graph", None, skipped="the model synchronises with the host"),
    ]
    return {
        "workload": "unet",
        "device": "RTX 4090",
        "batch": 32,
        "precision": "fp32",
        "trials": trials,
        "best": trials[2],
        "offers": [trials[3]],
        "roofline_seconds": 0.012,
        "command": "scalewise train unet --batch 32 --execution compile --memory-format channels_last",
        "batches": {
            "trials": [
                {"batch": 32, "samples_per_second": 1100.0, "peak_memory_bytes": 4_200_000_000, "skipped": None},
                {"batch": 64, "samples_per_second": 1350.0, "peak_memory_bytes": 8_000_000_000, "skipped": None},
                {"batch": 128, "samples_per_second": None, "peak_memory_bytes": None, "skipped": "out of memory"},
            ],
            "largest": 64,
            "saturating": 64,
        },
        "versions": {"torch": "2.13"},
        "notes": [],
    }


def tune_page() -> Page:
    return page_of_tuning(tune_document())
