"""Clusters compared for a buyer. The study's profile and its box keep torch out of most tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scalewise.advice.advise import advise
from scalewise.advice.budget import Budget, duration_of, money_of
from scalewise.advice.comparison import Candidate, Comparison, compare
from scalewise.core.errors import UserError
from scalewise.hardware.catalogue import cluster_of
from scalewise.hardware.gpu_prices import Price

BOXES = ["4x-gtx-1080-ti", "1 x gtx-1080-ti", "2 x gtx-1080-ti"]
HOUR = 3600.0


def conv(**options: Any) -> Comparison:
    """Comparison of boxes with 4, 1 and 2 GPUs on the study's convolutional model."""
    advice = advise("conv", cluster=BOXES, batch=100, **{"price": [4.0, 1.0, 2.0], **options})
    assert advice.comparison is not None
    return advice.comparison


def test_clusters_are_ranked_by_cost_and_the_cheapest_is_recommended() -> None:
    comparison = conv(epochs=100)
    costs = [candidate.cost.predicted for candidate in comparison.candidates if candidate.cost]
    assert [candidate.name for candidate in comparison.candidates] == [BOXES[1], BOXES[2], BOXES[0]]
    assert costs == sorted(costs)
    assert comparison.recommended is comparison.candidates[0]
    assert comparison.verdict().startswith("Cheapest: 1 x gtx-1080-ti (")
    assert "Faster: 4x-gtx-1080-ti (" in comparison.verdict()


def test_time_cost_and_energy_follow_from_epochs_price_and_power() -> None:
    one = conv(epochs=100).candidates[0]
    prediction = one.best.prediction
    assert one.finish is not None
    assert one.cost is not None
    assert one.finish.predicted == pytest.approx(100 * prediction.epoch_seconds)
    assert one.finish.low == pytest.approx(100 * prediction.epoch_low)
    assert one.cost.predicted == pytest.approx(1.0 * one.finish.predicted / HOUR)
    assert one.cost_per_epoch == pytest.approx(one.cost.predicted / 100)
    assert one.energy_kWh == pytest.approx(0.25 * one.finish.predicted / HOUR)


def test_hosts_in_use_are_paid_for_as_a_whole() -> None:
    comparison = conv(epochs=1, strategy=["layers"])
    four = next(candidate for candidate in comparison.candidates if candidate.name == BOXES[0])
    assert four.best.prediction.devices == 1
    assert four.dollars_per_second == pytest.approx(4.0 / HOUR)


def test_the_deadline_must_hold_for_the_whole_interval_if_a_cluster_allows_it() -> None:
    comparison = conv(epochs=100)
    four, one = comparison.candidates[-1].finish, comparison.candidates[0].finish
    assert four is not None
    assert one is not None
    between = (one.predicted + one.high) / 2
    assert four.high < between
    safe = conv(epochs=100, deadline=f"{between:.0f}s").recommended
    assert safe is not None
    assert safe.name != BOXES[1]  # predicted in time and cheaper, but its interval ends after the deadline
    assert conv(epochs=100, deadline=f"{2 * one.high:.0f}s").recommended is not None


def test_an_interval_that_exceeds_the_limit_is_mentioned() -> None:
    one = conv(epochs=100).candidates[0]
    assert one.finish is not None
    comparison = compare([one], Budget(epochs=100, deadline=f"{(one.finish.predicted + one.finish.high) / 2:.0f}s"))
    assert comparison.recommended is one
    assert "but its interval exceeds the limit" in comparison.verdict()


def test_a_cost_limit_alone_asks_for_the_fastest() -> None:
    comparison = conv(epochs=100, max_cost="1000000")
    assert comparison.recommended is not None
    assert comparison.recommended.name == BOXES[0]
    assert comparison.verdict().startswith("Fastest for at most $1,000,000: 4x-gtx-1080-ti (")
    assert "Cheaper: 1 x gtx-1080-ti (" in comparison.verdict()


def test_limits_that_nothing_meets_name_the_closest() -> None:
    comparison = conv(epochs=100, deadline="1s")
    assert comparison.recommended is None
    assert comparison.verdict().startswith("Nothing is predicted to finish within 1s. Closest: 4x-gtx-1080-ti (")


def test_a_cluster_that_does_not_fit_has_neither_time_nor_price_but_a_remedy() -> None:
    advice = advise("conv", cluster=["1 x gtx-1080-ti", "4x-gtx-1080-ti"], batch=6000, price=[1, 4], epochs=1)
    document = advice.to_json()
    small = next(entry for entry in document["comparison"] if entry["cluster"] == "1 x gtx-1080-ti")
    assert small["fits"] is False
    assert {small[key] for key in ("seconds_to_finish", "cost", "energy_kWh", "epoch_seconds")} == {None}
    assert small["would_fit"] == "batch 1,500 (single) or 4 devices (sharded)"
    assert document["verdict"]["recommended"] == "4x-gtx-1080-ti"
    assert (
        "conv at batch 6,000 does not fit in the memory of 1 x gtx-1080-ti; batch 1,500"
        in document["verdict"]["recommendation"]
    )


def test_unknown_epochs_are_compared_per_million_samples() -> None:
    advice = advise("ResNet-50", step_time="0.1@64", cluster=["1 x a100-80gb", "8x-a100-nvlink"], price=[2, 16])
    assert advice.comparison is not None
    first = advice.comparison.to_json()[0]
    assert first["seconds_to_finish"] is None
    assert first["cost_per_million_samples"] == pytest.approx(first["seconds_per_million_samples"] / HOUR * 2)
    assert "per million samples" in " ".join(advice.comparison.notes())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deadline": "soon"}, "--deadline is 'soon'; write a time such as 24h, 90min or 2d"),
        ({"max_cost": "-3"}, "--max-cost is '-3'; write US dollars, as in 500"),
        ({"epochs": 0}, "--epochs is '0'; write a positive number"),
        ({"tokens": 1e9, "epochs": 2}, "both --tokens and --epochs are given"),
        ({"spot": True}, "both --spot and --price are given"),
        ({"price": [1.0]}, "--price is given 1 times for 3 clusters"),
        ({"price": [-1.0, 1.0, 1.0]}, "--price is -1; write US dollars per hour"),
        ({"tokens": 1e9}, "--tokens is for models of token ids"),
        ({"price": (), "epochs": 1, "max_cost": 5}, "--max-cost needs a price"),
    ],
)
def test_bad_limits_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        conv(**options)


def test_epochs_need_samples() -> None:
    with pytest.raises(UserError, match="--epochs needs the number of samples per epoch"):
        advise("ResNet-50", step_time="0.1@64", cluster=["1 x a100-80gb"], epochs=3)


def test_times_and_amounts_are_parsed() -> None:
    assert [duration_of(text) for text in ("24h", "90 min", "2d", "30s", "1.5H")] == [86400, 5400, 172800, 30, 5400]
    assert (money_of("500"), money_of("$12.50")) == (500, 12.5)


def test_the_table_fits_80_columns() -> None:
    comparison = conv(epochs=100)
    lines = comparison.table().plain.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 5
    assert lines[2].split()[:4] == ["1", "x", "gtx-1080-ti", "single"]


def test_a_long_name_is_folded_and_unknown_prices_are_named() -> None:
    first = conv(epochs=1).candidates[0]
    long = replace(first, name="8 x h100-nvlink, 16 hosts, infiniband-400", price=None)
    priced: Candidate = replace(first, price=Price(1.0, "your price"))
    comparison = compare([long, priced], Budget(epochs=1))
    assert max(map(len, comparison.table().plain.splitlines())) <= 80
    assert f"No price is known for {long.name}" in " ".join(comparison.notes())
    assert comparison.by_cost is False


def test_composed_clusters_say_what_is_assumed() -> None:
    assert "assumed:" in cluster_of("4 x rtx-4090").summary
