"""`scalewise doctor --save`: what is refused, and what is written where."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from scalewise.clusters.catalogue import cluster_of
from scalewise.session.hardware import device_name
from scalewise.verbs import here, links
from tests.command import Run
from tests.verbs.test_links import seen


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
def test_it_says_what_does_not_fit(scalewise: Run, arguments: str, parts: list[str]) -> None:
    scalewise("doctor", *arguments.split()).refused(2, *parts)
    assert not Path("x.toml").exists()


def test_here_is_measured_once_and_kept(scalewise: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(links, "_look", lambda *_: replace(seen(), device=device_name(links.here_device())))
    said = scalewise("doctor", "--save", "here", "--devices", 2, "--device-kind", "cpu", "--quick", "--json")
    document = json.loads(said.stdout)
    assert (said.code, document["path"], document["devices"]) == (0, str(links.here_path()), 2)
    assert cluster_of(document["path"]).devices[0].name == document["device"]
    monkeypatch.setattr(here, "measure_links", lambda **_: pytest.fail("it was measured before"))
    if links.here_device().type == "cpu":
        cluster, origin = here.cluster_here()
        assert (cluster.name, cluster.size) == ("here-2x-cpu", 2)
        assert origin.startswith("links measured by scalewise doctor")
