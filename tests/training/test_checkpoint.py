"""Checkpoints: safetensors files whose weights any reader finds by name."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from scalewise.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from tests.training.conftest import Train

PROGRESS = Progress("mine", 16, 4, "sgd", 0.1, 0, 1, "fp32", 3)


def test_a_reader_without_optimizer_loads_the_weights(train: Train, tmp_path: Path) -> None:
    outcome = train("float32", steps=5, checkpoint=tmp_path / "c")
    tensors = load_file(tmp_path / "c")
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    weights = {name.removeprefix("model/"): tensor for name, tensor in tensors.items() if name.startswith("model/")}
    model.load_state_dict(weights)
    assert sum(parameter.numel() for parameter in model.parameters()) == outcome.parameters == 53
    assert {name.split("/")[0] for name in tensors} == {"model", "optimizer", "random"}
    assert {name for name in tensors if name.startswith("optimizer/")} == {
        f"optimizer/{name}/momentum_buffer" for name in weights
    }


def test_progress_is_in_the_metadata(train: Train, tmp_path: Path) -> None:
    train("float32", steps=5, checkpoint=tmp_path / "c", accumulate=2, seed=3)
    with safe_open(tmp_path / "c", framework="pt") as file:
        progress = json.loads(file.metadata()["progress"])
    assert progress == {
        "workload": "tests.tiny:float32",
        "samples": 16,
        "batch": 4,
        "optimizer": "momentum",
        "learning_rate": 0.05,
        "seed": 3,
        "accumulate": 2,
        "precision": "fp32",
        "steps_done": 5,
    }


def test_weights_load_without_an_optimizer(tmp_path: Path) -> None:
    written, read = nn.Linear(3, 2), nn.Linear(3, 2)
    save_checkpoint(tmp_path / "c", written, torch.optim.SGD(written.parameters()), PROGRESS)
    assert load_checkpoint(tmp_path / "c", read, None, PROGRESS) == PROGRESS
    torch.testing.assert_close(read.weight, written.weight, rtol=0, atol=0)


class Tied(nn.Module):
    """Model with two names for one tensor, which safetensors refuses to write."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight


def test_tied_weights_are_written_once_and_stay_tied(tmp_path: Path) -> None:
    written, read = Tied(), Tied()
    save_checkpoint(tmp_path / "c", written, torch.optim.SGD(written.parameters()), PROGRESS)
    load_checkpoint(tmp_path / "c", read, None, PROGRESS)
    torch.testing.assert_close(read.second.weight, written.first.weight, rtol=0, atol=0)
    assert read.second.weight is read.first.weight
    assert [name for name in load_file(tmp_path / "c") if name.endswith("weight")] == ["model/first.weight"]


def test_the_random_state_is_restored(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters())
    save_checkpoint(tmp_path / "c", model, optimizer, PROGRESS)
    drawn = torch.rand(4)
    load_checkpoint(tmp_path / "c", model, optimizer, PROGRESS)
    assert torch.equal(torch.rand(4), drawn)
