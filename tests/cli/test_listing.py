"""What `list` and the help name is what there is."""

from __future__ import annotations

import json

import pytest

from scalewise.step.optimizers import OPTIMIZERS
from tests.command import Run


def test_presets_of_a_workload_are_listed(scalewise: Run) -> None:
    text = " ".join(scalewise("list", "workloads").stdout.split())
    assert "full (width=64," in text
    rows = json.loads(scalewise("list", "workloads", "--json").stdout)["workloads"]
    assert {row["name"]: row["presets"] for row in rows if row["presets"]} == {
        "unet": {"full": {"width": 64, "depth": 4, "size": 256}}
    }


def test_staleness_has_no_default_of_torch(scalewise: Run) -> None:
    rows = json.loads(scalewise("list", "strategies", "--json").stdout)["strategies"]
    [choices] = [row["choices"] for row in rows if row["name"] == "parameter-server-async"]
    assert choices["max_staleness"] == "(a number; unbounded if not given)"


@pytest.mark.parametrize("strategy", ["layers", "pipeline", "hybrid"])
def test_on_which_side_of_a_module_a_cut_is_made_is_said(strategy: str, scalewise: Run) -> None:
    rows = json.loads(scalewise("list", "strategies", "--json").stdout)["strategies"]
    [choices] = [row["choices"] for row in rows if row["name"] == strategy]
    assert choices["cut"] == "MODULE+MODULE (each begins a stage)"


@pytest.mark.parametrize("kind", ["strategies", "workloads", "clusters", "experiments"])
def test_no_word_is_broken_at_80_columns(kind: str, scalewise: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def words(columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        return scalewise("list", kind).stdout.split()

    assert words(1000) == words(80)
    assert max(map(len, scalewise("list", kind).stdout.splitlines())) <= 80


def test_the_help_says_what_asynchronous_steps_are(scalewise: Run) -> None:
    text = " ".join(scalewise("train", "--help").stdout.replace("│", " ").split())
    assert "Batches, instead of epochs: one update each, or with parameter-server-async one by every worker." in text


@pytest.mark.parametrize("command", ["train", "measure"])
def test_the_help_names_every_optimizer(command: str, scalewise: Run) -> None:
    text = scalewise(command, "--help").stdout
    assert [name for name in OPTIMIZERS if name not in text] == []


def test_what_is_refused_is_not_warned_of_first(scalewise: Run) -> None:
    line = ("train", "linear", "--strategy", "mirrored", "--devices", 9, "--hosts", 9, "--link", "1gbit")
    scalewise(*line).refused(2, "hosts", "9", "valid: 1 to 8")
