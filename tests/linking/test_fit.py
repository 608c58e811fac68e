"""Latency and bandwidth from timed transfers."""

from __future__ import annotations

import pytest

from scalewise.linking.fit import fit_line, fit_pieces

SIZES = [1024 * 4**power for power in range(9)]


def line(latency: float, GBps: float) -> list[tuple[float, float]]:
    return [(size, latency + size / (GBps * 1e9)) for size in SIZES]


def test_a_line_is_found_again() -> None:
    found = fit_line(line(100e-6, 2.0))
    assert found.latency_us == pytest.approx(100)
    assert found.GBps == pytest.approx(2.0)
    assert found.error_percent == pytest.approx(0, abs=1e-6)


def test_64_MB_count_most_but_a_kilobyte_counts() -> None:
    points = line(100e-6, 2.0)
    small = fit_line([(points[0][0], 3 * points[0][1]), *points[1:]])
    assert small.GBps == pytest.approx(2.0, rel=0.02)
    assert 105 < small.latency_us < 200
    large = fit_line([*points[:-1], (points[-1][0], 1.5 * points[-1][1])])
    assert 2.0 / 1.5 < large.GBps < 1.6


def test_no_constant_is_below_zero() -> None:
    falling = [(1e3, 2e-3), (1e6, 1e-3)]
    found = fit_line(falling)
    assert found.latency_us > 0
    assert found.GBps > 0
    steeper = [(1e6, 1e-4), (1e8, 1.0)]
    assert fit_line(steeper).latency_us == 0


def test_one_point_is_all_bandwidth() -> None:
    assert fit_line([(2e9, 1.0)]).GBps == pytest.approx(2.0)


def test_what_caches_hold_has_a_line_of_its_own() -> None:
    quick, slow = line(100e-6, 4.0), line(100e-6, 1.0)
    points = quick[:6] + slow[6:]
    [(first, below), (border, above)] = fit_pieces(points)
    assert first == 0
    assert below.GBps == pytest.approx(4.0)
    assert above.GBps == pytest.approx(1.0)
    assert SIZES[5] < border < SIZES[6]


def test_one_line_stays_one() -> None:
    assert len(fit_pieces(line(50e-6, 3.0))) == 1
