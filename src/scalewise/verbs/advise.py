"""`scalewise advise`: from one device's profile to "add GPUs", "don't", and why."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scalewise.advice.advice import Advice
from scalewise.advice.rows import Question, rows_of
from scalewise.advice.verdict import verdict_of
from scalewise.clusters.cluster import Cluster
from scalewise.errors import UserError
from scalewise.prediction.predict import Predictor
from scalewise.published.models import OUTLINES
from scalewise.results.profile import Profile
from scalewise.spec import unknown
from scalewise.strategies.registry import STRATEGIES, strategy_of
from scalewise.strategies.strategy import Strategy
from scalewise.verbs.cluster_named import HERE, cluster_named
from scalewise.verbs.one_device import Asked, check_can_be_timed, known_of
from scalewise.workloads.catalogue import CATALOGUE

if TYPE_CHECKING:
    from scalewise.step.settings import Precision
    from scalewise.workloads.workload import Workload

MOST_DEVICES = 1_000_000
"""Some seconds of simulation; more is a slip of the keyboard."""


def advise(
    workload: str | Workload | None = None,
    *,
    profile: Path | str | Profile | None = None,
    step_time: str | None = None,
    cluster: str | Cluster | None = None,
    strategy: Sequence[str] = (),
    devices: Sequence[int] = (),
    batch: Sequence[int] = (),
    batch_per_device: int | None = None,
    samples: int | None = None,
    calibrate: Path | str | None = None,
    save_profile: Path | str | None = None,
    fresh: bool = False,
    precision: Precision = "fp32",
    load: str = "auto",
    data: Path | str | None = None,
    input_shape: str | None = None,
    classes: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Advice:
    """Predict strategies x devices x batches on a cluster (this machine, if none is named), and say what to do.

    >>> print(scalewise.advise("linear", cluster="4x-gtx-1080-ti", batch=[100]))
    """
    if workload is None and profile is None:
        raise UserError("nothing to advise on; name a WORKLOAD, or give --profile FILE")
    if isinstance(workload, str) and profile is None:
        _check_name(workload)
    chosen = [strategy_of(text) for text in strategy]
    if (cluster or HERE) == HERE and profile is None and step_time is None:
        _check_model(workload, input_shape, classes)
    place, links = cluster_named(cluster or HERE, on_progress)
    if place.size > MOST_DEVICES:
        raise UserError(f"{place.name} has {place.size:,} devices; up to {MOST_DEVICES:,} are simulated")
    counts = list(dict.fromkeys(devices)) or _counts(place.size)
    for count in counts:
        if not 1 <= count <= place.size:
            raise UserError(f"{place.name} has 1 to {place.size} devices, not {count}")
    batches = list(dict.fromkeys(batch))
    if batch_per_device is not None:
        batches = [batch_per_device * count for count in sorted(counts, reverse=True)]
    asked = Asked(workload, place, counts, batches, profile, step_time, precision, load, data, input_shape, classes)
    known = known_of(replace(asked, fresh=fresh, on_progress=on_progress))
    document = known.document
    if save_profile is not None:
        Profile(document).write(Path(save_profile))
    if samples is not None:
        document = document.model_copy(update={"samples_per_epoch": samples})
    if calibrate is not None:
        from scalewise.verbs.calibrate import calibrated

        place, links, document = calibrated(place, Path(calibrate), document)
    predictor = Predictor(document, place)
    asked_for = Question(
        several(chosen or _strategies(place)),
        counts,
        batches or [known.default_batch],
        batch_per_device,
        epoch_known=samples is not None or document.epoch_told,
        named=bool(chosen),
        counted=bool(devices),
    )
    rows, left_out = rows_of(predictor, asked_for)
    # The verdict is on the first batch, or on the one table where devices bring their own samples.
    first = [row for row in rows if row.grown or row.prediction.batch == rows[0].prediction.batch]
    source = f"{known.source}, {links}"
    return Advice(document, source, place, rows, verdict_of(predictor, first), known.captured, left_out)


def _check_name(workload: str) -> None:
    """A misspelt one is answered as such, whatever devices the cluster has."""
    if re.fullmatch(r"[\w -]+", workload) and workload not in {*CATALOGUE, *OUTLINES}:
        valid = [*CATALOGUE, "hf:NAME", "path/to/file.py:function", "package.module:function"]
        raise unknown("workload", workload, [*valid, *OUTLINES])


def _check_model(workload: str | Workload | None, input_shape: str | None, classes: int | None) -> None:
    """Before the links of this machine are measured for it, which takes a minute where they never were."""
    if isinstance(workload, str):
        check_can_be_timed(workload)
        from scalewise.workloads.resolve import resolve

        resolve(workload, input_shape, classes)


def several(strategies: Sequence[Strategy]) -> list[Strategy]:
    """Each once, and without the one for one device."""
    return [strategy for strategy in dict.fromkeys(strategies) if strategy.name != "single"]


def _counts(size: int) -> list[int]:
    """1, 2, 4, ... and all."""
    return sorted({2**power for power in range(int(math.log2(size)) + 1)} | {size})


def _strategies(cluster: Cluster) -> list[Strategy]:
    """All but one device; on the GPUs of one host torch's own DataParallel, elsewhere ours."""
    threads = cluster.backend == "nccl" and cluster.hosts == 1
    made = [strategy_of(name) for name in STRATEGIES if name != "single"]
    return [strategy_of("data-parallel:engine=threads") if threads and s.name == "data-parallel" else s for s in made]
