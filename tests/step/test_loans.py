"""Parameters on loan: whatever a model does with them, its outputs and gradients are those of the plain model."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from scalewise.step.copies import CoreCopier, Fetched
from scalewise.step.flat import flatten_parameters, trainable
from scalewise.step.loans import Loans

CPU = torch.device("cpu")
WIDTH = 6


class Tied(nn.Module):
    """Another module's weight, read by a function, twice, one transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(self.second(self.first(inputs)).tanh(), self.first.weight.T)


class OfItsOwn(nn.Module):
    """A parameter beside those of its layers, of which one is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(self.layer(inputs) * self.scale).relu_() * self.scale[0]
        return outputs


class Recurrent(nn.Module):
    """Many weights in one operation, given as a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(WIDTH, WIDTH, num_layers=2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs.unsqueeze(0))[0]
        return outputs


class Attention(nn.Module):
    """The projection's weight is read without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.attention(inputs, inputs, inputs)[0]
        return outputs


class Recomputed(nn.Module):
    """Forward runs again, inside backward."""

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
    """A part that is not trained, and one that is not used."""

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
    "of its own": OfItsOwn,
    "recurrent": Recurrent,
    "attention": Attention,
    "recomputed": lambda: Recomputed(reentrant=False),
    "recomputed by backward in backward": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Recomputed(reentrant=True)),
    "frozen": Frozen,
}


class Spy(CoreCopier):
    """Notes what is fetched, and how much of it is there at a time."""

    def __init__(self) -> None:
        self.fetches = 0
        self.most_held = 0
        self.loans: Loans | None = None

    def fetch(self, source: Tensor) -> Fetched:
        self.fetches += 1
        return super().fetch(source)

    def arrive(self, fetched: Fetched) -> None:
        super().arrive(fetched)
        assert self.loans
        self.most_held = max(self.most_held, len(self.loans.held))


def lend(model: nn.Module, ahead: int = 1) -> tuple[Loans, Spy]:
    spy = Spy()
    spy.loans = Loans(model, flatten_parameters(model), CPU, spy, ahead)
    return spy.loans, spy


def step(model: nn.Module, loans: Loans | None, inputs: Tensor) -> tuple[Tensor, list[Tensor | None]]:
    """Outputs and gradients."""
    if loans is None:
        outputs = model(inputs)
        outputs.square().mean().backward()
    else:
        with loans.open():
            loans.begin("forward")
            outputs = model(inputs)
            loss = outputs.square().mean()
            loans.begin("backward")
            loans.backward(loss)
    found = [parameter.grad for parameter in trainable(model)]
    model.zero_grad()
    return outputs.detach(), found


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("kind", MODELS)
def test_outputs_and_gradients_are_the_plain_models(kind: str, ahead: int) -> None:
    torch.manual_seed(0)
    plain = MODELS[kind]().double()
    lent = copy.deepcopy(plain)
    loans, _ = lend(lent, ahead)
    for _ in range(3):
        inputs = torch.randn(4, WIDTH, dtype=torch.float64)
        expected, found = step(plain, None, inputs), step(lent, loans, inputs)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert [parameter.data_ptr() for parameter in trainable(lent)] == [host.data_ptr() for host in loans.host]


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_only_the_layer_at_work_and_those_ahead_are_on_the_device(ahead: int) -> None:
    model = deep()
    loans, spy = lend(model, ahead)
    for _ in range(3):
        spy.fetches = spy.most_held = 0
        step(model, loans, torch.randn(2, WIDTH))
        # Weights and biases forward; of the first layer backward needs nothing, of the others the weights.
        assert spy.fetches == 10 + 4
        assert not loans.held
    assert spy.most_held == 2 * (1 + ahead)


def test_the_next_layer_is_fetched_before_it_is_read() -> None:
    model = deep()
    loans, _ = lend(model)
    step(model, loans, torch.randn(2, WIDTH))
    there: list[set[int]] = []
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda *_: there.append(set(loans.held)))
    step(model, loans, torch.randn(2, WIDTH))
    # Before each layer: those of the one before it, and its own.
    assert there == [{0, 1}, {0, 1, 2, 3}, {2, 3, 4, 5}, {4, 5, 6, 7}, {6, 7, 8, 9}]


def test_a_model_that_takes_another_way_is_followed() -> None:
    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = (self.left if inputs.sum() > 0 else self.right)(inputs)
            return outputs

    plain = Fork()
    lent = copy.deepcopy(plain)
    loans, _ = lend(lent)
    for sign in (1, -1, 1, -1):
        inputs = torch.full((2, WIDTH), float(sign))
        torch.testing.assert_close(step(lent, loans, inputs), step(plain, None, inputs))


def test_two_layers_that_take_turns_stay() -> None:
    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, inputs: Tensor) -> Tensor:
            for _ in range(10):
                inputs = self.other(self.one(inputs))
            return inputs

    model = Turns()
    loans, spy = lend(model)
    for _ in range(2):
        spy.fetches = 0
        step(model, loans, torch.randn(2, WIDTH))
    assert spy.fetches == 2 + 2


def test_the_model_can_be_called_outside_of_a_step() -> None:
    model = deep()
    inputs = torch.randn(2, WIDTH)
    expected = model(inputs).detach()
    loans, spy = lend(model)
    with torch.no_grad():
        torch.testing.assert_close(model(inputs), expected)
    assert (spy.fetches, loans.is_open, loans.held) == (10, False, {})
    assert loans.copied.fetched_bytes == 0


def test_a_call_that_fails_leaves_the_parameters_with_the_host() -> None:
    model = deep()
    loans, _ = lend(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.randn(2, WIDTH + 1))
    assert not loans.is_open
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    model(torch.randn(2, WIDTH))


def test_a_tensor_changed_in_place_is_found_out() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, inputs: Tensor) -> Tensor:
            inputs = inputs * 1
            outputs: Tensor = self.layer(inputs)
            inputs.add_(1)
            return outputs

    model = Careless()
    loans, _ = lend(model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step(model, loans, torch.randn(2, WIDTH))


def test_a_value_read_unseen_is_not_a_number() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    loans, _ = lend(model)
    with loans.open(), torch._C.DisableTorchFunction():
        assert model.weight.isnan().all()
        assert model.weight.shape == (WIDTH, WIDTH)
