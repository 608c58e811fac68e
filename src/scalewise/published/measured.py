"""Published cells as measurements: reported, drawn and searched for findings like one's own."""

from __future__ import annotations

from scalewise.published.tables import STEVENS, load_stevens
from scalewise.results.environment import Environment
from scalewise.results.measurement import Measurement
from scalewise.results.train import BytesPerStep

STEVENS_PARAMETERS = {"linear": 12_102_220, "conv": 376_200}
"""As the study counts them; each takes four bytes."""


def stevens_environment() -> Environment:
    return Environment(
        hardware={"gpus": ["GTX 1080 Ti"] * 4, "cpu": "unnamed"},
        data="the study's 2,000 spoken digits, every clip read from its wav file in every epoch",
        samples_per_epoch=2_000,
        conditions={"source": STEVENS.citation, "load": "files"},
    )


def stevens_measurements() -> list[Measurement]:
    """The study's 96 cells. Bytes are its own count: the model goes out and its gradients come back on every link."""
    environment = stevens_environment().id
    return [
        Measurement(
            workload=row.workload,
            strategy="data-parallel",
            options={"engine": "threads"},
            devices=row.devices,
            device_kind="cuda",
            batch=row.batch,
            batch_per_device=-(-row.batch // row.devices),
            optimizer="adam",
            protocol="paper",
            execution="eager",
            epoch_seconds=row.epoch_seconds,
            bytes_per_step=_bytes_per_step(row.workload, row.devices),
            environment=environment,
            started=str(STEVENS.year),
        )
        for row in load_stevens()
    ]


def _bytes_per_step(workload: str, devices: int) -> BytesPerStep:
    there_and_back = 2 * 4 * STEVENS_PARAMETERS[workload]
    return BytesPerStep(
        planned=there_and_back * (devices - 1), traced=None, busiest=there_and_back if devices > 1 else 0
    )
