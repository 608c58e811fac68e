"""Every command works with a strategy outside the package, `tests/toy_strategy`: two files and two registry entries."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command import ROOT, Output, finish, fork

pytestmark = pytest.mark.slow

TRAINED = ("train", "linear", "--device-kind", "cpu", "--samples", 48, "--batch", 8, "--steps", 12)

Run = Callable[..., Output]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the command line with the toy strategy, in a process of its own."""
    cache = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")), "SCALEWISE_SPEECH": ""}

    def run(*arguments: object) -> Output:
        return finish(fork(*arguments, module="tests.toy_strategy", env_more=cache))

    return run


def document(output: Output) -> dict[str, Any]:
    assert output.code == 0, output
    parsed: dict[str, Any] = json.loads(output.stdout)
    return parsed


@pytest.fixture(scope="module")
def trained(run: Run) -> dict[str, Any]:
    return document(run(*TRAINED, "--strategy", "flat:messages=two", "--devices", 2, "--json"))


@pytest.fixture(scope="module")
def sweep(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sweep")
    cells = ("--strategy", "single", "--strategy", "flat", "--devices", 2, "--batch", 8, "--device-kind", "cpu")
    output = run("measure", "tests.tiny:float32", *cells, "--interval", 1000, "--budget", 3, "--out", folder, "--json")
    return folder, document(output)


def test_list_shows_its_options(run: Run) -> None:
    [row] = [row for row in document(run("list", "strategies", "--json"))["strategies"] if row["name"] == "flat"]
    assert row == {
        "name": "flat",
        "summary": "gradients all-reduced in one message after backward",
        "exact": True,
        "options": {"messages": "one"},
        "choices": {"messages": "one|two"},
    }


def test_its_options_are_checked(run: Run) -> None:
    run(*TRAINED, "--strategy", "flat:messages=three").refused(2, "'three'", "valid: one, two")


def test_training_equals_that_of_one_device(run: Run, trained: dict[str, Any]) -> None:
    alone = document(run(*TRAINED, "--json"))
    assert (trained["strategy"], trained["options"], trained["devices"]) == ("flat", {"messages": "two"}, 2)
    assert trained["loss"] == pytest.approx(alone["loss"], rel=1e-4)
    assert trained["phases"]["reduce"] > 0


def test_planned_bytes_equal_those_counted_by_the_kernel(trained: dict[str, Any]) -> None:
    counted = trained["bytes_per_step"]
    assert counted["planned"] > 2 * 4 * trained["parameters"]
    assert counted["traced"] == counted["planned"]
    assert counted["traced_by"] == "kernel"


def test_planned_memory_includes_its_message(trained: dict[str, Any]) -> None:
    """The message is a second copy of the gradients, which only the strategy's own `rank_memory` adds."""
    memory = trained["memory"]
    assert memory["parts"]["gradients"] == 2 * 4 * trained["parameters"]
    assert len(memory["planned_by_rank"]) == 2
    assert memory["planned"] == pytest.approx(memory["measured"], rel=0.15)


def test_measure_times_it_and_one_device(sweep: tuple[Path, dict[str, Any]]) -> None:
    _, measured = sweep
    cells = {(cell["strategy"], cell["devices"]): cell["status"] for cell in measured["measurements"]}
    assert cells == {("single", 1): "ok", ("flat", 2): "ok"}


def test_report_includes_it(run: Run, sweep: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = sweep
    document(run("report", folder, "--json"))
    assert "flat" in (folder / "findings.md").read_text()


def test_advise_includes_it_by_default(run: Run) -> None:
    rows = document(run("advise", "linear", "--cluster", "4x-gtx-1080-ti", "--batch", 100, "--json"))["rows"]
    [two, four] = [row for row in rows if row["strategy"] == "flat"]
    [alone, *_] = [row for row in rows if row["strategy"] == "single"]
    assert (two["devices"], four["devices"]) == (2, 4)
    assert two["phases"]["reduce"] > 0
    assert two["memory_bytes"] > 0.5 * alone["memory_bytes"]
    assert two["fits"]


def test_memory_is_planned_without_a_run() -> None:
    """Each of two devices holds all weights, Adam's state, and the gradients twice."""
    script = (
        "import tests.toy_strategy\n"
        "from scalewise.training.memory_plan import planned_memory\n"
        "for memory in planned_memory('tests.tiny:float64', 'flat', 2, 8):\n"
        "    print(memory.weights, memory.optimizer, memory.gradients)\n"
    )
    weights = 8 * 53
    planned = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert planned.stdout == f"{weights} {2 * weights} {2 * weights}\n" * 2
