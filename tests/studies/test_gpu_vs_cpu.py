"""Comparison of CPU and GPU: sentences follow from the numbers; without a GPU only the CPU part runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scalewise.studies import gpu_vs_cpu
from scalewise.studies.gpu_vs_cpu import (
    CPU,
    Task,
    bandwidth_words,
    busy_words,
    convolution_words,
    free_words,
    headline,
    memory_GBps,
    moving_words,
    seconds_of,
    survey_claims,
)


def task(size: int, cpu: float, copy: float | None, gpu: float | None, kind: str = "product") -> Task:
    return Task(kind, size, cpu, copy, gpu)


def test_a_task_is_worth_moving_if_copies_and_gpu_together_are_faster_than_the_cpu() -> None:
    assert task(16, 1.0, 0.5, 0.4).worth_moving is True
    assert task(16, 1.0, 0.5, 0.6).worth_moving is False
    assert task(16, 1.0, None, None).worth_moving is None


def test_sentences_about_the_size_from_which_the_gpu_is_faster() -> None:
    tasks = [task(16, 1e-6, 1e-5, 1e-5), task(256, 1e-4, 1e-4, 1e-5), task(1024, 1e-2, 1e-3, 1e-4)]
    assert "the CPU is faster up to 256 x 256" in moving_words(tasks, "product")
    assert moving_words(tasks[:1], "product") == (
        "product of two matrices: the GPU is never faster, copies included; at 16 x 16 the copies take 10 µs and the "
        "CPU 1 µs"
    )
    assert moving_words(tasks[2:], "product").endswith("at every size from 1024 x 1024")


def test_sentences_about_ratios_of_gpu_and_cpu() -> None:
    assert bandwidth_words({"cpu": 20.0, "gpu": 400.0}).startswith("memory: the GPU copies at 400 GB/s, 20.0 times")
    assert "2.0 times as fast at batch 1 and 10.0 times at batch 20" in convolution_words(
        {1: 0.2, 20: 1.0}, {1: 0.1, 20: 0.1}
    )
    assert free_words({"cpu": 15.5, "gpu": 1.0}, 16).endswith("training on the GPU 1.0, which leaves 15.0 free")


def test_the_surveys_claims_are_checked_by_numbers() -> None:
    GBps, busy = {"cpu": 20.0, "gpu": 400.0}, {"cpu": 15.0, "gpu": 1.0}
    small = [task(16, 1e-6, 1e-5, 1e-5), task(1024, 1e-2, 1e-3, 1e-4)]
    claims = survey_claims(GBps, {"cpu": {1: 0.2, 20: 1.0}, "gpu": {1: 0.1, 20: 0.1}}, small, busy, 16)
    assert [claim.holds for claim in claims] == [True] * 4
    assert headline("a machine", claims).startswith("Found on a machine: 4 of the survey's 4 claims about GPUs hold; ")
    slow = survey_claims(
        {"cpu": 20.0, "gpu": 10.0},
        {"cpu": {1: 0.2, 20: 1.0}, "gpu": {1: 0.1, 20: 0.5}},
        small[1:],
        {**busy, "gpu": 9},
        16,
    )
    assert [claim.holds for claim in slow] == [False] * 4


def test_without_a_gpu_the_surveys_claims_are_uncertain() -> None:
    claims = survey_claims({"cpu": 20.0}, {"cpu": {1: 0.2, 20: 1.0}}, [task(16, 1e-6, None, None)], {"cpu": 1.9}, 2)
    assert [claim.verdict for claim in claims] == ["uncertain"] * 4
    assert headline("a machine", claims) == (
        "Found on a machine, without a GPU: memory: the CPU copies at 20 GB/s (read and written); convolution layer: "
        "the CPU trains 5 clips/s at batch 1 and 20 clips/s at batch 20"
    )


def test_times_that_do_not_grow_with_the_work_give_a_warning() -> None:
    busy = [task(size, seconds, None, None) for size, seconds in ((16, 2e-6), (64, 24e-3), (256, 23e-3), (512, 26e-3))]
    [sentence] = busy_words(busy)
    assert sentence.startswith(
        "the machine was busy: the CPU took 24 ms for a product of two 64 x 64 matrices and 26 ms for 512 x 512;"
    )
    idle = [task(size, size**3 / 2e10, None, None) for size in (16, 64, 256, 512, 1024)]
    assert busy_words(idle) == []
    assert busy_words([replace(product, kind="sum") for product in busy]) == []


def test_the_quickest_of_enough_calls_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most calls wait 24 ms for busy cores, and the budget ends before the first of the rare undisturbed calls."""
    calls, now = 0, 0.0

    def work() -> None:
        nonlocal calls, now
        calls += 1
        now += 0.024 if calls % 12 else 0.001

    monkeypatch.setattr("scalewise.studies.gpu_vs_cpu.perf_counter", lambda: now)
    assert seconds_of(work, CPU, 0.1) == pytest.approx(0.001)
    assert now < 0.6


def test_calls_are_timed_after_warming_up() -> None:
    calls: list[int] = []
    seconds = seconds_of(lambda: calls.append(1), CPU, 0.0)
    assert len(calls) == 5
    assert 0 < seconds < 0.1


def test_a_copy_counts_what_it_reads_and_what_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scalewise.studies.gpu_vs_cpu.seconds_of", lambda *_: 0.5)
    assert memory_GBps(CPU, 100, 1.0) == pytest.approx(0.4)


@pytest.mark.slow
def test_without_a_gpu_only_the_cpu_part_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu_vs_cpu, "QUICK_BATCHES", (1, 2))
    monkeypatch.setattr(gpu_vs_cpu, "QUICK_SIZES", (16, 32))
    monkeypatch.setattr(gpu_vs_cpu, "MEGABYTES", 4)
    monkeypatch.setattr(gpu_vs_cpu, "BUSY_BATCH", 1)
    log: list[str] = []
    result = gpu_vs_cpu.run(tmp_path, True, log.append)
    assert log[0] == gpu_vs_cpu.NO_GPU == result.findings[0]
    document = json.loads((tmp_path / "gpu-vs-cpu.json").read_text())
    assert list(document["convolution_seconds"]["cpu"]) == ["1", "2"]
    assert [task["gpu_seconds"] for task in document["tasks"]] == [None] * 4
    assert document["memory_GBps"]["cpu"] > 0
    assert "![gpu-vs-cpu](gpu-vs-cpu.png)" in (tmp_path / "findings.md").read_text()
    assert all(path.stat().st_size > 5_000 for path in result.figures)
