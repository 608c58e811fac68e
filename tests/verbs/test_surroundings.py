"""Which measurements may lie in one folder, and which of them are compared: the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalewise.errors import UserError
from scalewise.findings.series import place_key
from scalewise.results.environment import Environment
from scalewise.verbs.surroundings import check_same
from tests.findings.test_series import measured

BEFORE = Environment(
    hardware={"cpu": "Some CPU", "cores": 2, "memory_bytes": 1000},
    versions={"torch": "2.11.0", "system": "Linux 6.1"},
    data="recordings",
    samples_per_epoch=95,
    conditions={"load": "auto"},
)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hardware": {**BEFORE.hardware, "memory_bytes": 1001}}, None),
        ({"hardware": {**BEFORE.hardware, "cores": 4}}, "other hardware: cores was 2 and is now 4"),
        (
            {"versions": {**BEFORE.versions, "torch": "2.13.0"}},
            "versions: torch was '2.11.0' and is now '2.13.0'",
        ),
        ({"versions": {**BEFORE.versions, "system": "Linux 6.2"}}, "system was 'Linux 6.1' and is now 'Linux 6.2'"),
        ({"data": "synthetic speech"}, "other data: data was 'recordings' and is now 'synthetic speech'"),
        ({"samples_per_epoch": 96}, "samples was 95 and is now 96"),
        ({"conditions": {"load": "stream"}}, "other conditions: load was 'auto' and is now 'stream'"),
    ],
)
def test_a_sweep_goes_on_where_its_cells_are_compared_with_those_before_and_nowhere_else(
    changed: dict[str, Any], said: str | None
) -> None:
    now = BEFORE.model_copy(update=changed)
    known = {BEFORE.id: BEFORE, now.id: now}
    one = measured("single", 1, 10, environment=BEFORE.id)
    apart = place_key(one, known) != place_key(replace(one, environment=now.id), known)
    assert apart == (said is not None)
    if said is None:
        check_same(Path("sweep"), BEFORE, now)
    else:
        with pytest.raises(UserError, match=rf"^sweep was measured with .*{said}; name another folder"):
            check_same(Path("sweep"), BEFORE, now)


def test_data_that_was_never_seen_does_not_differ() -> None:
    check_same(Path("sweep"), BEFORE.model_copy(update={"data": "", "samples_per_epoch": None}), BEFORE)
