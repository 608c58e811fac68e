"""The command in this process."""

from __future__ import annotations

import pytest

from tests.command import Run, in_process


@pytest.fixture
def scalewise(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return in_process(capfd, monkeypatch)
