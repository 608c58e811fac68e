"""Training loop: exact weights, losses before each update, phases that sum to the step, stop at a non-finite loss."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from scalewise.core.errors import RunFailed
from scalewise.data.dataset import DataRequest
from scalewise.runtime.feed import epoch_order
from scalewise.training.results import Report
from tests import tiny
from tests.training.conftest import Train


def weights(path: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in load_file(path).items() if name.startswith("model/")}


def by_hand(samples: int, batch: int, steps: int) -> tuple[nn.Module, float]:
    """Weights and last loss of a plain training loop over the same batches."""
    workload = tiny.float64()
    tensors = workload.data(DataRequest(samples=samples)).tensors
    assert tensors is not None
    torch.manual_seed(0)
    model = workload.model()
    optimizer = torch.optim.Adam(model.parameters(), workload.learning_rate)
    per_epoch = -(-samples // batch)
    for step in range(steps):
        rows = epoch_order(0, step // per_epoch, samples).split(batch)[step % per_epoch]
        optimizer.zero_grad()
        loss = workload.loss(model(tensors[0][rows]), tensors[1][rows])
        loss.backward()
        optimizer.step()
    return model, loss.item()


@pytest.mark.parametrize("accumulate", [1, 2, 3, 8])
def test_weights_and_loss_equal_those_of_a_plain_loop(accumulate: int, train: Train, tmp_path: Path) -> None:
    model, loss = by_hand(samples=14, batch=5, steps=8)
    outcome = train("float64", samples=14, batch=5, steps=8, accumulate=accumulate, checkpoint=tmp_path / "c")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(weights(tmp_path / "c")[f"model/{name}"], parameter.data, rtol=0, atol=1e-12)
    assert outcome.loss == pytest.approx(loss, rel=1e-6)


def test_epochs_cover_every_sample_and_are_timed(train: Train) -> None:
    reports: list[Report] = []
    outcome = train("float32", samples=10, batch=4, epochs=3, report=reports.append)
    assert (outcome.steps, len(outcome.epoch_seconds), outcome.interrupted) == (9, 3, False)
    with_loss = [report for report in reports if report.loss is not None]
    assert [(report.epoch, report.steps_done, report.steps) for report in with_loss] == [
        (0, 3, 9),
        (1, 6, 9),
        (2, 9, 9),
    ]
    assert with_loss[-1].loss == outcome.loss


@pytest.mark.slow
def test_phases_sum_to_the_median_step(train: Train) -> None:
    outcome = train("float32", steps=200)
    assert list(outcome.phases) == ["load", "forward", "loss", "backward", "update"]
    assert sum(outcome.phases.values()) == pytest.approx(median(outcome.step_seconds), rel=1e-6)
    assert len(outcome.step_seconds) == 195


def test_another_seed_gives_other_weights(train: Train, tmp_path: Path) -> None:
    for seed in (0, 1):
        train("float32", steps=2, seed=seed, checkpoint=tmp_path / str(seed))
    assert not torch.equal(weights(tmp_path / "0")["model/0.weight"], weights(tmp_path / "1")["model/0.weight"])


@pytest.mark.parametrize("every", [None, 1])
def test_an_infinite_loss_stops_the_run_without_a_checkpoint(every: int | None, train: Train, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"the loss became (inf|nan) at step 1; a learning rate below 1 may help"):
        train("huge_steps", steps=3, checkpoint=tmp_path / "c", checkpoint_every=every)
    assert not (tmp_path / "c").exists()


def test_the_step_of_a_nan_loss_is_reported_also_after_a_resume(train: Train, tmp_path: Path) -> None:
    kind = "tests.training.models:breaks_at_the_fifth"
    with pytest.raises(RunFailed, match="the loss became nan at step 5;"):
        train(kind, steps=8, checkpoint=tmp_path / "c")
    train(kind, steps=3, checkpoint=tmp_path / "c")
    with pytest.raises(RunFailed, match="the loss became nan at step 5;"):
        train(kind, steps=8, checkpoint=tmp_path / "c", resume=True)
