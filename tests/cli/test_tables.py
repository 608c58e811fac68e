"""Output without `--json`."""

from __future__ import annotations

from pathlib import Path

from tests.command import Run


def test_train_shows_both_batches_and_the_phases(scalewise: Run) -> None:
    output = scalewise("train", "tests.tiny:float32", "--device-kind", "cpu", "--batch", 6, "--epochs", 2)
    assert (output.code, output.stderr) == (0, "")
    for expected in ("6 global", "single on 1 cpu device", "generated numbers", "accuracy", "backward"):
        assert expected in output.stdout


def test_list_names_options_with_their_defaults(scalewise: Run) -> None:
    assert "width=8, depth=3" in " ".join(scalewise("list", "workloads").stdout.split())
    assert "one device; the baseline of all other strategies" in scalewise("list", "strategies").stdout


def test_describe_and_doctor(scalewise: Run) -> None:
    assert "46.17" in scalewise("describe", "linear").stdout
    assert "Ways to run" in scalewise("doctor").stdout


def test_a_checkpoint_is_named(scalewise: Run, folder: Path) -> None:
    line = ("train", "tests.tiny:float32", "--batch", 6, "--steps", 2)
    output = scalewise(*line, "--checkpoint", folder / "c.safetensors")
    assert str(folder / "c.safetensors") in "".join(output.stdout.split())


def test_version_and_no_arguments(scalewise: Run) -> None:
    assert scalewise("--version").stdout.startswith("scalewise 0.")
    assert "Usage: scalewise" in scalewise().stdout
    assert scalewise().code == 0


def test_help_groups_the_commands(scalewise: Run) -> None:
    lines = scalewise("--help").stdout.splitlines()
    first_words = [line.strip("╭│╰─ ").partition(" ")[0] for line in lines]
    names = ["Decide", "advise", "validate", "Run", "train", "Measure", "measure", "report", "profile"]
    names += ["Reproduce", "reproduce", "Inspect", "describe", "list", "doctor", "data"]
    assert [word for word in first_words if word in names] == names
