"""The GPU catalogue: names, aliases, and values that agree with each other."""

from __future__ import annotations

import pytest

from scalewise.core.errors import UserError
from scalewise.hardware.gpus import ALIASES, gpu_named, gpus


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rtx-4090", "RTX 4090"), ("RTX4090", "RTX 4090"), ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("h100-pcie", "H100 PCIe 80GB"), ("H100", "H100 SXM5 80GB"), ("a10g", "A10G"), ("l4", "L4"), ("L40S", "L40S"),
        ("b200", "B200 SXM 180GB"), ("mi300x", "MI300X"), ("Tesla T4", "T4"), ("GTX 1080Ti", "GTX 1080 Ti"),
        ("A100-SXM4-40GB", "A100 SXM4 40GB"), ("v100-pcie-32gb", "V100 PCIe 32GB"), ("k80", "K80 (one of two)"),
    ],
)  # fmt: skip
def test_names_and_aliases_are_found_in_any_spelling(name: str, expected: str) -> None:
    assert gpu_named(name).name == expected


def test_a_misspelt_name_gets_the_nearest_one() -> None:
    with pytest.raises(UserError, match=r"unknown GPU 'rtx-4909' \(did you mean 'rtx-4090'\?\)"):
        gpu_named("rtx-4909")


def test_all_49_gpus_are_read_and_every_alias_names_one() -> None:
    assert len(gpus()) == 49
    assert all(target in gpus() for target in ALIASES.values())
    assert not set(ALIASES) & set(gpus())


@pytest.mark.parametrize("gpu", gpus().values(), ids=lambda gpu: gpu.key)
def test_specifications_agree_with_themselves(gpu) -> None:  # type: ignore[no-untyped-def]
    assert gpu.source
    assert 5 < gpu.memory_GB < 300
    assert 5 <= gpu.memory_GBps / gpu.memory_GB <= 110
    for tensor in (gpu.tf32_TFLOPS, gpu.fp16_TFLOPS, gpu.bf16_TFLOPS):
        assert tensor is None or tensor >= 0.9 * gpu.fp32_TFLOPS
    if gpu.bf16_TFLOPS and gpu.tf32_TFLOPS:
        assert gpu.bf16_TFLOPS == pytest.approx(2 * gpu.tf32_TFLOPS, rel=0.02)
    if gpu.vendor == "NVIDIA":
        clocked = 2 * 128 * gpu.multiprocessors * gpu.boost_MHz / 1e6
        assert 0.4 * clocked <= gpu.fp32_TFLOPS <= 1.6 * clocked
