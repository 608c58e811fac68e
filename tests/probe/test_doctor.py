"""`scalewise.doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

import scalewise
from scalewise.launch.cpu_cores import allowed_cores
from scalewise.probe.doctor import Check
from tests.data.conftest import write_wav


@pytest.fixture(autouse=True)
def no_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SCALEWISE_SPEECH", raising=False)


def check(group: str, name: str) -> Check:
    [match] = [check for check in scalewise.doctor().groups[group] if check.name == name]
    return match


def test_software_and_cores() -> None:
    assert check("Software", "scalewise").found == scalewise.__version__
    assert torch.__version__ in check("Software", "torch").found
    cores = len(allowed_cores())
    assert f"{cores} core" in check("Devices", "cpu").found
    assert psutil.virtual_memory().total > 0
    assert check("Ways to run", "cpu ranks") == Check("cpu ranks", "ok", "gloo")


def test_missing_recordings_come_with_a_fix() -> None:
    speech = check("Data", "speech")
    assert speech.status == "missing"
    assert speech.fix is not None
    assert speech.fix.startswith("scalewise data speech")


def test_recordings_are_counted_and_an_empty_folder_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEWISE_SPEECH", str(tmp_path))
    empty = check("Data", "speech")
    assert (empty.status, empty.found.partition(";")[0]) == ("bad", f"no wav files in '{tmp_path}'")
    for take in range(2):
        write_wav(tmp_path / f"1_theo_{take}.wav", [1, 2, 3])
    assert check("Data", "speech") == Check("speech", "ok", f"2 recordings in {tmp_path}")


def test_it_prints_and_shows_in_a_notebook() -> None:
    checkup = scalewise.doctor()
    for title in ("Software", "Devices", "Ways to run", "Data"):
        assert title in str(checkup)
        assert title in checkup._repr_html_()
    assert "→ scalewise data speech" in str(checkup)
    if not torch.cuda.is_available():
        [gpu] = [check for check in checkup.groups["Devices"] if check.name == "gpu"]
        assert gpu.status == "missing"
        assert gpu.fix
