"""The border between models that gain and models that choke."""

from __future__ import annotations

import math

import pytest
from matplotlib.figure import Figure

from scalewise.studies.choke_map import (
    MapPoint,
    beside_the_study,
    beyond,
    border,
    border_line,
    border_pieces,
    clipped,
    edges,
    explained_by_ratio,
    limits,
    mark,
    shade,
    words,
)


def test_the_border_is_where_two_devices_take_as_long_as_one() -> None:
    points = [MapPoint(1000, 100, 0.5), MapPoint(1000, 10_000, 2.0), MapPoint(1000, 10, 0.3)]
    assert border(points) == {1000: pytest.approx(1000.0)}


def test_sizes_that_all_gain_or_all_choke_have_no_border() -> None:
    assert (
        border([MapPoint(10, 100, 1.5), MapPoint(10, 1000, 1.9), MapPoint(99, 100, 0.2), MapPoint(99, 1000, 0.4)]) == {}
    )


def test_there_is_no_border_next_to_an_uncertain_model() -> None:
    noisy = MapPoint(1000, 1000, 1.01, certain=False)
    assert border([MapPoint(1000, 100, 0.5), noisy, MapPoint(1000, 10_000, 2.0)]) == {}


def test_the_border_is_drawn_in_pieces_of_neighbouring_sizes_along_the_edges_of_tiles() -> None:
    def size(parameters: int, *, certain: bool = True) -> list[MapPoint]:
        return [MapPoint(parameters, 100, 0.5), MapPoint(parameters, 10_000, 2.0, certain)]

    points = [*size(10), *size(100), *size(1000, certain=False), *size(10_000)]
    pieces = border_pieces(points)
    assert [list(piece) for piece in pieces] == [[10, 100], [10_000]]
    across, upwards = border_line({10: 5.0, 100: 7.0}, [10, 100])
    assert across == pytest.approx([10**0.5, 10**1.5, 10**1.5, 10**2.5])
    assert upwards == [5.0, 5.0, 7.0, 7.0]


def test_sentences_if_all_models_gain_or_choke() -> None:
    assert words([MapPoint(1000, 100, 0.5), MapPoint(1000, 200, 0.7)], 8)[0].startswith(
        "none of 2 models gains from a second"
    )
    assert words([MapPoint(1000, 100, 1.5), MapPoint(1000, 200, 1.7)], 8)[0].startswith(
        "all 2 models gain from a second"
    )


def test_share_of_pairs_ranked_by_flops_per_parameter() -> None:
    sorted_by_ratio = [MapPoint(10, 1000, 1.5), MapPoint(1000, 1000, 0.5)]
    assert explained_by_ratio(sorted_by_ratio) == 1.0
    assert explained_by_ratio([*sorted_by_ratio, MapPoint(1000, 100, 1.2)]) == 0.5
    assert math.isnan(explained_by_ratio(sorted_by_ratio[:1]))


def test_sentences_about_the_map() -> None:
    points = [MapPoint(1_000_000, 100_000_000, 0.5), MapPoint(1_000_000, 10_000_000_000, 2.0)]
    sentences = words(points, 8)
    assert sentences[0] == (
        "1 of 2 models gains from a second device at batch 8, at best 2.00x (1 M parameters, 10 G flops); 1 chokes, "
        "at worst 0.50x (1 M parameters, 100 M flops)"
    )
    assert sentences[1].endswith("1,000 at 1 M parameters")
    assert "ranks 100% of the pairs" in sentences[2]


def test_the_studys_models_are_compared_with_the_closest_ones() -> None:
    known = {"linear": (12_000_000, 24_000_000), "conv": (376_000, 1_170_000_000)}
    near_linear, near_conv = MapPoint(10**7, 3 * 10**7, 0.2), MapPoint(300_000, 10**9, 1.8)
    assert beside_the_study([near_linear, near_conv], known) == [
        "the model closest to linear (10 M parameters, 30 M flops): 0.20x, it chokes, as linear does in the study",
        "the model closest to conv (300 k parameters, 1 G flops): 1.80x, it gains, as conv does in the study",
    ]
    other = [MapPoint(10**7, 3 * 10**7, 1.4), MapPoint(300_000, 10**8, 1.8)]
    assert beside_the_study(other, known) == [
        "the model closest to linear (10 M parameters, 30 M flops): 1.40x, it gains, but linear chokes in the study",
        "no model of the map is close to conv",
    ]
    [linear, conv] = beside_the_study(other[1:], known, [(10**7, 3 * 10**7), (300_000, 10**8)])
    assert linear == "no result for linear: the closest model (10 M parameters, 30 M flops) has not been measured"
    assert conv == "no model of the map is close to conv"
    [noisy, _] = beside_the_study([MapPoint(10**7, 3 * 10**7, 0.9, certain=False)], known)
    assert noisy.endswith(": 0.90x, uncertain")


def test_equal_speed_is_the_middle_of_the_colours() -> None:
    assert [shade(speedup) for speedup in (0.1, 0.25, 1.0, 1.5, 2.0, 3.0)] == [0.0, 0.0, 0.5, 0.75, 1.0, 1.0]


def test_speedups_beyond_the_colour_scale_extend_it() -> None:
    assert clipped([0.25, 1.0, 2.0]) == "neither"
    assert [clipped(speedups) for speedups in ([0.2, 1.0], [1.0, 2.1], [0.1, 3.0])] == ["min", "max", "both"]


def test_limits_leave_space_for_models_outside_the_tiles() -> None:
    assert [beyond(value, [10.0, 100.0, 1000.0]) for value in (9, 10, 500, 1000, 1001)] == [-1, 0, 0, 0, 1]
    assert limits([500], [10.0, 1000.0]) == (10.0, 1000.0)
    assert limits([5, 5000], [10.0, 1000.0]) == pytest.approx((10 / 100**0.16, 1000 * 100**0.16))


def test_a_model_outside_the_tiles_has_a_labelled_arrow() -> None:
    axes = Figure().subplots()
    ends = ([1e5, 1e7], [1e6, 3e8])
    mark(axes, "linear", (1_000_000, 24_000_000), ends)
    mark(axes, "conv", (376_200, 1_170_000_000), ends)
    mark(axes, "huge", (100_000_000, 10_000_000), ends)
    assert [text.get_text() for text in axes.texts if text.get_text()] == [
        "linear",
        "conv\n1.17 G flops",
        "huge\n100 M parameters",
    ]
    assert len(axes.lines) == 1


def test_edges_are_half_way_on_a_logarithmic_axis() -> None:
    assert edges([10, 1000]) == pytest.approx([1, 100, 10_000])
    assert edges([10]) == [5, 20]


def test_uncertain_models_are_only_counted() -> None:
    points = [MapPoint(1000, 100, 0.01, certain=False), MapPoint(1000, 1000, 0.5), MapPoint(1000, 10_000, 2.0)]
    [first, *_] = words(points, 8)
    assert first.startswith("1 of 2 models gains from a second device at batch 8, at best 2.00x")
    assert first.endswith("1 chokes, at worst 0.50x (1 k parameters, 1 k flops); 1 more is uncertain")
    [only] = words(points[:1], 8)
    assert only.startswith("uncertain for the only model")
