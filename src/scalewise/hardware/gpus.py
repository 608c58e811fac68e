"""GPU specifications by name. Imports no torch."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from scalewise.core.specs import unknown

ALIASES = {
    "a100": "a100-sxm4-40gb",
    "a100-40gb": "a100-sxm4-40gb",
    "a100-80gb": "a100-sxm4-80gb",
    "a100-sxm4": "a100-sxm4-40gb",
    "a100-pcie": "a100-pcie-40gb",
    "h100": "h100-sxm5-80gb",
    "h100-sxm": "h100-sxm5-80gb",
    "h100-sxm5": "h100-sxm5-80gb",
    "h100-pcie": "h100-pcie-80gb",
    "h100-nvl": "h100-nvl-94gb",
    "h200": "h200-sxm-141gb",
    "h200-sxm": "h200-sxm-141gb",
    "h200-sxm5": "h200-sxm-141gb",
    "gh200": "gh200-96gb",
    "b200": "b200-sxm-180gb",
    "b200-sxm": "b200-sxm-180gb",
    "v100": "v100-sxm2-16gb",
    "v100-sxm2": "v100-sxm2-16gb",
    "v100-pcie": "v100-pcie-16gb",
    "v100-dgxs-16gb": "v100-sxm2-16gb",
    "v100-32gb": "v100-sxm2-32gb",
    "p100": "p100-pcie-16gb",
    "p100-pcie": "p100-pcie-16gb",
    "p100-sxm2": "p100-sxm2-16gb",
    "k80": "k80-one-of-two",
    "k80-one-gk210": "k80-one-of-two",
    "mi250x": "mi250x-both-dies",
    "rtx-3080": "rtx-3080-10gb",
    "titan-x": "titan-x-pascal",
    "rtx-2070-super-8gb": "rtx-2070-super",
    "rtx-8000": "quadro-rtx-8000",
    "rtx-6000": "quadro-rtx-6000",
    "rtx-6000-ada-generation": "rtx-6000-ada",
    "a6000": "rtx-a6000",
    "a5000": "rtx-a5000",
    "a4000": "rtx-a4000",
    "rtx-pro-6000": "rtx-pro-6000-blackwell",
}
"""Short name -> full name. A name with several variants means the most common one."""
VENDOR_WORDS = ("nvidia-", "geforce-", "tesla-", "amd-", "instinct-")
CONSUMER = ("GTX", "RTX 2", "RTX 3", "RTX 4", "RTX 5", "TITAN")


@dataclass(frozen=True)
class Gpu:
    """Specification of one GPU. Peaks are without sparsity and with fp32 sums; None if the GPU has no such unit."""

    name: str
    vendor: str
    architecture: str
    memory_type: Literal["HBM", "GDDR"]
    memory_GB: float
    memory_GBps: float
    multiprocessors: int
    boost_MHz: float
    l2_MB: float
    fp32_TFLOPS: float
    tf32_TFLOPS: float | None
    fp16_TFLOPS: float | None
    bf16_TFLOPS: float | None
    nvlink_GBps: float
    pcie_generation: int
    tdp_W: float | None
    year: int
    source: str
    note: str

    @property
    def key(self) -> str:
        return key_of(self.name)

    @property
    def consumer(self) -> bool:
        """Whether it is a GeForce or TITAN card: these boost above their specification."""
        return self.name.startswith(CONSUMER) and not self.name.startswith("RTX PRO")

    def lacks_units(self, precision: str) -> str:
        """Note that the GPU has no matrix units for a precision; empty if it has."""
        peaks = {"tf32": self.tf32_TFLOPS, "fp16": self.fp16_TFLOPS, "bf16": self.bf16_TFLOPS}
        if precision not in peaks or peaks[precision]:
            return ""
        others = [other for other, peak in peaks.items() if peak]
        use = f"; it has them for {' and '.join(others)}" if others else ""
        return f"{self.name} has no matrix units for {precision}, which is no faster than fp32 there{use}"


def key_of(name: str) -> str:
    """Return the key of a GPU name: 'RTX 4090' -> 'rtx-4090'."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@cache
def gpus() -> dict[str, Gpu]:
    """Return all GPUs by key, ordered by vendor and age as in gpus.csv."""
    with (files(__package__) / "gpus.csv").open(encoding="utf-8") as lines:
        table = [_gpu(row) for row in csv.DictReader(lines)]
    return {gpu.key: gpu for gpu in table}


def gpu_named(name: str) -> Gpu:
    """Return the GPU with this name or alias, ignoring case and punctuation; raise UserError if there is none."""
    gpu = find_gpu(name)
    if gpu is None:
        raise unknown("GPU", name, [*gpus(), *(alias for alias in ALIASES if alias not in gpus())])
    return gpu


def find_gpu(name: str) -> Gpu | None:
    """Return the GPU with this name or alias, ignoring case and punctuation; None if there is none."""
    key = key_of(name)
    for word in VENDOR_WORDS:
        key = key.removeprefix(word)
    key = ALIASES.get(key, key)
    if key in gpus():
        return gpus()[key]
    return _by_letters().get(_letters(key))


def _letters(key: str) -> str:
    return key.replace("-", "")


@cache
def _by_letters() -> dict[str, Gpu]:
    """GPUs by key and alias without dashes, so that 'RTX4090' and 'GTX 1080Ti' are found."""
    names = {key: key for key in gpus()} | ALIASES
    return {_letters(name): gpus()[key] for name, key in names.items()}


def _gpu(row: dict[str, str]) -> Gpu:
    def number(column: str) -> float | None:
        return float(row[column]) if row[column] else None

    def required(column: str) -> float:
        return float(row[column])

    return Gpu(
        name=row["gpu"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        memory_type="HBM" if row["memory_type"] == "HBM" else "GDDR",
        memory_GB=required("memory_GB"),
        memory_GBps=required("memory_GBps"),
        multiprocessors=int(row["multiprocessors"]),
        boost_MHz=required("boost_MHz"),
        l2_MB=required("l2_MB"),
        fp32_TFLOPS=required("fp32_TFLOPS"),
        tf32_TFLOPS=number("tf32_TFLOPS"),
        fp16_TFLOPS=number("fp16_TFLOPS"),
        bf16_TFLOPS=number("bf16_TFLOPS"),
        nvlink_GBps=required("nvlink_GBps"),
        pcie_generation=int(row["pcie_generation"]),
        tdp_W=number("tdp_W"),
        year=int(row["year"]),
        source=row["source"],
        note=row["note"],
    )
