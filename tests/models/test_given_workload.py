"""An nn.Module as a workload of the Python functions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import scalewise
from scalewise.core.errors import UserError
from scalewise.models.given_workload import given_workload
from scalewise.models.workload import Workload


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.head(self.body(inputs))
        return output


def test_a_module_becomes_a_classifier_whose_classes_are_the_size_of_its_output() -> None:
    workload, shape, classes = given_workload(Net(), (12,), None)
    assert isinstance(workload, Workload)
    assert (workload.name, workload.input_shape, shape, classes) == ("Net", (12,), None, None)


def test_training_starts_from_the_weights_of_the_module_and_leaves_them_unchanged() -> None:
    module = Net()
    nn.init.zeros_(module.head.weight)
    nn.init.zeros_(module.head.bias)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    first = scalewise.train(module, input_shape=(12,), device_kind="cpu", batch=8, steps=1, learning_rate=0.1)
    assert first.loss == pytest.approx(torch.log(torch.tensor(3.0)).item(), abs=1e-6)  # equal scores for 3 classes
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.slow
def test_a_module_gives_the_same_losses_on_two_ranks() -> None:
    module = Net()

    def loss_of(strategy: str, devices: int) -> float:
        return scalewise.train(
            module, input_shape="12", device_kind="cpu", strategy=strategy, devices=devices, batch=8, steps=6
        ).loss

    assert loss_of("layers", 2) == pytest.approx(loss_of("single", 1), rel=1e-5)


@pytest.mark.slow
def test_a_local_class_cannot_be_sent_to_ranks() -> None:
    class Local(Net):
        pass

    with pytest.raises(UserError, match=r"Local' cannot be sent to other processes .*define it at the top level"):
        scalewise.train(Local(), input_shape=(12,), device_kind="cpu", strategy="mirrored", devices=2, batch=8, steps=2)
    result = scalewise.train(Local(), input_shape=(12,), device_kind="cpu", batch=8, steps=2)
    assert (result.workload, result.devices) == ("Local", 1)


def test_a_module_is_described_and_advised() -> None:
    assert scalewise.describe(Net(), (12,)).parameters == 12 * 8 + 8 + 8 * 3 + 3
    advice = scalewise.advise(Net(), input_shape=(12,), cluster="2 x rtx-4090", batch=64, strategy="mirrored")
    assert {row.prediction.devices for row in advice.rows} == {1, 2}
    assert advice.to_dict()["workload"] == "Net"


@pytest.mark.slow
def test_a_module_is_measured_and_a_changed_one_is_not_mixed_with_it(tmp_path: Path) -> None:
    options = {
        "input_shape": (12,),
        "strategy": "single",
        "devices": 1,
        "batch": 8,
        "budget": 0.2,
        "device_kind": "cpu",
    }
    result = scalewise.measure(Net(), out=tmp_path / "sweep", **options)  # type: ignore[arg-type]
    frame = result.to_dataframe()
    assert frame[["workload", "status", "batch"]].values.tolist() == [["Net", "ok", 8]]
    assert frame["step_seconds.median"][0] > 0
    changed = Net()
    changed.body = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 8))
    with pytest.raises(UserError):
        scalewise.measure(changed, out=tmp_path / "sweep", resume=True, **options)  # type: ignore[arg-type]


def test_a_workload_has_its_own_shape() -> None:
    workload, _, _ = given_workload(Net(), (12,), 3)
    with pytest.raises(UserError, match="'Net' is a Workload, which defines its own input shape"):
        given_workload(workload, (12,), None)


def test_results_become_frames() -> None:
    advice = scalewise.advise("linear", cluster="4x-gtx-1080-ti", batch=[20, 100], strategy="mirrored")
    frame = advice.to_dataframe()
    assert frame["batch"].tolist() == [row.prediction.batch for row in advice.rows]
    assert frame["step_seconds.predicted"].tolist() == [row.prediction.seconds for row in advice.rows]
    layers = scalewise.describe("linear").to_dataframe()
    assert layers["parameters"].sum() == 12_102_220


def test_a_prompt_and_a_notebook_display_the_table() -> None:
    bundle = scalewise.describe("linear")._repr_mimebundle_()
    assert bundle["text/plain"].splitlines()[0].rstrip() == "linear"
    assert "<pre>" in bundle["text/html"]
