"""Profiles and calibration from given figures: step times, and files of measured steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from scalewise.core.errors import UserError
from scalewise.core.specs import matching
from scalewise.formats.measured_csv import MeasuredRow, read_measured_csv
from scalewise.formats.profile import ProfileDocument, StepCost
from scalewise.hardware.cluster import Cluster
from scalewise.predict.device_costs import Costs
from scalewise.predict.link_factors import LinkCalibration, MeasuredStep, calibrate_links
from scalewise.predict.network import Layout
from scalewise.predict.predictor import Predictor
from scalewise.published.tables import FORWARD_SHARE
from scalewise.strategies.base import Strategy
from scalewise.strategies.registry import strategy_of

if TYPE_CHECKING:
    from scalewise.core.training_options import GivenPrecision

StepTimes = Sequence[tuple[float, int]]
"""Pairs of seconds and batch per device."""
ProfileOf = Callable[[str, StepTimes, str], ProfileDocument]
"""Function (model, step times, precision) -> profile; raises UserError for an unknown model."""
HALF = {"bf16", "fp16", "bf16-weights", "fp16-weights"}
WEIGHTS = "-weights"


def with_step_times(document: ProfileDocument, step_times: StepTimes) -> ProfileDocument:
    """Profile with several measured steps instead of its single one."""
    if len(step_times) == 1:
        return document
    batches = [batch for _, batch in step_times]
    for batch in batches:
        if batches.count(batch) > 1:
            raise UserError(f"the step time at batch {batch} is given {batches.count(batch)} times; give it once")
    ready = document.steps[0].ready
    steps = tuple(
        StepCost(
            batch=batch,
            forward=seconds * FORWARD_SHARE,
            backward=seconds * (1 - FORWARD_SHARE),
            update=0,
            load=0,
            ready=ready,
        )
        for seconds, batch in sorted(step_times, key=lambda pair: pair[1])
    )
    return document.model_copy(update={"steps": steps, "samples_per_epoch": max(batches)})


def at_precision(document: ProfileDocument, precision: str) -> ProfileDocument:
    """Profile of an fp32 model with the bytes of another precision.

    Autocast (bf16, fp16) halves activations; weights, gradients and the optimizer's state stay fp32, and so do the
    bytes that DDP sends. With 16-bit weights all of them are halved.
    """
    if precision not in HALF:
        return document.model_copy(update={"precision": precision})
    weights = 0.5 if precision.endswith(WEIGHTS) else 1.0
    layers = tuple(
        layer.model_copy(
            update={
                "parameter_bytes": round(weights * layer.parameter_bytes),
                "activation_bytes": layer.activation_bytes // 2,
            }
        )
        for layer in document.layers
    )
    smaller = {"parameter_bytes": round(weights * document.parameter_bytes)}
    smaller_footprint = {"footprint": _footprint_at(document.footprint, weights)}
    changes = {"precision": precision, **smaller, **smaller_footprint}
    return document.model_copy(update=changes).model_copy(update=dict(layers=layers))  # noqa: C408


def _footprint_at(footprint: Mapping[str, Any], weights: float) -> dict[str, Any]:
    """Footprint with halved activations, and with the given share of the bytes of weights."""

    def scaled(values: Mapping[str, Any], shares: Mapping[str, float]) -> dict[str, Any]:
        return {**values, **{name: _times(values[name], share) for name, share in shares.items() if name in values}}

    if not footprint:
        return {}
    whole = scaled(footprint, {"parameter_bytes": weights, "output_bytes": 0.5})
    parts: dict[str, dict[str, float]] = {
        "sections": {
            "parameter_bytes": weights,
            "frozen_bytes": weights,
            "kept_bytes": 0.5,
            "passed_bytes": 0.5,
            "returned_bytes": 0.5,
        },
        "matrices": {"input_bytes": 0.5, "output_bytes": 0.5},
        "frozen": {"bytes": weights},
    }
    return {
        **whole,
        **{name: [scaled(part, by) for part in whole[name]] for name, by in parts.items() if name in whole},
    }


def _times(value: Any, share: float) -> Any:
    return [round(share * part) for part in value] if isinstance(value, list | tuple) else round(share * value)


@dataclass(frozen=True)
class TimedRow:
    """A measured step on several devices, and the profile of its model."""

    row: MeasuredRow
    strategy: Strategy
    profile: ProfileDocument

    @property
    def linear_seconds(self) -> float:
        """Seconds of one device at the same batch per device, or of its share of the work in stages."""
        costs = Costs(self.profile)
        if self.strategy.in_stages:
            return costs.compute_seconds(self.row.batch) / self.row.devices
        return costs.compute_seconds(self.row.batch_per_device)

    def layout(self) -> Layout:
        return Layout((self.row.devices // self.row.hosts,) * self.row.hosts)

    def place_on(self, cluster: Cluster, path: Path) -> Cluster:
        """Cluster with the row's number of hosts."""
        per_host = self.row.devices // self.row.hosts
        if per_host > cluster.devices_per_host:
            raise UserError(
                f"{path}, line {self.row.line}: {per_host} devices on a host, but {cluster.name} has "
                f"{cluster.devices_per_host}; give the number of hosts, or another --cluster"
            )
        if self.row.hosts > 1 and cluster.link("hosts") is None:
            raise UserError(
                f"{path}, line {self.row.line}: {self.row.hosts} hosts, but the network of {cluster.name} is not "
                "known; give a --cluster such as '8 x a100-nvlink, 4 hosts, 100gbe'"
            )
        return replace(cluster, hosts=max(cluster.hosts, self.row.hosts))

    def measured_step(self, path: Path) -> MeasuredStep:
        def predicted(cluster: Cluster) -> float:
            predictor = Predictor(self.profile, self.place_on(cluster, path))
            return predictor.simulate(self.strategy, self.row.devices, self.row.batch, self.layout()).step_seconds

        return MeasuredStep(self.row.label, self.row.seconds, self.linear_seconds, predicted, self.row.model)


@dataclass(frozen=True)
class MeasuredFile:
    """Rows of a file of measured steps."""

    path: Path
    rows: Sequence[MeasuredRow]

    @classmethod
    def read(cls, path: Path) -> MeasuredFile:
        return cls(path, read_measured_csv(path))

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(row.model for row in self.rows))

    def step_times(self, model: str, precision: str) -> StepTimes:
        """Measured steps of one device, by batch; the mean of repeated rows."""
        repeats: dict[int, list[float]] = {}
        for row in self.rows:
            if row.devices == 1 and _same_model(row.model, model) and row.precision in ("", precision):
                repeats.setdefault(row.batch_per_device, []).append(row.seconds)
        return [(sum(seconds) / len(seconds), batch) for batch, seconds in sorted(repeats.items())]

    def texts_of_steps(self, model: str, precision: str) -> list[str]:
        """Measured steps of one device as values of --step-time; raise UserError if there are none."""
        if step_times := self.step_times(model, precision):
            return [f"{seconds!r}@{batch}" for seconds, batch in step_times]
        alone = dict.fromkeys(f"{row.model} {row.precision}".rstrip() for row in self.rows if row.devices == 1)
        raise UserError(
            f"{self.path} has no one-device row of {model} at {precision}",
            "add one, or give --step-time SECONDS@BATCH",
            f"it has one-device rows of: {', '.join(alone) or 'no model'}",
        )

    def largest_batch(self, model: str, precision: str) -> int:
        """Largest batch per device that ran, on any number of devices with a copy of the model on each; 0 if none."""
        rows = (row for row in self.rows if _same_model(row.model, model) and row.precision in ("", precision))
        copies = (row for row in rows if not self._strategy(row).for_large_models)
        return max((row.batch_per_device for row in copies), default=0)

    def precision_of(self, model: str) -> GivenPrecision:
        """Precision of the rows of a model, if all of them have the same one, else fp32."""
        precisions = {row.precision for row in self.rows if _same_model(row.model, model)}
        return cast("GivenPrecision", precisions.pop()) if len(precisions) == 1 and precisions != {""} else "fp32"

    def timed_rows(
        self, profile_of: ProfileOf, known: ProfileDocument | None = None
    ) -> tuple[list[TimedRow], list[MeasuredRow]]:
        """Rows on several devices with the profiles of their models, and rows without a one-device row.

        `known`: profile that is used for rows of its workload and precision.
        """
        profiles: dict[tuple[str, str], ProfileDocument | None] = {}
        timed, left_out = list[TimedRow](), list[MeasuredRow]()
        for row in self.rows:
            if row.devices == 1:
                continue
            key = row.model, row.precision or "fp32"
            if key not in profiles:
                profiles[key] = self._profile(row, key[1], profile_of, known)
            if profile := profiles[key]:
                timed.append(TimedRow(row, self._strategy(row), profile))
            else:
                left_out.append(row)
        return timed, left_out

    def _profile(
        self, row: MeasuredRow, precision: str, profile_of: ProfileOf, known: ProfileDocument | None
    ) -> ProfileDocument | None:
        if known and _same_model(row.model, known.workload) and (not row.precision or precision == known.precision):
            return known
        if not (step_times := self.step_times(row.model, precision)):
            return None
        try:
            return profile_of(row.model, step_times, precision)
        except UserError as error:
            raise UserError(f"{self.path}, line {row.line}: {error}") from None

    def _strategy(self, row: MeasuredRow) -> Strategy:
        try:
            return strategy_of(row.strategy)
        except UserError as error:
            raise UserError(f"{self.path}, line {row.line}: {error}") from None

    def calibrated(
        self, cluster: Cluster, profile_of: ProfileOf, known: ProfileDocument
    ) -> tuple[LinkCalibration | None, str]:
        """Calibrate the links to the rows on several devices; also describe them. None if there are none."""
        timed, left_out = self.timed_rows(profile_of, known)
        without = (
            f"; {lines_text(left_out)} left out, because there is no one-device row of the model" if left_out else ""
        )
        if not timed:
            return None, without
        calibration = calibrate_links(cluster, [row.measured_step(self.path) for row in timed])
        rows = "one row" if len(timed) == 1 else f"{len(timed)} rows"
        return calibration, f"links calibrated to {rows} of {self.path}{without}"


def lines_text(rows: Sequence[MeasuredRow]) -> str:
    numbers = [str(row.line) for row in rows]
    shown = ", ".join(numbers[:5]) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    return f"line{'s' if len(numbers) > 1 else ''} {shown}"


def _same_model(one: str, other: str) -> bool:
    return one == other or matching(one, [other]) is not None


def calibration_json(calibration: LinkCalibration) -> dict[str, Any]:
    return {
        "factors": [asdict(factor) for factor in calibration.factors],
        "residuals": [
            {
                "row": row.name,
                "measured_seconds": row.measured,
                "seconds_before": row.before,
                "seconds": row.after,
                "residual_percent": row.residual_percent,
                "informative": row.informative,
            }
            for row in calibration.residuals
        ],
    }
