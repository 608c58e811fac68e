"""Operator counts against arithmetic done by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from scalewise.core.errors import UserError
from scalewise.models import operator_counts
from scalewise.models.operator_counts import (
    count_batches,
    count_operators,
    equal_blocks,
    parameter_bytes,
    workload_roofline,
)
from scalewise.models.published_cnns import TORCHVISION
from scalewise.models.published_transformers import TRANSFORMERS, Transformer, counted_token_loss
from scalewise.models.resolve import resolve
from scalewise.predict.operators import MATRIX_KINDS, Operator, merged, totals, unknown_operators
from scalewise.predict.roofline import DeviceLimits

FULL_COUNT = operator_counts._recorded_step


def class_loss(logits: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))


def product_flops(operators: list[Operator], phase: str) -> float:
    return sum(o.flops * o.count for o in operators if o.kind in MATRIX_KINDS and o.phase == phase)


def test_a_linear_layer_computes_one_product_forward_and_two_backward() -> None:
    operators = count_operators(lambda: nn.Linear(30, 20), lambda: torch.zeros(10, 30, requires_grad=True))
    product = 2.0 * 10 * 30 * 20
    assert product_flops(operators, "forward") == product
    assert product_flops(operators, "backward") == 2 * product
    forward = next(operator for operator in operators if operator.kind == "matmul")
    assert list(forward.shape) == [1, 10, 20, 30]
    assert forward.bytes_read == 4 * (10 * 30 + 30 * 20)
    assert forward.bytes_written == 4 * 10 * 20


def test_no_input_gradient_is_counted_where_none_is_needed() -> None:
    operators = count_operators(lambda: nn.Linear(30, 20), lambda: torch.zeros(10, 30))
    assert product_flops(operators, "backward") == product_flops(operators, "forward")


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_a_convolution_and_its_two_gradients_cost_the_same(groups: int) -> None:
    operators = count_operators(
        lambda: nn.Conv2d(8, 16, 3, padding=1, groups=groups),
        lambda: torch.zeros(2, 8, 10, 10, requires_grad=True),
    )
    one = 2 * 2 * 100 * 16 * (8 // groups) * 9
    assert product_flops(operators, "forward") == one
    assert product_flops(operators, "backward") == 2 * one
    roles = [operator.role for operator in operators if operator.kind == "conv"]
    assert roles == ["", "input gradient", "weight gradient"]


def test_a_transposed_convolution_multiplies_its_input_by_the_window() -> None:
    operators = count_operators(lambda: nn.ConvTranspose2d(8, 4, 2, stride=2), lambda: torch.zeros(1, 8, 5, 5))
    assert product_flops(operators, "forward") == 2 * 25 * 8 * 4 * 4


def test_a_long_1d_convolution_keeps_its_window() -> None:
    operators = count_operators(lambda: nn.Conv1d(1, 50, 200, padding=100), lambda: torch.zeros(2, 1, 12_000))
    conv = next(operator for operator in operators if operator.kind == "conv")
    assert conv.window == (200,)
    assert conv.flops == 2 * 2 * 12_001 * 50 * 200


class OnlyAttention(nn.Module):
    def __init__(self, causal: bool, mask: bool = False) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(2, 4, 16, 8))
        self.causal, self.mask = causal, mask

    def forward(self, unused: Tensor) -> Tensor:  # noqa: ARG002
        mask = torch.zeros(2, 1, 16, 16) if self.mask else None
        return nn.functional.scaled_dot_product_attention(
            self.query, self.query, self.query, attn_mask=mask, is_causal=self.causal, dropout_p=0.1
        )


@pytest.mark.parametrize(("causal", "share"), [(False, 1.0), (True, 0.5)])
def test_attention_is_one_fused_kernel_forward_and_recomputes_backward(causal: bool, share: float) -> None:
    operators = count_operators(lambda: OnlyAttention(causal), lambda: torch.zeros(1))
    both_products = 2 * 2 * (2 * 4) * 16 * 16 * 8
    attention = [operator for operator in operators if operator.kind == "attention"]
    assert [operator.flops for operator in attention] == [share * both_products, share * 2.5 * both_products]


def test_a_masked_attention_reads_the_mask() -> None:
    with_mask = count_operators(lambda: OnlyAttention(False, mask=True), lambda: torch.zeros(1), backward=False)
    without = count_operators(lambda: OnlyAttention(False), lambda: torch.zeros(1), backward=False)
    read = [next(o.bytes_read for o in operators if o.kind == "attention") for operators in (with_mask, without)]
    assert read[0] - read[1] == 4 * 2 * 16 * 16


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_are_a_few_fused_operators(layer: Callable[..., nn.Module], gates: int) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer(8, 16, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, data: Tensor) -> Tensor:
            return self.layer(data)[0]  # type: ignore[no-any-return]

    operators = count_operators(Model, lambda: torch.zeros(3, 7, 8), optimizer=None)
    tokens, directions = 3 * 7, 2
    per_layer = [2 * tokens * directions * gates * 16 * (inputs + 16) for inputs in (8, 32)]
    assert product_flops(operators, "forward") == sum(per_layer)
    assert product_flops(operators, "backward") == 2 * sum(per_layer)
    assert sum(operator.count for operator in operators if operator.name.startswith("torch.")) == 8
    assert totals(operators)["calls"] < 30


def test_resnet50_has_its_published_size() -> None:
    operators = count_operators(TORCHVISION["resnet50"], lambda: torch.zeros(2, 3, 224, 224), loss=class_loss)
    assert product_flops(operators, "forward") / 2 / 2 == pytest.approx(4.09e9, rel=0.005)
    assert parameter_bytes(TORCHVISION["resnet50"]) == 4 * 25_557_032
    assert unknown_operators(operators) == []


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vgg16", 138_357_544), ("densenet121", 7_978_856), ("mobilenet_v2", 3_504_872), ("mnasnet1_0", 4_383_312),
     ("shufflenet_v2_x1_0", 2_278_604), ("squeezenet1_0", 1_248_424), ("resnext50_32x4d", 25_028_904)],
)  # fmt: skip
def test_published_cnns_have_the_parameters_of_torchvision(name: str, parameters: int) -> None:
    assert parameter_bytes(TORCHVISION[name]) == 4 * parameters


def test_gpt2_has_its_published_size() -> None:
    size = TRANSFORMERS["gpt2"]
    operators = count_operators(
        lambda: Transformer(size),
        lambda: torch.zeros(1, 1024, dtype=torch.long),
        loss=counted_token_loss,
        optimizer="adamw",
    )
    matrices = 12 * 12 * 768**2 + 50257 * 768
    attention = 12 * 2 * 2 * 1024 * 1024 * 768 / 2
    assert product_flops(operators, "forward") == pytest.approx(2 * 1024 * matrices + attention)
    assert product_flops(operators, "backward") == pytest.approx(4 * 1024 * matrices + 2.5 * attention)
    assert parameter_bytes(lambda: Transformer(size)) == 4 * 124_439_808
    update = [operator for operator in operators if operator.phase == "update"]
    assert [operator.bytes for operator in update] == [7 * 4 * 124_439_808]


@pytest.mark.slow
def test_counting_a_large_model_allocates_no_weights() -> None:
    """Llama 8B takes 32 GB in fp32."""
    script = (
        "import resource, torch\n"
        "from scalewise.models.operator_counts import count_operators, parameter_bytes\n"
        "from scalewise.models.published_transformers import *\n"
        "size = TRANSFORMERS['llama-3.1-8b']\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "ids = lambda: torch.zeros(1, 8192, dtype=torch.long)\n"
        "count_operators(lambda: Transformer(size), ids, loss=counted_token_loss)\n"
        "print(parameter_bytes(lambda: Transformer(size)))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    stored, grown_KiB = map(int, result.stdout.split())
    assert stored == 4 * 8_030_261_248
    assert grown_KiB < 500_000


def test_an_operator_without_a_rule_is_listed_and_counted_by_bytes() -> None:
    class Inverse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(16))

        def forward(self, data: Tensor) -> Tensor:
            return data @ torch.linalg.qr(self.weight)[1]  # type: ignore[no-any-return]

    operators = count_operators(Inverse, lambda: torch.zeros(4, 16), backward=False)
    assert unknown_operators(operators) == ["aten.linalg_qr"]
    unknown = next(operator for operator in operators if operator.kind == "unknown")
    assert unknown.bytes == 4 * 3 * 16 * 16


def test_autocast_halves_the_products_and_adds_casts() -> None:
    operators = count_operators(lambda: nn.Linear(64, 64), lambda: torch.zeros(32, 64), precision="bf16")
    assert {operator.precision for operator in operators if operator.kind == "matmul"} == {"bf16"}
    assert any(operator.name == "aten._to_copy" for operator in operators)
    assert {o.precision for o in count_operators(lambda: nn.Linear(4, 4), lambda: torch.zeros(2, 4), precision="tf32")
            if o.kind == "matmul"} == {"tf32"}  # fmt: skip


def test_the_layout_reaches_the_convolutions() -> None:
    for layout, expected in (("nchw", False), ("nhwc", True)):
        operators = count_operators(
            lambda: nn.Conv2d(8, 8, 3), lambda: torch.zeros(2, 8, 9, 9), layout=layout, backward=False
        )
        assert [operator.channels_last for operator in operators if operator.kind == "conv"] == [expected]


def test_compilation_fuses_element_wise_chains() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Tanh(), nn.Sigmoid(), nn.Linear(64, 64))

    eager = count_operators(make, lambda: torch.zeros(32, 64), backward=False)
    compiled = count_operators(make, lambda: torch.zeros(32, 64), backward=False, execution="compiled")
    assert [operator.kind for operator in eager] == ["matmul", "elementwise", "elementwise", "elementwise", "matmul"]
    assert [operator.kind for operator in compiled] == ["matmul", "fused", "matmul"]
    assert compiled[1].bytes == 2 * 4 * 32 * 64
    assert totals(compiled)["flops"] == totals(eager)["flops"]


def test_counts_at_two_batches_give_every_other_batch() -> None:
    line = count_batches(TORCHVISION["resnet18"], lambda batch: torch.zeros(batch, 3, 64, 64), loss=class_loss)
    direct = count_operators(TORCHVISION["resnet18"], lambda: torch.zeros(11, 3, 64, 64), loss=class_loss)
    for key, value in totals(direct).items():
        assert totals(line.at(11))[key] == pytest.approx(value), key


class Blocks(nn.Module):
    """Sixteen blocks. `odd`: every second one is used with a ReLU, which its own attributes do not show."""

    def __init__(self, *, odd: bool = False, last: int = 15) -> None:
        super().__init__()
        self.odd, self.last = odd, last
        self.embed = nn.Embedding(100, 8)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(16))
        self.head = nn.Linear(8, 100)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embed(ids)
        for number, block in enumerate(self.blocks):
            hidden = block(hidden).relu() if self.odd and number % 2 else block(hidden)
        last = next(self.blocks[self.last].parameters())
        return self.head(hidden + last.mean())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "few"),
    [
        (lambda: Blocks(last=-1), True),
        (lambda: Blocks(odd=True), False),
        (lambda: Blocks(last=15), False),
        (lambda: Transformer(replace(TRANSFORMERS["llama-2-7b"], layers=18, hidden=64, heads=2, sequence=16)), True),
    ],
    ids=["equal blocks", "blocks that the model treats differently", "a block with a number", "llama"],
)
def test_counting_a_few_of_many_equal_blocks_equals_a_full_count(
    model: Callable[[], nn.Module], few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_counts = []

    def full_count(*step: Any) -> Any:
        full_counts.append(step)
        return FULL_COUNT(*step)

    monkeypatch.setattr(operator_counts, "_recorded_step", full_count)

    def inputs(batch: int) -> Tensor:
        return torch.zeros(batch, 16, dtype=torch.long)

    line = count_batches(model, inputs, loss=lambda logits: logits.float().mean(), optimizer="adam")
    assert bool(full_counts) is not few
    for batch in (2, 4):
        full = count_operators(
            model, partial(inputs, batch), loss=lambda logits: logits.float().mean(), optimizer="adam"
        )
        assert set(merged(line.at(batch))) == set(merged(full))


def test_blocks_that_differ_in_an_attribute_are_not_equal() -> None:
    def blocks(last_rate: float) -> nn.Module:
        return nn.Sequential(nn.ModuleList(nn.Dropout(0.1 if number < 15 else last_rate) for number in range(16)))

    assert equal_blocks(blocks(0.1)) is not None
    assert equal_blocks(blocks(0.2)) is None


def test_inputs_may_be_several_or_named() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, first: Tensor, second: Tensor) -> dict[str, Tensor]:
            return {"loss": self.layer(first + second).sum()}

    named = count_operators(
        Two, lambda: {"first": torch.zeros(2, 4), "second": torch.zeros(2, 4)}, loss=lambda output: output["loss"]
    )
    several = count_operators(Two, lambda: (torch.zeros(2, 4), torch.zeros(2, 4)), loss=lambda output: output["loss"])
    assert named == several


def test_sizes_that_depend_on_data_are_refused_with_a_remedy() -> None:
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, data: Tensor) -> Tensor:
            return self.layer(data[data[:, 0].nonzero()[:, 0]])  # type: ignore[no-any-return]

    with pytest.raises(UserError, match="depends on the data"):
        count_operators(Picks, lambda: torch.zeros(4, 4))


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(UserError, match="unknown optimizer 'adamm'"):
        count_operators(lambda: nn.Linear(2, 2), lambda: torch.zeros(2, 2), optimizer="adamm")


FAST_MEMORY = DeviceLimits("device", "peak", {"fp32": 1.0, "bf16": 4.0}, 1e9)
FAST_PRODUCTS = DeviceLimits("device", "peak", {"fp32": 1e9, "bf16": 1e9}, 100.0)


def test_a_step_without_memory_traffic_takes_its_products() -> None:
    """`linear` has 12.1 million weights: two products each in forward and backward, but no gradient of the input."""
    roofline = workload_roofline(resolve("linear"), FAST_MEMORY, batch=10)
    first_layer = 12_001 * 1000
    flops = 10 * (6 * (12_102_220 - 1120) - 2 * first_layer)
    assert roofline.seconds == pytest.approx(flops / 1e12, rel=0.01)


def test_a_step_without_arithmetic_takes_its_memory_traffic() -> None:
    """Weights are read in forward and written as gradients in backward; Adam reads and writes the rest."""
    roofline = workload_roofline(resolve("linear"), FAST_PRODUCTS, batch=1)
    weights = 4 * 12_102_220
    assert (1 + 1 + 7) * weights / 100e9 == pytest.approx(roofline.seconds, rel=0.02)
    assert roofline.operators[0].phase == "update"


def test_fusing_and_lower_precision_lower_the_bound() -> None:
    fp32 = workload_roofline(resolve("unet:width=8"), DeviceLimits("", "peak", {"fp32": 1.0}, 100.0), batch=2)
    assert fp32.seconds < fp32.unfused_seconds
    bf16 = workload_roofline(resolve("unet:width=8"), FAST_MEMORY, batch=2, precision="bf16")
    assert bf16.seconds < workload_roofline(resolve("unet:width=8"), FAST_MEMORY, batch=2).seconds
