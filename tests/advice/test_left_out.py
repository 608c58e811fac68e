"""What has no row is named, with its reason."""

from __future__ import annotations

from scalewise.advice.left_out import LeftOut, left_out_text
from scalewise.advice.rows import Question, rows_of
from scalewise.clusters.catalogue import cluster_of
from scalewise.prediction.predict import Predictor
from scalewise.published.stevens import stevens_profile
from scalewise.strategies.registry import strategy_of

CUT = LeftOut("tensor", 2, "tensor finds no layers to cut: none follows; name them")
STAGES = LeftOut("layers", 8, "8 stages are too many for this model: it can be cut into 4 at most (a, b); use fewer")


def test_those_with_one_reason_are_told_together() -> None:
    hybrid = LeftOut("hybrid", 2, CUT.why)
    assert left_out_text([CUT, hybrid], {"layers"}) == (
        "Left out: tensor, hybrid (tensor finds no layers to cut: none follows)."
    )


def test_those_that_stop_somewhere_say_where() -> None:
    more = LeftOut("layers", 16, "16 stages are too many")
    assert left_out_text([STAGES, more], {"layers"}) == (
        "Left out: layers on 8, 16 (8 stages are too many for this model: it can be cut into 4 at most)."
    )
    assert left_out_text([], {"layers"}) == ""


def test_central_storage_ends_with_its_host() -> None:
    predictor = Predictor(stevens_profile("linear"), cluster_of("4 x gtx-1080-ti, 2 hosts, 10gbe"))
    rows, left_out = rows_of(predictor, Question([strategy_of("central-storage")], [1, 4, 8], [80]))
    assert [row.prediction.devices for row in rows] == [1, 4]
    assert left_out == [LeftOut("central-storage", 8, "its weights are in one host's memory")]
