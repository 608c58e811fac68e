"""`hf:` models: built offline with random weights from the configurations of the transformers library."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from scalewise.core.errors import UserError
from scalewise.data.dataset import DataRequest
from scalewise.models.describe import describe
from scalewise.models.resolve import resolve

pytestmark = pytest.mark.slow


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find_spec(name))
    with pytest.raises(UserError) as caught:
        resolve("hf:gpt2")
    assert str(caught.value) == "'hf:gpt2' needs the transformers library: pip install transformers"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("hf:gpt2", 124_439_808),
        ("hf:bert-base-uncased", 109_514_298),
        ("hf:google/vit-base-patch16-224", 86_567_656),
        ("hf:resnet-50", 25_557_032),
    ],
)
def test_models_have_their_published_number_of_parameters(name: str, parameters: int) -> None:
    description = describe(name)
    assert description.parameters == parameters
    assert description.counted_on == "meta"


def test_a_language_model_takes_a_step_on_generated_tokens() -> None:
    workload = resolve("hf:distilbert-base-uncased,context=8")
    data = workload.data(DataRequest(samples=2))
    assert data.tensors is not None
    inputs, targets = data.tensors
    torch.manual_seed(0)
    loss = workload.loss(workload.model()(inputs), targets)
    assert inputs.shape == (2, 8)
    assert loss.item() == pytest.approx(10.3, abs=0.5)  # the logarithm of 30,522 tokens


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf:gpt2,context=9999", "context must be at most 1024, not 9999"),
        ("hf:gpt2,context=x", "context must be a whole number of at least 1, not 'x'"),
        ("hf:gpt2,width=3", "unknown option of 'hf:gpt2,width=3' 'width'; valid: context"),
        ("hf:resnet-50,context=3", "'hf:resnet-50' has no options; 'context' was given"),
    ],
)
def test_wrong_options_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(text)
