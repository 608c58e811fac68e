"""Values exchanged between ranks: equal after the round trip, and nothing but data."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import scalewise
from scalewise.core.timeline import Span
from scalewise.runtime.byte_counters import StepTraffic
from scalewise.runtime.exchange import from_bytes, to_bytes
from scalewise.training.results import Outcome, Update

PICKLING = re.compile(r"\b(\w*_object(_list)?\(|(?<!\.)torch\.load\()")


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, 2.5, float("inf"), "text", True, b"\x00\xff"],
        {0: (1, 2), "key": {"inner": [None]}, ("a", 1): Path("/a/b")},
        Counter({3: 2}),
        [("weight", (2, 3), torch.float32), ("step", (), torch.int64)],
        Update(1, 2, 3, 0.5, 1.0, 2.0),
    ],
)
def test_values_are_equal_after_the_round_trip(value: Any) -> None:
    received = from_bytes(to_bytes(value))
    assert (received, type(received)) == (value, type(value))


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(6).reshape(2, 3), torch.zeros(0, 4), torch.tensor(1.5, dtype=torch.bfloat16), torch.get_rng_state()],
)
def test_tensors_keep_their_bits(tensor: torch.Tensor) -> None:
    received = from_bytes(to_bytes({"cpu": tensor}))["cpu"]
    assert received.dtype == tensor.dtype
    assert torch.equal(received, tensor)


def test_the_result_of_a_rank() -> None:
    outcome = Outcome("generated", 16, 53, "eager", "device", 3, loss=0.5, losses=[0.5], phases={"forward": 0.1})
    outcome.updates, outcome.traffic = [Update(1, 2, 3, 0.5, 1.0, 2.0)], StepTraffic(servers={("127.0.0.1", 80): 1})
    outcome.spans = [Span(0, "forward", 0.0, 1.0)]
    assert from_bytes(to_bytes(outcome)) == outcome


def test_other_objects_are_not_sent() -> None:
    with pytest.raises(TypeError, match="a function cannot be sent to other ranks as data"):
        to_bytes([print, lambda: None][1:])


@pytest.mark.parametrize(
    "kind",
    ["os:system", "builtins:eval", "scalewise.runtime.exchange:from_bytes", "scalewise.core.errors:UserError", "x:y"],
)
def test_received_data_creates_no_other_objects(kind: str) -> None:
    with pytest.raises(ValueError, match="is not a type of Scalewise"):
        from_bytes(json.dumps({"type": kind, "content": {}}).encode())


def test_no_module_unpickles_what_torch_received() -> None:
    sources = {path.name: path.read_text() for path in Path(scalewise.__file__).parent.rglob("*.py")}
    calls = {name: match[0] for name, text in sources.items() if (match := PICKLING.search(text))}
    assert calls == {}
