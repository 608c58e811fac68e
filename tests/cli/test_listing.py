"""`scalewise list` and help texts name everything that exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scalewise.core.training_options import OPTIMIZERS
from scalewise.hardware.catalogue import cluster_of
from scalewise.strategies.registry import STRATEGIES
from tests.command import ROOT, Run


def test_presets_of_a_workload_are_listed(scalewise: Run) -> None:
    text = " ".join(scalewise("list", "workloads").stdout.split())
    assert "full (width=64," in text
    rows = json.loads(scalewise("list", "workloads", "--json").stdout)["workloads"]
    assert {row["name"]: row["presets"] for row in rows if row["presets"]} == {
        "unet": {"full": {"width": 64, "depth": 4, "size": 256}}
    }


def test_the_documentation_lists_every_strategy_in_order() -> None:
    lines = (ROOT / "docs/strategies.md").read_text().splitlines()
    names = [match.group(1) for line in lines if (match := re.match(r"\| `([\w-]+)` \|", line))]
    assert names == list(STRATEGIES)


def test_staleness_has_no_default_of_torch(scalewise: Run) -> None:
    rows = json.loads(scalewise("list", "strategies", "--json").stdout)["strategies"]
    [choices] = [row["choices"] for row in rows if row["name"] == "parameter-server-async"]
    assert choices["max_staleness"] == "(a number; unbounded if not given)"


@pytest.mark.parametrize("strategy", ["layers", "pipeline", "hybrid"])
def test_the_listing_explains_cut(strategy: str, scalewise: Run) -> None:
    rows = json.loads(scalewise("list", "strategies", "--json").stdout)["strategies"]
    [choices] = [row["choices"] for row in rows if row["name"] == strategy]
    assert choices["cut"] == "MODULE+MODULE (each begins a stage)"


@pytest.mark.parametrize("kind", ["strategies", "workloads", "clusters", "gpus", "experiments"])
def test_words_are_not_broken_at_80_columns(kind: str, scalewise: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def words(columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        return scalewise("list", kind).stdout.split()

    assert words(1000) == words(80)
    assert max(map(len, scalewise("list", kind).stdout.splitlines())) <= 80


def test_gpus_are_listed_with_memory_peaks_power_and_source(scalewise: Run) -> None:
    rows = {row["name"]: row for row in json.loads(scalewise("list", "gpus", "--json").stdout)["gpus"]}
    assert len(rows) == 49
    h100 = rows["h100-sxm5-80gb"]
    assert (h100["memory_GB"], h100["memory_GBps"], h100["tdp_W"]) == (80, 3350, 700)
    assert h100["peak_TFLOPS"] == {"fp32": 66.91, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4}
    assert rows["p4"]["peak_TFLOPS"]["fp16"] is None
    assert all(row["source"] for row in rows.values())


def test_a_shown_cluster_is_a_file_for_advise(scalewise: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(scalewise("clusters", "show", "4 x rtx-4090, 2 hosts, 25gbe").stdout)
    assert cluster_of(str(path)) == cluster_of("4 x rtx-4090, 2 hosts, 25gbe")
    assert json.loads(scalewise("clusters", "show", path, "--json").stdout)["devices"][0]["name"] == "RTX 4090"


def test_the_help_says_what_asynchronous_steps_are(scalewise: Run) -> None:
    text = " ".join(scalewise("train", "--help").stdout.replace("│", " ").split())
    assert "or with parameter-server-async one update by every worker." in text


@pytest.mark.parametrize("command", ["train", "measure"])
def test_the_help_names_every_optimizer(command: str, scalewise: Run) -> None:
    text = scalewise(command, "--help").stdout
    assert [name for name in OPTIMIZERS if name not in text] == []


def test_a_refused_run_prints_no_warning(scalewise: Run) -> None:
    line = ("train", "linear", "--strategy", "mirrored", "--devices", 9, "--hosts", 9, "--link", "1gbit")
    scalewise(*line).refused(2, "hosts", "9", "valid: 1 to 8")
