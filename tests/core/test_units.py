"""Text of seconds and bytes."""

from __future__ import annotations

import math

import pytest

from scalewise.core.units import bytes_text, seconds_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (0.000_812, "812 µs"),
        (0.004_2, "4.2 ms"),
        (0.1234, "123 ms"),
        (0.9999, "1 s"),
        (0.000_999_9, "1 ms"),
        (1.534, "1.53 s"),
        (119.6, "2 min 00 s"),
        (125.0, "2 min 05 s"),
        (math.nan, "-"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (48_408_880, "46.2 MiB"),
        (1024**2 - 1, "1.0 MiB"),
        (5 * 1024**4, "5.0 TiB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert bytes_text(count) == text
