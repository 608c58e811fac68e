"""The choke map, from measured cells to its page."""

from __future__ import annotations

import json
from pathlib import Path

from scalewise.models.resolve import resolve
from scalewise.reporting.series import Cell, Series
from scalewise.studies import choke_map
from scalewise.studies.choke_map import MapPoint, conclude, name_of, points_of


def timed(parameters: int, flops: int, one: float, two: float, batch: int = choke_map.BATCH) -> Series:
    return Series(name_of(parameters, flops), "mirrored", (Cell(1, batch, 100, one), Cell(2, batch, 100, two)))


def test_every_model_of_the_map_can_be_built() -> None:
    for parameters in choke_map.PARAMETERS:
        for flops in choke_map.FLOPS:
            assert resolve(name_of(parameters, flops)).name == name_of(parameters, flops)


def test_points_are_the_models_timed_on_one_and_on_two_devices() -> None:
    lone = Series(name_of(9, 9), "single", (Cell(1, choke_map.BATCH, 100, 1.0),))
    other_batch = timed(7, 7, 1.0, 2.0, batch=999)
    other_model = Series("linear", "mirrored", (Cell(1, choke_map.BATCH, 100, 1.0), Cell(2, choke_map.BATCH, 100, 2.0)))
    cells = [other_model, timed(100_000, 10**7, 1.0, 2.0), timed(1000, 10**6, 3.0, 2.0), lone, other_batch]
    assert points_of(cells) == [
        MapPoint(1000, 10**6, 1.5),
        MapPoint(100_000, 10**7, 0.5),
    ]


def test_the_map_is_drawn_with_the_known_models(tmp_path: Path) -> None:
    points = [
        MapPoint(10**5, 10**6, 0.4),
        MapPoint(10**5, 10**8, 1.7),
        MapPoint(10**7, 10**6, 0.2),
        MapPoint(10**7, 10**8, 0.9),
    ]
    result = conclude(tmp_path, points, "a machine", when="2020-01-02")
    assert result.headline.startswith("Found on a machine: 1 of 4 models gains from a second device")
    assert result.rows == [["100 k", "0.40x", "1.70x"], ["10 M", "0.20x", "0.90x"]]
    document = json.loads((tmp_path / "choke-map.json").read_text())
    assert document["known_models"]["linear"] == [12_102_220, 24_202_200]
    assert document["known_models"]["conv"][0] == 376_200
    assert "![choke-map](choke-map.png)" in (tmp_path / "findings.md").read_text()
    drawn = (tmp_path / "choke-map.svg").read_text()
    assert ">1.70<" in drawn
    assert "a machine, 2020-01-02" in drawn
    assert "Dashed: equal speed." in drawn


def test_a_map_without_a_border_has_no_dashed_line(tmp_path: Path) -> None:
    conclude(tmp_path, [MapPoint(10**5, 10**6, 0.4), MapPoint(10**5, 10**8, 0.9)], "a machine")
    drawn = (tmp_path / "choke-map.svg").read_text()
    assert "Stars and arrows: known models." in drawn
    assert "Dashed" not in drawn
