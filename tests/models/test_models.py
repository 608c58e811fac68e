"""The built-in models have their documented sizes, accept their data and learn from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from scalewise.data.dataset import DataRequest
from scalewise.models.resolve import resolve
from scalewise.models.workload import Workload


def parameters_of(name: str) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in resolve(name).model().parameters())


def fit(workload: Workload, samples: int, steps: int, batch: int) -> tuple[float, float, float]:
    """Train in a plain loop; return the first loss, the last loss and the accuracy on all samples."""
    torch.manual_seed(0)
    data = workload.data(DataRequest(samples=samples))
    assert data.tensors is not None
    assert workload.accuracy is not None
    inputs, targets = data.tensors
    model = workload.model()
    optimizer = torch.optim.Adam(model.parameters(), workload.learning_rate, fused=True)
    losses = []
    for step in range(steps):
        chosen = torch.arange(step * batch, (step + 1) * batch) % samples
        loss = workload.loss(model(inputs[chosen]), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        return losses[0], losses[-1], workload.accuracy(model(inputs), targets).item()


@pytest.fixture(autouse=True)
def no_recordings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.delenv("SCALEWISE_SPEECH", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp()))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, because steps this small are slower on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "parameters"), [("linear", 12_102_220), ("conv", 376_200), ("unet:full", 31_030_593), ("unet", 120_681)]
)
def test_parameter_counts_equal_those_of_the_documents(name: str, parameters: int) -> None:
    assert parameters_of(name) == parameters


def test_the_linear_model_keeps_the_channel_dimension() -> None:
    workload = resolve("linear")
    assert workload.model()(workload.example(3)).shape == (3, 1, 10)


@pytest.mark.parametrize("name", ["unet:width=2,depth=2,size=16,norm=batch", "unet:width=3,depth=1,size=8"])
def test_a_unet_returns_one_logit_per_pixel(name: str) -> None:
    workload = resolve(name)
    assert workload.model()(workload.example(2)).shape == (2, *workload.input_shape)


def test_a_unet_has_batch_norm_only_if_requested() -> None:
    kinds = {
        norm: [type(m).__name__ for m in resolve(f"unet:norm={norm}").model().modules()] for norm in ("none", "batch")
    }
    assert "BatchNorm2d" not in kinds["none"]
    assert kinds["batch"].count("BatchNorm2d") == 2 * (3 + 1 + 3)


def test_a_transformer_does_not_use_later_tokens() -> None:
    torch.manual_seed(0)
    model = resolve("transformer:layers=2,width=16,heads=2,context=12").model()
    tokens = torch.randint(256, (1, 12))
    changed = tokens.clone()
    changed[0, 7:] = 0
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :7], after[0, :7])
    assert not torch.equal(before[0, 7:], after[0, 7:])


@pytest.mark.slow
def test_the_linear_model_learns_synthetic_speech() -> None:
    first, last, accuracy = fit(replace(resolve("linear"), learning_rate=5e-4), samples=60, steps=120, batch=20)
    assert last < first - 0.5
    assert accuracy > 0.9


@pytest.mark.slow
def test_the_convolutional_model_learns_synthetic_speech() -> None:
    first, last, accuracy = fit(resolve("conv"), samples=2, steps=12, batch=2)
    assert last < first - 0.5
    assert accuracy == 1


@pytest.mark.slow
def test_a_unet_learns_shapes() -> None:
    first, last, accuracy = fit(resolve("unet:size=32"), samples=32, steps=100, batch=16)
    assert last < first / 3
    assert accuracy > 0.95  # all background would be 0.79


def test_a_transformer_learns_text() -> None:
    first, last, accuracy = fit(resolve("transformer:layers=1,width=32,context=32"), samples=64, steps=60, batch=16)
    assert first > 5
    assert last < 3
    assert accuracy > 0.15


def test_a_synthetic_model_learns_its_labels() -> None:
    first, last, accuracy = fit(resolve("synthetic:parameters=1e5,flops=1e6"), samples=200, steps=60, batch=50)
    assert last < first / 2
    assert accuracy > 0.9
