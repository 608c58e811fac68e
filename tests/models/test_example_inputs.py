"""Models with an example batch, and configurations of the transformers library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from scalewise.advice.advise import advise
from scalewise.core.errors import UserError
from scalewise.models.describe import describe
from scalewise.models.example_inputs import example_workload
from scalewise.models.operator_counts import count_operators
from scalewise.models.resolve import resolve
from scalewise.predict.operators import totals
from scalewise.training.train import train

VOCABULARY, WIDTH, TOKENS = 50, 8, 6
PARAMETERS = 2 * VOCABULARY * WIDTH + VOCABULARY
MODELS = """
import torch
from tests.models.test_example_inputs import Tagger
def pair(): return Tagger(), {"ids": torch.zeros(4, 6, dtype=torch.long)}
def real(): return Tagger(), torch.full((4, 6), int(torch.rand(3).numpy().argmax()))
def empty(): return Tagger(), {"size": 3}
def number(): return 3
"""


class Tagger(nn.Module):
    """Token ids to logits; returns its own loss if labels are given."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.linear = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> object:
        logits: Tensor = self.linear(self.embedding(ids))
        if mask is not None:
            logits = logits * mask.unsqueeze(-1)
        if labels is None:
            return logits
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


IDS = torch.zeros(4, TOKENS, dtype=torch.int64)


@pytest.mark.parametrize(
    "example",
    [IDS, (IDS, torch.ones(4, TOKENS)), {"ids": IDS, "labels": IDS}, {"ids": IDS, "mask": torch.ones(4, TOKENS)}],
    ids=["integers", "tuple", "own loss", "dict"],
)
def test_any_inputs_are_described_and_counted(example: object) -> None:
    workload = example_workload("tagger", Tagger, example)
    described = describe(workload)
    assert described.parameters == PARAMETERS
    assert described.counted_on == "meta"
    assert described.flops_per_sample == 2 * TOKENS * WIDTH * VOCABULARY
    flops = [
        totals(count_operators(workload.model, lambda batch=batch: workload.example(batch)))["flops"]  # type: ignore[misc]
        for batch in (2, 4)
    ]
    assert flops[1] == pytest.approx(2 * flops[0], rel=0.2)


def test_the_models_own_loss_is_used() -> None:
    workload = example_workload("tagger", Tagger, {"ids": IDS, "labels": IDS})
    model = workload.model()
    outputs = model(workload.example(3))
    expected = model.model(ids=IDS[:3], labels=IDS[:3])["loss"]  # type: ignore[operator]
    assert outputs.shape == (3,)
    assert workload.loss(outputs, torch.zeros(3)).item() == pytest.approx(expected.item())


def test_a_function_may_return_a_module_and_an_example_batch(tmp_path: Path) -> None:
    path = tmp_path / "pairs.py"
    path.write_text(MODELS)
    advice = advise(f"{path}:pair", cluster=["1 x l4", "2 x rtx-4090"], batch=64)
    assert advice.comparison is not None
    assert {candidate.profile.quality for candidate in advice.comparison.candidates} == {"specification"}
    assert all(candidate.time for candidate in advice.comparison.candidates)
    with pytest.raises(UserError, match="cannot be counted without running it"):
        advise(f"{path}:real", cluster="1 x l4")
    with pytest.raises(UserError, match="whose first dimension is the batch"):
        resolve(f"{path}:empty")
    with pytest.raises(UserError, match=r"returns int; it must return a scalewise\.Workload"):
        resolve(f"{path}:number")
    with pytest.raises(UserError, match="leave out --input"):
        resolve(f"{path}:pair", "6")
    with pytest.raises(UserError, match=r"not trained; return a scalewise\.Workload"):
        train(f"{path}:pair", device_kind="cpu")


LLAMA = "hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=2,vocab_size=100"


@pytest.mark.slow
def test_any_configuration_of_the_library_is_a_workload() -> None:
    workload = resolve(f"hf:llama,{LLAMA},context=16")
    assert (workload.input_shape, workload.not_trainable) == ((16,), "")
    assert describe(workload).parameters == 2 * 100 * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 64 + 2 * 32) + 32


@pytest.mark.slow
def test_a_local_configuration_is_a_workload(tmp_path: Path) -> None:
    values = {"d_model": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", **values}))
    for source in (tmp_path, tmp_path / "config.json"):
        workload = resolve(f"hf:{source}")
        assert "not trained" in workload.not_trainable
        assert describe(workload).parameters > 100 * 16
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    with pytest.raises(UserError, match="it has no model_type"):
        resolve(f"hf:{tmp_path}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:nosuch", "unknown transformers model 'nosuch'"),
        ("hf:llama,hiden_size=3", r"did you mean 'hidden_size'\?"),
        ("hf:llama,context=0", "context must be a whole number of at least 1, not '0'"),
        ("hf:missing/config.json", "cannot read missing/config.json: No such file"),
    ],
)
def test_wrong_configurations_are_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(name)
