"""What people see without `--json`: tables on stdout that say both batches, the data and the phases."""

from __future__ import annotations

from pathlib import Path

from tests.command import Run


def test_train_shows_both_batches_and_the_phases(scalewise: Run) -> None:
    said = scalewise("train", "tests.tiny:float32", "--device-kind", "cpu", "--batch", 6, "--epochs", 2)
    assert (said.code, said.stderr) == (0, "")
    for expected in ("6 global = 6 per device", "single on 1 cpu device", "generated numbers", "accuracy", "backward"):
        assert expected in said.stdout


def test_list_names_options_with_their_defaults(scalewise: Run) -> None:
    assert "width=8, depth=3" in " ".join(scalewise("list", "workloads").stdout.split())
    assert "one device; the reference" in scalewise("list", "strategies").stdout


def test_describe_and_doctor(scalewise: Run) -> None:
    assert "46.17" in scalewise("describe", "linear").stdout
    assert "Ways to run" in scalewise("doctor").stdout


def test_a_checkpoint_is_named(scalewise: Run, folder: Path) -> None:
    line = ("train", "tests.tiny:float32", "--batch", 6, "--steps", 2)
    said = scalewise(*line, "--checkpoint", folder / "c.safetensors")
    assert str(folder / "c.safetensors") in "".join(said.stdout.split())


def test_version_and_no_arguments(scalewise: Run) -> None:
    assert scalewise("--version").stdout.startswith("scalewise 0.")
    assert "Usage: scalewise" in scalewise().stdout
    assert scalewise().code == 0
