"""Latency and bandwidth fitted to timed transfers."""

from __future__ import annotations

import pytest

from scalewise.probe.link_fit import fit_line, fit_pieces, undisturbed

SIZES = [1024 * 4**power for power in range(9)]


def line(latency: float, GBps: float) -> list[tuple[float, float]]:
    return [(size, latency + size / (GBps * 1e9)) for size in SIZES]


def test_exact_points_give_their_latency_and_bandwidth() -> None:
    fit = fit_line(line(100e-6, 2.0))
    assert fit.latency_us == pytest.approx(100)
    assert fit.GBps == pytest.approx(2.0)
    assert fit.error_percent == pytest.approx(0, abs=1e-6)


def test_large_transfers_weigh_more_than_small_ones() -> None:
    points = line(100e-6, 2.0)
    small = fit_line([(points[0][0], 3 * points[0][1]), *points[1:]])
    assert small.GBps == pytest.approx(2.0, rel=0.02)
    assert 105 < small.latency_us < 200
    large = fit_line([*points[:-1], (points[-1][0], 1.5 * points[-1][1])])
    assert 2.0 / 1.5 < large.GBps < 1.6


def test_latency_and_bandwidth_are_never_negative() -> None:
    falling = [(1e3, 2e-3), (1e6, 1e-3)]
    fit = fit_line(falling)
    assert fit.latency_us > 0
    assert fit.GBps > 0
    steeper = [(1e6, 1e-4), (1e8, 1.0)]
    assert fit_line(steeper).latency_us == 0


def test_one_point_gives_a_bandwidth_without_latency() -> None:
    assert fit_line([(2e9, 1.0)]).GBps == pytest.approx(2.0)


def test_small_transfers_that_fit_caches_get_their_own_line() -> None:
    fast, slow = line(100e-6, 4.0), line(100e-6, 1.0)
    points = fast[:6] + slow[6:]
    [(first, below), (border, above)] = fit_pieces(points)
    assert first == 0
    assert below.GBps == pytest.approx(4.0)
    assert above.GBps == pytest.approx(1.0)
    assert SIZES[5] < border < SIZES[6]


def test_points_on_one_line_are_not_split() -> None:
    assert len(fit_pieces(line(50e-6, 3.0))) == 1


def test_a_size_takes_no_longer_than_a_larger_one() -> None:
    """The calls of 4 KB were disturbed: 16 KB took less time."""
    assert undisturbed([(1024, 0.1), (4096, 0.9), (16384, 0.2), (65536, 0.4)]) == [
        (1024, 0.1),
        (4096, 0.2),
        (16384, 0.2),
        (65536, 0.4),
    ]
