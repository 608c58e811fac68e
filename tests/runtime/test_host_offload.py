"""Tests that a model with parameters in host memory has the outputs and gradients of the plain model."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from scalewise.models.parameters import flatten_parameters, trainable
from scalewise.runtime.host_offload import CoreCopier, Fetched, Loans

CPU = torch.device("cpu")
WIDTH = 6


class Tied(nn.Module):
    """A weight that two modules share and a function reads, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(self.second(self.first(inputs)).tanh(), self.first.weight.T)


class DirectParameter(nn.Module):
    """A parameter outside of any layer, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.layer(inputs) * self.scale).relu_() * self.scale[0]
        return outputs


class Recurrent(nn.Module):
    """Several weights in one operation, passed as a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(WIDTH, WIDTH, num_layers=2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs.unsqueeze(0))[0]
        return outputs


class Attention(nn.Module):
    """A projection whose weight is read without calling the projection."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.attention(inputs, inputs, inputs)[0]
        return outputs


class Recomputed(nn.Module):
    """Activation checkpointing, which runs forward again in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        middle: Tensor = checkpoint(self.layers, inputs, use_reentrant=self.reentrant)
        outputs: Tensor = self.last(middle)
        return outputs


class Frozen(nn.Module):
    """A frozen layer and an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.fixed(inputs))
        return outputs


def deep() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)) for _ in range(5)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "deep": deep,
    "normalised": lambda: nn.Sequential(
        weight_norm(nn.Linear(WIDTH, WIDTH)), nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH)
    ),
    "tied": Tied,
    "direct parameter": DirectParameter,
    "recurrent": Recurrent,
    "attention": Attention,
    "recomputed": lambda: Recomputed(reentrant=False),
    "recomputed, reentrant": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Recomputed(reentrant=True)),
    "frozen": Frozen,
}


class CountingCopier(CoreCopier):
    """Counts fetches and the largest number of fetched tensors at a time."""

    def __init__(self) -> None:
        self.fetches = 0
        self.most_fetched = 0
        self.offloaded: Loans | None = None

    def fetch(self, source: Tensor) -> Fetched:
        self.fetches += 1
        return super().fetch(source)

    def arrive(self, fetched: Fetched) -> None:
        super().arrive(fetched)
        assert self.offloaded
        self.most_fetched = max(self.most_fetched, len(self.offloaded.fetched))


def offload(model: nn.Module, ahead: int = 1) -> tuple[Loans, CountingCopier]:
    copier = CountingCopier()
    copier.offloaded = Loans(model, flatten_parameters(model), CPU, copier, ahead)
    return copier.offloaded, copier


def step(model: nn.Module, offloaded: Loans | None, inputs: Tensor) -> tuple[Tensor, list[Tensor | None]]:
    """Run a forward and backward pass; return outputs and gradients."""
    if offloaded is None:
        outputs = model(inputs)
        outputs.square().mean().backward()
    else:
        with offloaded.open():
            offloaded.begin("forward")
            outputs = model(inputs)
            loss = outputs.square().mean()
            offloaded.begin("backward")
            offloaded.backward(loss)
    gradients = [parameter.grad for parameter in trainable(model)]
    model.zero_grad()
    return outputs.detach(), gradients


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("kind", MODELS)
def test_outputs_and_gradients_equal_the_plain_model(kind: str, ahead: int) -> None:
    torch.manual_seed(0)
    plain = MODELS[kind]().double()
    offloaded_model = copy.deepcopy(plain)
    offloaded, _ = offload(offloaded_model, ahead)
    for _ in range(3):
        inputs = torch.randn(4, WIDTH, dtype=torch.float64)
        expected, results = step(plain, None, inputs), step(offloaded_model, offloaded, inputs)
        torch.testing.assert_close(results, expected, rtol=1e-12, atol=1e-12)
        assert [parameter.data_ptr() for parameter in trainable(offloaded_model)] == [
            host.data_ptr() for host in offloaded.host
        ]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_only_the_current_and_the_next_layers_are_on_the_device(ahead: int) -> None:
    model = deep()
    offloaded, copier = offload(model, ahead)
    for _ in range(3):
        copier.fetches = copier.most_fetched = 0
        step(model, offloaded, torch.randn(2, WIDTH))
        # Forward needs all weights and biases; backward needs the weights of all layers but the first.
        assert copier.fetches == 10 + 4
        assert not offloaded.fetched
    assert copier.most_fetched == 2 * (1 + ahead)


def test_the_next_layer_is_fetched_before_it_is_read() -> None:
    model = deep()
    offloaded, _ = offload(model)
    step(model, offloaded, torch.randn(2, WIDTH))
    fetched: list[set[int]] = []
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda *_: fetched.append(set(offloaded.fetched)))
    step(model, offloaded, torch.randn(2, WIDTH))
    # Before each layer: the parameters of the previous layer and its own.
    assert fetched == [{0, 1}, {0, 1, 2, 3}, {2, 3, 4, 5}, {4, 5, 6, 7}, {6, 7, 8, 9}]


def test_a_model_may_change_its_path() -> None:
    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = (self.left if inputs.sum() > 0 else self.right)(inputs)
            return outputs

    plain = Fork()
    offloaded_model = copy.deepcopy(plain)
    offloaded, _ = offload(offloaded_model)
    for sign in (1, -1, 1, -1):
        inputs = torch.full((2, WIDTH), float(sign))
        torch.testing.assert_close(step(offloaded_model, offloaded, inputs), step(plain, None, inputs))


def test_two_alternating_layers_are_fetched_once() -> None:
    class Alternating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, inputs: Tensor) -> Tensor:
            for _ in range(10):
                inputs = self.second(self.first(inputs))
            return inputs

    model = Alternating()
    offloaded, copier = offload(model)
    for _ in range(2):
        copier.fetches = 0
        step(model, offloaded, torch.randn(2, WIDTH))
    assert copier.fetches == 2 + 2


def test_the_model_can_be_called_outside_of_a_step() -> None:
    model = deep()
    inputs = torch.randn(2, WIDTH)
    expected = model(inputs).detach()
    offloaded, copier = offload(model)
    with torch.no_grad():
        torch.testing.assert_close(model(inputs), expected)
    assert (copier.fetches, offloaded.is_open, offloaded.fetched) == (10, False, {})
    assert offloaded.copied.fetched_bytes == 0


def test_after_a_failed_call_the_parameters_are_in_host_memory() -> None:
    model = deep()
    offloaded, _ = offload(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.randn(2, WIDTH + 1))
    assert not offloaded.is_open
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    model(torch.randn(2, WIDTH))


def test_a_tensor_changed_in_place_is_detected() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, inputs: Tensor) -> Tensor:
            inputs = inputs * 1
            outputs: Tensor = self.layer(inputs)
            inputs.add_(1)
            return outputs

    model = InPlace()
    offloaded, _ = offload(model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step(model, offloaded, torch.randn(2, WIDTH))


def test_values_read_without_a_fetch_are_nan() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    offloaded, _ = offload(model)
    with offloaded.open(), torch._C.DisableTorchFunction():
        assert model.weight.isnan().all()
        assert model.weight.shape == (WIDTH, WIDTH)
