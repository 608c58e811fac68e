"""Execution options: the weights are those of plain eager training on one device, also on several ranks."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from scalewise.core.errors import UserError
from scalewise.core.training_options import ExecutionOptions, Settings
from scalewise.data.dataset import DataRequest
from scalewise.engines.base import Place
from scalewise.strategies.registry import STRATEGIES, strategy_of
from scalewise.training.loop import train_on
from scalewise.training.results import Outcome, Request
from scalewise.training.tasks import train_task
from tests.conftest import DEVICE_KIND, SessionOf

HERE = torch.device("cpu" if DEVICE_KIND == "cpu" else "cuda")
COMPILING = [name for name, kind in STRATEGIES.items() if "compile" in kind.executions.get("execution", ())]
EAGER = ExecutionOptions("eager")
OPTIONS = {
    "channels_last": ExecutionOptions("eager", memory_format="channels_last"),
    "fft": ExecutionOptions("eager", convolutions="fft"),
    "channels_last and fft": ExecutionOptions("eager", memory_format="channels_last", convolutions="fft"),
}
COMPILED = ExecutionOptions("compile")


CONVOLUTIONS, LINEAR = "tests.tiny_images:images", "tests.tiny:float32"
SAMPLES = {CONVOLUTIONS: 10, LINEAR: 8}
"""Samples of a workload, in batches of 4. With 10 the last batch of an epoch is short, and its shares are uneven. With
8 all shares are equal, so that every rank compiles once."""


def request(workload: str, strategy: str, path: Path, options: ExecutionOptions) -> Request:
    settings = Settings(4, None, 5, checkpoint=path).with_execution(options)
    return Request(workload, strategy_of(strategy), settings, DataRequest(samples=SAMPLES[workload]))


def weights(path: Path) -> torch.Tensor:
    tensors = load_file(path)
    return torch.cat([tensors[name].flatten() for name in sorted(tensors) if name.startswith("model/")])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the loss and weights of plain eager training on one device."""

    @cache
    def trained(workload: str) -> tuple[float, torch.Tensor]:
        path = tmp_path_factory.mktemp("plain") / "checkpoint.safetensors"
        outcome = train_on(Place(0, 1, HERE), request(workload, "single", path, EAGER), lambda _: None)
        return outcome.loss, weights(path)

    return trained


def test_mirrored_and_sharded_compile() -> None:
    assert COMPILING == ["mirrored", "sharded"]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_of_one_device_do_not_change_the_weights(options: ExecutionOptions, tmp_path: Path, plain: Any) -> None:
    path = tmp_path / "checkpoint.safetensors"
    outcome = train_on(Place(0, 1, HERE), request(CONVOLUTIONS, "single", path, options), lambda _: None)
    loss, expected = plain(CONVOLUTIONS)
    assert outcome.loss == pytest.approx(loss, rel=1e-9)
    torch.testing.assert_close(weights(path), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("strategy", COMPILING)
@pytest.mark.skipif(DEVICE_KIND == "cuda", reason="needs two devices")
def test_options_of_ranks_do_not_change_the_weights(
    strategy: str, options: ExecutionOptions, tmp_path: Path, session_of: SessionOf, plain: Any
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    outcomes: list[Outcome] = session_of(2).run(train_task, request(CONVOLUTIONS, strategy, path, options))
    loss, expected = plain(CONVOLUTIONS)
    assert outcomes[0].loss == pytest.approx(loss, rel=1e-9)
    torch.testing.assert_close(weights(path), expected, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # by the compiler itself
@pytest.mark.compiled
@pytest.mark.parametrize("strategy", ["single", *COMPILING])
@pytest.mark.skipif(DEVICE_KIND == "cuda", reason="needs two devices")
def test_compilation_does_not_change_the_weights(
    strategy: str, tmp_path: Path, session_of: SessionOf, plain: Any
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    own = request(LINEAR, strategy, path, COMPILED)
    if strategy == "single":
        outcome = train_on(Place(0, 1, HERE), own, lambda _: None)
    else:
        [outcome, _] = session_of(2).run(train_task, own)
    loss, expected = plain(LINEAR)
    assert outcome.execution == "compile"
    assert outcome.compile_seconds > 0
    assert outcome.loss == pytest.approx(loss, rel=1e-5)
    torch.testing.assert_close(weights(path), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("strategy", [name for name, kind in STRATEGIES.items() if not kind.reference])
@pytest.mark.parametrize(
    "options", [COMPILED, OPTIONS["channels_last"], OPTIONS["fft"]], ids=["compile", "channels_last", "fft"]
)
def test_other_strategies_refuse_what_their_ranks_cannot_use(strategy: str, options: ExecutionOptions) -> None:
    chosen = strategy_of(strategy)
    if strategy in COMPILING:
        chosen.check_execution(options)
        return
    with pytest.raises(UserError, match=f"{strategy} does not support --.*; valid: "):
        chosen.check_execution(options)
