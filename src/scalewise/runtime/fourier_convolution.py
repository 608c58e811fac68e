"""Convolutions by fast Fourier transforms, for long kernels: equal to direct ones up to rounding.

A 1-D signal is cut into overlapping blocks (overlap-save), whose transforms fit the caches:

    signal   |---------- block 0 ----------|
                                |---------- block 1 ----------|          neighbours overlap by kernel - 1 samples
    outputs  |--- outputs 0 ----|--- outputs 1 ----|

A 2-D signal is one block. Only transforms, products and weights' transforms are kept during an operation; backward
transforms inputs and weights again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2, prod
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from scalewise.core.errors import UserError

LEAST_TAPS = 16
"""Number of weights per channel pair from which a kernel counts as long."""
PASSES = 5.0
"""Cost of a sample of a block beside the transform's log2(block), for reading, multiplying and writing it."""
TIMED_RUNS = 3


def use_fourier_convolutions(
    model: nn.Module, choice: Literal["fft", "auto"], inputs: Callable[[], Tensor]
) -> list[str]:
    """Replace convolutions with long kernels in place: all of them, or with 'auto' those that run faster.

    `inputs` returns a batch. Return a note that names the layers.
    """
    layers = {name: layer for name, layer in model.named_modules() if is_supported(layer)}
    if not layers:
        if choice == "auto":
            return []
        raise UserError(
            f"--convolutions fft needs a 1-D or 2-D convolution with a kernel of at least {LEAST_TAPS} elements and "
            "without stride, dilation and groups, and this model has none; use --convolutions direct"
        )
    chosen = layers if choice == "fft" else _faster_by_fourier(model, layers, inputs)
    for layer in chosen.values():
        _replace(layer)
    names = f": {', '.join(chosen)}" if chosen else ""
    return [f"{len(chosen)} of {len(layers)} convolutions with long kernels use Fourier transforms{names}"]


def is_supported(layer: nn.Module) -> bool:
    """Whether a layer is a convolution with a long kernel, without stride, dilation and groups."""
    return bool(
        type(layer) in (nn.Conv1d, nn.Conv2d)
        and set(layer.stride) == {1}  # type: ignore[arg-type]
        and set(layer.dilation) == {1}  # type: ignore[arg-type]
        and layer.groups == 1
        and prod(layer.kernel_size) >= LEAST_TAPS  # type: ignore[arg-type]
    )


def _replace(layer: nn.Module) -> None:
    layer.__class__ = {nn.Conv1d: FourierConv1d, nn.Conv2d: FourierConv2d}[type(layer)]  # type: ignore[index]


def _faster_by_fourier(
    model: nn.Module, layers: dict[str, nn.Module], inputs: Callable[[], Tensor]
) -> dict[str, nn.Module]:
    """Time forward and backward of each layer with both algorithms, on inputs of the shape that the model gives it."""
    received: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
        received[layer] = arguments[0].detach()

    hooks = [layer.register_forward_pre_hook(keep) for layer in layers.values()]
    training = model.training
    model.eval()  # keeps batch norm and random numbers unchanged
    with torch.no_grad():
        model(inputs())
    model.train(training)
    for hook in hooks:
        hook.remove()
    faster = {}
    for name, layer in layers.items():
        if layer not in received:
            continue
        example = received.pop(layer).requires_grad_(name != next(iter(layers)))
        direct = _seconds(layer, example)
        kind = layer.__class__
        _replace(layer)
        if _seconds(layer, example) < direct:
            faster[name] = layer
        layer.__class__ = kind
        layer.zero_grad()
    return faster


def _seconds(layer: nn.Module, example: Tensor) -> float:
    """Least seconds of forward and backward."""
    times = []
    for _ in range(1 + TIMED_RUNS):
        _wait_for(example.device)
        started = perf_counter()
        layer(example).sum().backward()
        _wait_for(example.device)
        times.append(perf_counter() - started)
    return min(times[1:])


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class FourierConv1d(nn.Conv1d):
    """Conv1d computed by Fourier transforms."""

    def forward(self, inputs: Tensor) -> Tensor:
        return _forward(self, inputs)


class FourierConv2d(nn.Conv2d):
    """Conv2d computed by Fourier transforms."""

    def forward(self, inputs: Tensor) -> Tensor:
        return _forward(self, inputs)


def _forward(layer: nn.Conv1d | nn.Conv2d, inputs: Tensor) -> Tensor:
    dimensions = len(layer.kernel_size)
    batched = inputs if inputs.dim() == dimensions + 2 else inputs.unsqueeze(0)
    # Pairs (before, after) from the last dimension to the first, as functional.pad takes them.
    padding = list(layer._reversed_padding_repeated_twice)
    if layer.padding_mode != "zeros":
        batched = functional.pad(batched, padding, mode=layer.padding_mode)
        padding = [0] * len(padding)
    kind = batched.device.type
    half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    outputs: Tensor = convolve(batched.to(layer.weight.dtype), layer.weight, padding)
    if layer.bias is not None:
        outputs = outputs + layer.bias.view(-1, *[1] * dimensions)
    if half and outputs.dtype == torch.float32:
        outputs = outputs.to(half)
    return outputs if inputs.dim() == dimensions + 2 else outputs.squeeze(0)


@torch.library.custom_op("scalewise::convolve", mutates_args=())
def convolve(inputs: Tensor, weight: Tensor, padding: list[int]) -> Tensor:
    """Cross-correlate [batch, channels, *sizes] with [outputs, channels, *kernel], as torch's convolutions do."""
    return _Blocks(inputs, weight, padding).forward()


@convolve.register_fake
def _(inputs: Tensor, weight: Tensor, padding: list[int]) -> Tensor:
    return inputs.new_empty(inputs.shape[0], weight.shape[0], *_output_sizes(inputs, weight, padding))


@torch.library.custom_op("scalewise::convolve_backward", mutates_args=())
def convolve_backward(
    gradient: Tensor, inputs: Tensor, weight: Tensor, padding: list[int], need_inputs: bool, need_weight: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradients of inputs and weight; an empty tensor for one that is not needed."""
    return _Blocks(inputs, weight, padding).backward(gradient, need_inputs, need_weight)


@convolve_backward.register_fake
def _(
    gradient: Tensor,  # noqa: ARG001
    inputs: Tensor,
    weight: Tensor,
    padding: list[int],  # noqa: ARG001
    need_inputs: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    return (
        inputs.new_empty(inputs.shape if need_inputs else 0),
        weight.new_empty(weight.shape if need_weight else 0),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG001
    signal, weight, ctx.padding = inputs
    ctx.save_for_backward(signal, weight)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    need_inputs, need_weight, _ = ctx.needs_input_grad
    of_inputs, of_weight = convolve_backward(gradient, *ctx.saved_tensors, ctx.padding, need_inputs, need_weight)
    return of_inputs if need_inputs else None, of_weight if need_weight else None, None


convolve.register_autograd(_gradients, setup_context=_save)


def _output_sizes(inputs: Tensor, weight: Tensor, padding: list[int]) -> list[int]:
    kernel, sizes = weight.shape[2:], inputs.shape[2:]
    pairs = _pairs(padding)
    return [size + sum(pair) - taps + 1 for size, taps, pair in zip(sizes, kernel, pairs, strict=True)]


def _pairs(padding: list[int]) -> list[tuple[int, int]]:
    """Padding before and after each dimension, from the first dimension to the last."""
    return list(zip(padding[::2], padding[1::2], strict=True))[::-1]


class _Blocks:
    """One convolution, in blocks along the last dimension. Transforms have the shape [batch, channels, block, bins]."""

    def __init__(self, inputs: Tensor, weight: Tensor, padding: list[int]) -> None:
        self.inputs, self.weight, self.pairs = inputs, weight, _pairs(padding)
        self.kernel = weight.shape[2:]
        self.outputs = _output_sizes(inputs, weight, padding)
        padded = [size + taps - 1 for size, taps in zip(self.outputs, self.kernel, strict=True)]
        self.count, last = (1, fast_size(padded[-1])) if len(padded) > 1 else block_of(padded[0], self.kernel[0])
        self.sizes = [*map(fast_size, padded[:-1]), last]
        self.dimensions = list(range(-len(padded), 0))
        self.hop = last - self.kernel[-1] + 1 if self.count > 1 else self.outputs[-1]
        """Outputs per block."""

    def forward(self) -> Tensor:
        signal, weight = self._transformed_inputs(), self._transformed_weight().conj()
        product = _contract(signal, weight)
        outputs = _cut(self._signal(product), [*self.outputs[:-1], self.hop])
        if self.count == 1:
            return outputs.squeeze(2).contiguous()
        batch, channels = outputs.shape[:2]
        return outputs.reshape(batch, channels, self.count * self.hop)[..., : self.outputs[-1]].contiguous()

    def backward(self, gradient: Tensor, need_inputs: bool, need_weight: bool) -> tuple[Tensor, Tensor]:
        transformed = self._transform(self._outputs_in_blocks(gradient))
        of_inputs, of_weight = self.inputs.new_empty(0), self.weight.new_empty(0)
        if need_weight:
            summed = _sum_of_products(transformed.conj(), self._transformed_inputs())
            taps = _cut(self._signal(summed.unsqueeze(2)), self.kernel)
            of_weight = taps.squeeze(2).contiguous()
        if need_inputs:
            product = _contract(transformed, self._transformed_weight().transpose(0, 1))
            of_inputs = self._added(self._signal(product))
        return of_inputs, of_weight

    def _transformed_inputs(self) -> Tensor:
        signal, (before, after) = self.inputs, self.pairs[-1]
        if self.count == 1:
            padding = [side for pair in reversed(self.pairs) for side in pair]
            return self._transform(functional.pad(signal, padding).unsqueeze(2))
        missing = (self.count - 1) * self.hop + self.sizes[-1] - signal.shape[-1] - before
        blocks = functional.pad(signal, (before, max(missing, after))).unfold(-1, self.sizes[-1], self.hop)
        return self._transform(blocks[:, :, : self.count])

    def _transformed_weight(self) -> Tensor:
        return self._transform(self.weight.unsqueeze(2)).squeeze(2)

    def _outputs_in_blocks(self, gradient: Tensor) -> Tensor:
        if self.count == 1:
            return gradient.unsqueeze(2)
        padded = functional.pad(gradient, (0, self.count * self.hop - gradient.shape[-1]))
        blocks: Tensor = padded.unflatten(-1, (self.count, self.hop))
        return blocks

    def _added(self, blocks: Tensor) -> Tensor:
        """Overlap-add: sum the blocks where they overlap, and cut the padding off."""
        starts = [before for before, _ in self.pairs]
        sizes = self.inputs.shape[2:]
        if self.count == 1:
            return _cut(blocks.squeeze(2), sizes, starts).contiguous()
        batch, channels = blocks.shape[:2]
        summed = blocks.new_zeros(batch, channels, self.count + 1, self.hop)
        summed[:, :, :-1] = blocks[..., : self.hop]
        summed[:, :, 1:, : self.kernel[-1] - 1] += blocks[..., self.hop :]
        return _cut(summed.flatten(-2), sizes, starts).contiguous()

    def _transform(self, signal: Tensor) -> Tensor:
        transformed: Tensor = torch.fft.rfftn(signal, s=self.sizes, dim=self.dimensions)
        return transformed.flatten(3)

    def _signal(self, transformed: Tensor) -> Tensor:
        bins = [*self.sizes[:-1], self.sizes[-1] // 2 + 1]
        signal: Tensor = torch.fft.irfftn(transformed.unflatten(-1, bins), s=self.sizes, dim=self.dimensions)
        return signal


def _cut(tensor: Tensor, sizes: Sequence[int], starts: Sequence[int] | None = None) -> Tensor:
    """Cut the last dimensions to sizes."""
    starts = starts or [0] * len(sizes)
    for dimension, (start, size) in enumerate(zip(starts, sizes, strict=True), start=-len(sizes)):
        tensor = tensor.narrow(dimension, start, size)
    return tensor


def _contract(signal: Tensor, weight: Tensor) -> Tensor:
    """Sum over channels: [batch, channels, block, bin] x [outputs, channels, bin] -> [batch, outputs, block, bin]."""
    batch, channels, blocks, bins = signal.shape
    if channels == 1:
        return signal * weight.transpose(0, 1).unsqueeze(2)
    rows = signal.permute(3, 0, 2, 1).reshape(bins, batch * blocks, channels)
    product: Tensor = rows @ weight.permute(2, 1, 0)
    return product.view(bins, batch, blocks, -1).permute(1, 3, 2, 0)


def _sum_of_products(gradient: Tensor, signal: Tensor) -> Tensor:
    """Sum over batch and blocks: [outputs, channels, bin]."""
    if signal.shape[1] == 1:
        return (gradient * signal).sum((0, 2)).unsqueeze(1)
    columns = gradient.permute(3, 1, 0, 2).flatten(2)
    rows = signal.permute(3, 0, 2, 1).flatten(1, 2)
    return (columns @ rows).permute(1, 2, 0)


def block_of(length: int, taps: int) -> tuple[int, int]:
    """Choose the number of blocks and their size for a padded signal: the cheapest that cover it."""
    whole = fast_size(length)
    candidates = [(1, whole)]
    outputs = length - taps + 1
    size = 2 ** max(6, (2 * taps - 1).bit_length())
    while size < whole:
        candidates += [(-(-outputs // (block - taps + 1)), block) for block in (size, size * 3 // 2)]
        size *= 2
    return min(candidates, key=lambda candidate: candidate[0] * candidate[1] * (log2(candidate[1]) + PASSES))


def fast_size(size: int) -> int:
    """Return the smallest even number of at least `size` whose prime factors are 2, 3 and 5."""
    best: int = 2 ** max(1, (size - 1).bit_length())
    fives = 1
    while fives < best:
        threes = fives
        while threes < best:
            even = 2 * threes
            while even < size:
                even *= 2
            best = min(best, even)
            threes *= 3
        fives *= 5
    return best
