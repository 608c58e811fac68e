"""Workspaces of libraries, measured on this machine's device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from scalewise.runtime.workspace_memory import WITH_WORKSPACE, Measured, Workspaces

CPU = torch.device("cpu")
CONVOLUTION, RELU = torch.ops.aten.convolution.default, torch.ops.aten.relu.default
MB = 1_000_000


def convolution(samples: int, device: str = "meta") -> tuple[object, ...]:
    inputs, weight = torch.empty(samples, 64, 64, 64, device=device), torch.empty(64, 64, 3, 3, device=device)
    return inputs, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1


def outputs_bytes(samples: int) -> int:
    return samples * 64 * 64 * 64 * 4


def test_a_convolution_is_run_once_for_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    measure = Workspaces._measure

    def counted(workspaces: Workspaces, function: object, args: object) -> Measured:
        calls.append(function)
        return measure(workspaces, function, args)

    monkeypatch.setattr(Workspaces, "_measure", counted)
    with Workspaces(CPU) as workspaces:
        first, again = (workspaces.of_call(CONVOLUTION, convolution(7)) for _ in range(2))
    assert first == again
    assert first.result_bytes == (outputs_bytes(7),)
    assert calls == [CONVOLUTION]


def test_the_workspace_is_the_peak_beyond_arguments_and_results() -> None:
    """oneDNN copies at most inputs, weights and outputs into its own layout here."""
    with Workspaces(CPU) as workspaces:
        measured = workspaces.of_call(CONVOLUTION, convolution(9))
    assert 0 <= measured.workspace_bytes <= 2 * outputs_bytes(9) + MB


def test_tensors_without_values_are_replaced_by_real_ones() -> None:
    with FakeTensorMode(), Workspaces(CPU) as workspaces:
        assert workspaces.of_call(CONVOLUTION, convolution(5, "cpu")).result_bytes == (outputs_bytes(5),)


def test_results_of_an_lstm_include_its_reserve_for_backward() -> None:
    function = torch.ops.aten.mkldnn_rnn_layer.default
    kept: list[Measured] = []
    for samples in (4, 8):
        inputs, state = torch.empty(5, samples, 8, device="meta"), torch.empty(1, samples, 16, device="meta")
        weights = [torch.empty(shape, device="meta") for shape in ((64, 8), (64, 16), (64,), (64,))]
        with Workspaces(CPU) as workspaces:
            args = (inputs, *weights, state, state, False, [], 2, 16, 1, True, False, False, True)
            kept.append(workspaces.of_call(function, args))
    assert kept[0].result_bytes[-1] > 0
    assert kept[1].result_bytes[-1] > kept[0].result_bytes[-1]


def test_other_operations_are_not_run() -> None:
    assert RELU not in WITH_WORKSPACE
    assert Workspaces(CPU).of_call(RELU, (torch.empty(3, device="meta"),)) == Measured()


def test_a_workspace_larger_than_the_device_counts_as_zero() -> None:
    huge: Tensor = torch.empty(2**46, 1, 8, device="meta")
    args = (huge, torch.empty(1, 1, 3, device="meta"), None, [1], [1], [1], False, [0], 1)
    with Workspaces(CPU) as workspaces:
        assert workspaces.of_call(CONVOLUTION, args) == Measured()


def test_other_errors_of_an_operation_are_raised() -> None:
    args = (
        torch.empty(1, 2, 8, device="meta"),
        torch.empty(1, 3, 3, device="meta"),
        None,
        [1],
        [1],
        [1],
        False,
        [0],
        1,
    )
    with Workspaces(CPU) as workspaces, pytest.raises(RuntimeError, match="channels"):
        workspaces.of_call(CONVOLUTION, args)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_nothing_is_measured_for_a_gpu_that_is_not_present() -> None:
    workspaces = Workspaces(torch.device("cuda"))
    assert workspaces.of_call(CONVOLUTION, convolution(2)) == Measured()
    assert workspaces.kept_by(torch.ops.aten.mm.default, ()) == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cudnn_is_measured_on_the_gpu() -> None:
    workspaces = Workspaces(torch.device("cuda"))
    assert workspaces.of_call(CONVOLUTION, convolution(8)).result_bytes == (outputs_bytes(8),)
    assert workspaces.kept_by(torch.ops.aten.mm.default, ())["cuBLAS"] > 0
