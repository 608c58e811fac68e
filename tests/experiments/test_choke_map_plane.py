"""The border between models that gain and models that choke."""

from __future__ import annotations

import math

import pytest
from matplotlib.figure import Figure

from scalewise.experiments.choke_map_figure import beyond, border_line, clipped, edges, limits, mark, shade
from scalewise.experiments.choke_map_plane import (
    Spot,
    beside_the_study,
    border,
    border_pieces,
    explained_by_ratio,
    words,
)


def test_the_border_is_where_two_devices_take_as_long_as_one() -> None:
    spots = [Spot(1000, 100, 0.5), Spot(1000, 10_000, 2.0), Spot(1000, 10, 0.3)]
    assert border(spots) == {1000: pytest.approx(1000.0)}


def test_sizes_that_all_gain_or_all_choke_have_no_border() -> None:
    assert border([Spot(10, 100, 1.5), Spot(10, 1000, 1.9), Spot(99, 100, 0.2), Spot(99, 1000, 0.4)]) == {}


def test_the_border_is_not_known_beside_what_is_too_noisy_to_tell() -> None:
    noisy = Spot(1000, 1000, 1.01, certain=False)
    assert border([Spot(1000, 100, 0.5), noisy, Spot(1000, 10_000, 2.0)]) == {}


def test_the_border_is_drawn_in_pieces_of_neighbouring_sizes_along_the_edges_of_tiles() -> None:
    def size(parameters: int, *, certain: bool = True) -> list[Spot]:
        return [Spot(parameters, 100, 0.5), Spot(parameters, 10_000, 2.0, certain)]

    spots = [*size(10), *size(100), *size(1000, certain=False), *size(10_000)]
    pieces = border_pieces(spots)
    assert [list(piece) for piece in pieces] == [[10, 100], [10_000]]
    across, upwards = border_line({10: 5.0, 100: 7.0}, [10, 100])
    assert across == pytest.approx([10**0.5, 10**1.5, 10**1.5, 10**2.5])
    assert upwards == [5.0, 5.0, 7.0, 7.0]


def test_models_that_all_gain_or_all_choke_are_told_so() -> None:
    assert words([Spot(1000, 100, 0.5), Spot(1000, 200, 0.7)], 8)[0].startswith("none of 2 models gains from a second")
    assert words([Spot(1000, 100, 1.5), Spot(1000, 200, 1.7)], 8)[0].startswith("all of 2 models gain from a second")


def test_the_ratio_of_compute_and_size_sorts_all_pairs_or_some() -> None:
    sorted_by_ratio = [Spot(10, 1000, 1.5), Spot(1000, 1000, 0.5)]
    assert explained_by_ratio(sorted_by_ratio) == 1.0
    assert explained_by_ratio([*sorted_by_ratio, Spot(1000, 100, 1.2)]) == 0.5
    assert math.isnan(explained_by_ratio(sorted_by_ratio[:1]))


def test_the_map_is_told_in_words() -> None:
    spots = [Spot(1_000_000, 100_000_000, 0.5), Spot(1_000_000, 10_000_000_000, 2.0)]
    told = words(spots, 8)
    assert told[0] == (
        "1 of 2 models gains from a second device at batch 8, at best 2.00x (1 M parameters, 10 G flops); 1 chokes, "
        "at worst 0.50x (1 M parameters, 100 M flops)"
    )
    assert told[1].endswith("1,000 at 1 M parameters")
    assert "puts 100% of the pairs" in told[2]


def test_the_studys_models_are_judged_by_the_nearest_one() -> None:
    known = {"linear": (12_000_000, 24_000_000), "conv": (376_000, 1_170_000_000)}
    near_linear, near_conv = Spot(10**7, 3 * 10**7, 0.2), Spot(300_000, 10**9, 1.8)
    assert beside_the_study([near_linear, near_conv], known) == [
        "the model nearest to linear (10 M parameters, 30 M flops) is at 0.20x: chokes, as linear does in the study",
        "the model nearest to conv (300 k parameters, 1 G flops) is at 1.80x: gains, as conv does in the study",
    ]
    other = [Spot(10**7, 3 * 10**7, 1.4), Spot(300_000, 10**8, 1.8)]
    assert beside_the_study(other, known) == [
        "the model nearest to linear (10 M parameters, 30 M flops) is at 1.40x: gains, where linear chokes in the "
        "study",
        "conv lies beyond the map: it has no model near it",
    ]
    [linear, conv] = beside_the_study(other[1:], known, [(10**7, 3 * 10**7), (300_000, 10**8)])
    assert linear == (
        "nothing can be said of linear: the model nearest to it (10 M parameters, 30 M flops) has no time yet"
    )
    assert conv == "conv lies beyond the map: it has no model near it"
    [noisy, _] = beside_the_study([Spot(10**7, 3 * 10**7, 0.9, certain=False)], known)
    assert noisy.endswith("is at 0.90x: too noisy to tell")


def test_even_is_the_middle_of_the_colours() -> None:
    assert [shade(speedup) for speedup in (0.1, 0.25, 1.0, 1.5, 2.0, 3.0)] == [0.0, 0.0, 0.5, 0.75, 1.0, 1.0]


def test_colours_that_stand_for_more_than_their_label_are_marked() -> None:
    assert clipped([0.25, 1.0, 2.0]) == "neither"
    assert [clipped(each) for each in ([0.2, 1.0], [1.0, 2.1], [0.1, 3.0])] == ["min", "max", "both"]


def test_a_model_may_lie_beyond_the_tiles() -> None:
    assert [beyond(value, [10.0, 100.0, 1000.0]) for value in (9, 10, 500, 1000, 1001)] == [-1, 0, 0, 0, 1]
    assert limits([500], [10.0, 1000.0]) == (10.0, 1000.0)
    assert limits([5, 5000], [10.0, 1000.0]) == pytest.approx((10 / 100**0.16, 1000 * 100**0.16))


def test_a_model_beyond_the_tiles_is_pointed_at() -> None:
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


def test_tiles_meet_half_way_on_a_logarithmic_axis() -> None:
    assert edges([10, 1000]) == pytest.approx([1, 100, 10_000])
    assert edges([10]) == [5, 20]


def test_what_is_too_noisy_is_in_no_headline() -> None:
    spots = [Spot(1000, 100, 0.01, certain=False), Spot(1000, 1000, 0.5), Spot(1000, 10_000, 2.0)]
    [first, *_] = words(spots, 8)
    assert first.startswith("1 of 2 models gains from a second device at batch 8, at best 2.00x")
    assert first.endswith("1 chokes, at worst 0.50x (1 k parameters, 1 k flops); of 1 more it cannot be told")
    assert words(spots[:1], 8) == [
        "of none of 1 models it can be told whether it gains from a second device: too noisy"
    ]
