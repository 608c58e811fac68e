"""`scalewise doctor --save`: refused options and written files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scalewise.hardware.catalogue import cluster_of
from scalewise.launch.devices import device_name
from scalewise.probe import measure_links
from tests.command import Run
from tests.probe.test_measure_links import measurements


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("--devices 2", ["--devices", "--save FILE"]),
        ("--hosts 2 --link 1gbit", ["--hosts", "--save FILE"]),
        ("--quick", ["--quick", "--save here"]),
        ("--save nowhere/here.toml", ["nowhere/here.toml", "no folder"]),
        ("--save x.toml --devices 3 --hosts 2 --link 1gbit", ["3 devices", "2 hosts"]),
        ("--save x.toml --device-kind cpu --link 1gbit", ["1gbit", "--hosts"]),
    ],
)
def test_options_that_do_not_fit_together_are_refused(scalewise: Run, arguments: str, parts: list[str]) -> None:
    scalewise("doctor", *arguments.split()).refused(2, *parts)
    assert not Path("x.toml").exists()


def test_this_machine_is_measured_once(scalewise: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        measure_links, "_measure", lambda *_: replace(measurements(), device=device_name(measure_links.here_device()))
    )
    output = scalewise("doctor", "--save", "here", "--devices", 2, "--device-kind", "cpu", "--quick", "--json")
    document = json.loads(output.stdout)
    assert (output.code, document["path"], document["devices"]) == (0, str(measure_links.here_path()), 2)
    assert cluster_of(document["path"]).devices[0].name == document["device"]
    monkeypatch.setattr(measure_links, "measure_links", lambda **_: pytest.fail("it was measured before"))
    if measure_links.here_device().type == "cpu":
        cluster, origin = measure_links.cluster_here()
        assert (cluster.name, cluster.size) == ("here-2x-cpu", 2)
        assert origin.startswith("links measured by scalewise doctor")
