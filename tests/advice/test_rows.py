"""Strategies without a row, and their problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from scalewise.advice.rows import OmittedStrategy, Question, omitted_text, rows_of
from scalewise.core.errors import UserError
from scalewise.hardware.catalogue import cluster_of
from scalewise.predict.predictor import Predictor
from scalewise.published.stevens import stevens_profile
from scalewise.strategies.mirrored import Mirrored
from scalewise.strategies.partitioning import check_stages
from scalewise.strategies.plan import Plan, Section
from scalewise.strategies.registry import strategy_of

CUT = OmittedStrategy("tensor", 2, "tensor finds no layers to cut: none follows")
STAGES = OmittedStrategy("layers", 8, "8 stages are too many for this model: it can be split into 4 at most")


def test_strategies_with_the_same_problem_are_grouped() -> None:
    hybrid = OmittedStrategy("hybrid", 2, CUT.problem)
    assert omitted_text([CUT, hybrid], {"layers"}) == (
        "Omitted: tensor, hybrid (tensor finds no layers to cut: none follows)."
    )


def test_omitted_numbers_of_devices_are_listed() -> None:
    more = OmittedStrategy("layers", 16, "16 stages are too many")
    assert omitted_text([STAGES, more], {"layers"}) == (
        "Omitted: layers on 8, 16 devices (8 stages are too many for this model: it can be split into 4 at most)."
    )
    assert omitted_text([], {"layers"}) == ""


def test_a_problem_is_shown_in_full() -> None:
    reason = OmittedStrategy("layers", 2, "two parts share weights; one (the last) has none of its own")
    assert omitted_text([reason], {"layers"}) == f"Omitted: layers on 2 devices ({reason.problem})."


@dataclass(frozen=True)
class Refuses(Mirrored):
    """Refuses every plan."""

    def plan(self, *_: Any, **__: Any) -> Plan:
        raise UserError("two parts share weights; one (the last) has none", "use fewer devices", "head, body")


def test_an_omitted_strategy_has_the_problem_without_the_remedy() -> None:
    predictor = Predictor(stevens_profile("linear"), cluster_of("4 x gtx-1080-ti"))
    _, omitted = rows_of(predictor, Question([Refuses()], [2, 4], [80], strategies_given=False))
    assert [omission.problem for omission in omitted] == 2 * ["two parts share weights; one (the last) has none"]


def test_the_problem_does_not_contain_the_names_of_sections() -> None:
    sections = [Section(name, 1, 1, 1, (), ()) for name in ("body", "head")]
    with pytest.raises(UserError) as raised:
        check_stages(sections, 4)
    assert raised.value.problem == "4 stages are too many for this model: it can be split into 2 at most"
    assert (raised.value.detail, raised.value.remedy) == ("body, head", "use fewer devices")


def test_central_storage_is_omitted_across_hosts() -> None:
    predictor = Predictor(stevens_profile("linear"), cluster_of("4 x gtx-1080-ti, 2 hosts, 10gbe"))
    rows, omitted = rows_of(predictor, Question([strategy_of("central-storage")], [1, 4, 8], [80]))
    assert [row.prediction.devices for row in rows] == [1, 4]
    assert omitted == [OmittedStrategy("central-storage", 8, "its weights are in the memory of one host")]
