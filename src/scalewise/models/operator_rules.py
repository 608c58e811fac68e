"""Counting rules: flops, bytes and kernels of one ATen operator call on fake tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from scalewise.predict.operators import Kind, Operator, Phase, Precision

PRECISIONS: dict[torch.dtype, Precision] = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}
FREE = frozenset(
    {
        "aten.detach", "aten.alias", "aten._unsafe_view", "aten._reshape_alias", "aten.empty", "aten.empty_like",
        "aten.new_empty", "aten.new_empty_strided", "aten.empty_strided", "aten.as_strided_", "aten.lift_fresh",
        "aten.set_", "aten.resize_", "aten.sym_size", "aten.is_same_size", "aten._local_scalar_dense",
        "aten.squeeze_", "aten.unsqueeze_", "aten.transpose_", "aten.t_", "aten.detach_",
    }
)  # fmt: skip
"""Operators that launch no kernel although their schema does not mark them as views."""


@dataclass(frozen=True)
class KernelCost:
    """Costs of one kernel, or of a group of equal kernels."""

    kind: Kind
    precision: Precision
    flops: float
    bytes_read: float
    bytes_written: float
    kernels: float = 1.0
    shape: tuple[float, ...] = ()
    window: tuple[int, ...] = ()
    image: tuple[int, ...] = ()
    stride: int = 1
    role: Any = ""
    channels_last: bool = False


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield all tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def stored_bytes(tensor: Tensor) -> int:
    """Bytes of memory of a tensor; an expanded dimension counts once."""
    elements = math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size)
    return int(elements) * tensor.element_size()


def is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(value.alias_info is not None and not value.alias_info.is_write for value in returns)


def precision_of(tensors: Sequence[Tensor]) -> Precision:
    """Precision of the first floating-point tensor; integer operators count as fp32."""
    return next((PRECISIONS[tensor.dtype] for tensor in tensors if tensor.dtype in PRECISIONS), "fp32")


def costs_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> list[KernelCost]:
    """Return the kernels of one operator call; none for views and allocations."""
    name = name_of(func)
    if is_view(func) or name in FREE or name.startswith("prim."):
        return []
    if name in MATRIX_PRODUCTS:
        return [_matrix_product(name, args, out)]
    if name == "aten.convolution":
        return [_convolution_forward(args, out)]
    if name == "aten.convolution_backward":
        return _convolution_backward(args, out)
    if "scaled_dot_product" in name and "attention" in name:
        return [_attention_backward(args, kwargs)] if "backward" in name else [_attention_forward(args, kwargs, out)]
    inputs, outputs = list(tensors_in((args, kwargs))), list(tensors_in(out))
    for kind, rule in RULES:
        if name in rule:
            return [rule[name](kind, inputs, outputs)]
    if torch.Tag.pointwise in func.tags or name.removesuffix("_") in ELEMENTWISE:
        return [_by_bytes("elementwise", inputs, outputs)]
    return [_by_bytes("unknown", inputs, outputs)]


def name_of(func: Any) -> str:
    """Return the operator's name without its overload: 'aten.mm' for `aten.mm.default`."""
    return str(func._overloadpacket)


def _read(tensors: Sequence[Tensor]) -> float:
    return float(sum(map(stored_bytes, tensors)))


def _by_bytes(kind: Kind, inputs: Sequence[Tensor], outputs: Sequence[Tensor], kernels: float = 1.0) -> KernelCost:
    """Costs of an operator that reads every input once and writes every output once."""
    elements = max((tensor.numel() for tensor in (*inputs, *outputs)), default=0)
    return KernelCost(kind, precision_of([*outputs, *inputs]), float(elements), _read(inputs), _read(outputs), kernels)


Rule = Callable[[Kind, Sequence[Tensor], Sequence[Tensor]], KernelCost]


def _plain(kind: Kind, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelCost:
    return _by_bytes(kind, inputs, outputs)


def _write_only(kind: Kind, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelCost:
    del inputs
    return _by_bytes(kind, [], outputs)


def _gathered(kind: Kind, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelCost:
    """Costs of an embedding, which reads only the selected rows of its table."""
    read = _read(outputs) + _read([tensor for tensor in inputs if not tensor.dtype.is_floating_point])
    return KernelCost(kind, precision_of(outputs), 0.0, read, _read(outputs))


def _scattered(kind: Kind, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelCost:
    """Costs of backward of an embedding: clear the gradient, sort the indices, add the selected rows."""
    rows = _read(inputs)
    return KernelCost(kind, precision_of(outputs), rows / 4, 2 * rows, _read(outputs) + rows, kernels=5)


def _normalized(passes_read: float, kernels: float) -> Rule:
    """Costs of a normalisation that reads its largest tensors `passes_read` times in total."""

    def rule(kind: Kind, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelCost:
        largest = max(map(stored_bytes, (*inputs, *outputs)))
        elements = max(tensor.numel() for tensor in (*inputs, *outputs))
        big = next(tensor for tensor in (*inputs, *outputs) if stored_bytes(tensor) == largest)
        return KernelCost(
            kind,
            precision_of(inputs),
            8.0 * elements,
            passes_read * largest,
            _read(outputs),
            kernels,
            channels_last=_is_channels_last(big),
        )

    return rule


def _cleared(kind: Kind, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> KernelCost:
    """Costs of an operator that clears its output before it writes it."""
    cost = _by_bytes(kind, inputs, outputs, kernels=2)
    channels_last = any(map(_is_channels_last, outputs))
    return KernelCost(
        kind, cost.precision, cost.flops, cost.bytes_read, 2 * cost.bytes_written, 2, channels_last=channels_last
    )


def _named(names: str, rule: Rule = _plain) -> dict[str, Rule]:
    return {f"aten.{name}": rule for name in names.split()}


RULES: tuple[tuple[Kind, dict[str, Rule]], ...] = (
    ("normalization", {
        **_named("native_batch_norm cudnn_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional "
                 "_batch_norm_with_update _native_batch_norm_legit_no_training", _normalized(2, 1)),
        **_named("native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward", _normalized(4, 1)),
        **_named("native_layer_norm _fused_rms_norm", _normalized(1, 1)),
        **_named("native_layer_norm_backward _fused_rms_norm_backward", _normalized(4, 3)),
        **_named("native_group_norm", _normalized(2, 2)),
        **_named("native_group_norm_backward", _normalized(4, 3)),
        **_named("renorm linalg_vector_norm _foreach_norm"),
    }),
    ("softmax", _named("_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax "
                       "logsumexp")),
    ("loss", {
        **_named("nll_loss_forward nll_loss2d_forward mse_loss binary_cross_entropy smooth_l1_loss huber_loss "
                 "mse_loss_backward binary_cross_entropy_backward smooth_l1_loss_backward huber_loss_backward "
                 "binary_cross_entropy_with_logits"),
        **_named("nll_loss_backward nll_loss2d_backward", _cleared),
        **_named("_ctc_loss _ctc_loss_backward"),
    }),
    ("pooling", {
        **_named("max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d "
                 "_adaptive_avg_pool3d adaptive_max_pool2d avg_pool2d_backward avg_pool3d_backward "
                 "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward upsample_nearest2d upsample_bilinear2d "
                 "upsample_nearest2d_backward upsample_bilinear2d_backward _upsample_nearest_exact2d "
                 "upsample_nearest1d upsample_linear1d upsample_bicubic2d grid_sampler_2d"),
        **_named("max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward",
                 _cleared),
    }),
    ("embedding", {
        **_named("embedding index_select gather index", _gathered),
        **_named("embedding_dense_backward index_put index_put_ _index_put_impl_ index_add index_add_ scatter scatter_ "
                 "scatter_add scatter_add_ gather_backward select_scatter slice_scatter", _scattered),
    }),
    ("reduction", _named("sum mean amax amin max min prod var std var_mean std_mean argmax argmin norm any all cumsum "
                         "cumprod topk sort bincount count_nonzero histc")),
    ("copy", {
        **_named("_to_copy clone copy_ copy cat stack contiguous roll flip constant_pad_nd reflection_pad1d "
                 "reflection_pad2d repeat repeat_interleave tril triu tril_ triu_ select_backward slice_backward "
                 "split_with_sizes_copy unfold_backward im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle "
                 "native_channel_shuffle diagonal_backward _pad_packed_sequence _pack_padded_sequence one_hot"),
        **_named("zeros zeros_like ones ones_like full full_like fill fill_ zero_ arange linspace new_zeros new_ones "
                 "new_full scalar_tensor eye rand randn randint rand_like randn_like normal_ uniform_ random_ "
                 "bernoulli_ exponential_ randperm", _write_only),
    }),
)  # fmt: skip
ELEMENTWISE = frozenset(
    _named(
        "native_dropout native_dropout_backward bernoulli gelu gelu_backward silu silu_backward where masked_fill "
        "rrelu_with_noise leaky_relu_backward elu_backward hardtanh_backward hardswish_backward hardsigmoid_backward "
        "glu glu_backward softplus_backward _prelu_kernel _prelu_kernel_backward polar view_as_complex isnan lerp "
        "addcmul addcdiv clamp_min complex real imag _conj_physical"
    )
)
MATRIX_PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.addmv", "aten.mv", "aten.dot"})


def _matrix_product(name: str, args: tuple[Any, ...], out: Tensor) -> KernelCost:
    first, second = (args[1], args[2]) if name in ("aten.addmm", "aten.baddbmm", "aten.addmv") else (args[0], args[1])
    batch = first.shape[0] if first.dim() == 3 else 1
    k = first.shape[-1]
    n = second.shape[-1] if second.dim() > 1 else 1
    m = first.numel() // (batch * k) if batch * k else 0
    read = _read([first, second])
    return KernelCost(
        "matmul", precision_of([first]), 2.0 * batch * m * n * k, read, _read([out]), shape=(batch, m, n, k)
    )


def _is_channels_last(tensor: Tensor) -> bool:
    if tensor.dim() != 4 or tensor.shape[1] == 1 or tensor.shape[2] * tensor.shape[3] == 1:
        return False
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _convolution_cost(
    images: Tensor, weight: Tensor, out: Tensor, groups: int, stride: Sequence[int], transposed: bool, role: str
) -> KernelCost:
    """Costs of a convolution, as a matrix product. `images` is its input and `out` its output."""
    if transposed:  # a transposed convolution is the input gradient of the convolution from `out` to `images`
        images, out = out, images
        role = {"": "input gradient", "input gradient": ""}.get(role, role)
    window = tuple(int(size) for size in weight.shape[2:])
    inputs, outputs = images.shape[1] // groups, out.shape[1] // groups
    positions = out.numel() // out.shape[1]
    pixels = images.numel() // images.shape[1]
    k = inputs * math.prod(window)
    flops = 2.0 * groups * positions * outputs * k
    shape: tuple[float, float, float]
    if role == "":
        shape, read, written = (positions, outputs, k), [images, weight], [out]
    elif role == "input gradient":
        shape, read, written = (pixels, inputs, flops / (2.0 * groups * pixels * inputs)), [out, weight], [images]
    else:
        shape, read, written = (k, outputs, positions), [out, images], [weight]
    return KernelCost(
        "conv",
        precision_of([images]),
        flops,
        _read(read),
        _read(written),
        shape=(groups, *shape),
        window=window,
        image=tuple(int(size) for size in out.shape[2:]),
        stride=max(stride, default=1),
        role=role,
        channels_last=_is_channels_last(images) or _is_channels_last(out),
    )


def _convolution_forward(args: tuple[Any, ...], out: Tensor) -> KernelCost:
    images, weight, _bias, stride, _padding, _dilation, transposed, _output_padding, groups = args
    return _convolution_cost(images, weight, out, groups, stride, transposed, "")


def _convolution_backward(args: tuple[Any, ...], out: Sequence[Tensor | None]) -> list[KernelCost]:
    """Costs of backward of a convolution: one kernel per gradient that the output mask selects."""
    gradient, images, weight, _sizes, stride, _padding, _dilation, transposed, _output_padding, groups, mask = args
    costs = [
        _convolution_cost(images, weight, gradient, groups, stride, transposed, role)
        for role, wanted in zip(("input gradient", "weight gradient"), mask, strict=False)
        if wanted
    ]
    if mask[2]:
        bias = out[2]
        assert bias is not None
        costs.append(_by_bytes("reduction", [gradient], [bias]))
    return costs


def _attention_flops(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> float:
    *batch, rows, width = query.shape
    columns = key.shape[-2]
    return 2.0 * math.prod(batch) * rows * columns * (width + value.shape[-1]) * (0.5 if causal else 1.0)


def _attention_shape(query: Tensor, key: Tensor) -> tuple[float, ...]:
    *batch, rows, width = query.shape
    return (float(math.prod(batch)), float(rows), float(key.shape[-2]), float(width))


def _is_causal(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("is_causal", any(value is True for value in args)))


def _attention_forward(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> KernelCost:
    query, key, value = args[:3]
    mask = list(tensors_in((args[3:], kwargs)))
    flops = _attention_flops(query, key, value, _is_causal(args, kwargs))
    read, written = _read([query, key, value, *mask]), _read(list(tensors_in(out)))
    return KernelCost("attention", precision_of([query]), flops, read, written, shape=_attention_shape(query, key))


def _attention_backward(args: tuple[Any, ...], kwargs: dict[str, Any]) -> KernelCost:
    """Costs of backward of attention: five matrix products instead of two, because the scores are recomputed."""
    gradient, query, key, value = args[:4]
    flops = 2.5 * _attention_flops(query, key, value, _is_causal(args, kwargs))
    read, written = _read([gradient, query, key, value, gradient]), _read([query, key, value])
    return KernelCost(
        "attention",
        precision_of([query]),
        flops,
        read,
        written,
        kernels=3,
        shape=_attention_shape(query, key),
        role="input gradient",
    )


RECURRENT = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Gates by the name of the function that `torch.nn` calls."""


class TakesOperators(Protocol):
    phase: Phase | None

    def add(self, operator: Operator) -> None: ...


def recurrent_layer(name: str, args: Sequence[Any], recorder: Any) -> tuple[Tensor, ...]:
    """Result of `torch.lstm`, `torch.gru` or `torch.rnn_*` on fake tensors, recorded as fused kernels."""
    packed = isinstance(args[1], Tensor) and not isinstance(args[3], bool)
    if packed:  # (data, batch_sizes, hx, params, has_biases, layers, dropout, train, bidirectional)
        data, batch_sizes, hidden, parameters, _biases, layers, _dropout, _train, bidirectional = args
        steps = len(batch_sizes)
        rows = data.shape[0] / steps
        lead: tuple[int, ...] = (data.shape[0],)
    else:
        data, hidden, parameters, _biases, layers, _dropout, _train, bidirectional, batch_first = args
        steps = data.shape[1 if batch_first else 0]
        rows = float(data.shape[0 if batch_first else 1])
        lead = tuple(data.shape[:2])
    states = tuple(hidden) if isinstance(hidden, (tuple, list)) else (hidden,)
    directions = 2 if bidirectional else 1
    features = states[0].shape[-1] * directions
    recorded = _Recorded(recorder, name, data, parameters, steps, rows, layers, directions, states[0].shape[-1])
    output, *final = _FusedRecurrent.apply(recorded, (*lead, features), data, *states, *parameters)  # type: ignore[no-untyped-call]
    return (output, *final)


class _Recorded:
    """Records the kernels of one call, forward and later backward."""

    def __init__(
        self,
        recorder: Any,
        name: str,
        data: Tensor,
        parameters: Sequence[Tensor],
        steps: int,
        rows: float,
        layers: int,
        directions: int,
        hidden: int,
    ) -> None:
        self.recorder, self.name, self.steps, self.rows = recorder, name, steps, rows
        self.layers, self.directions, self.hidden = layers, directions, hidden
        self.inputs = data.shape[-1]
        self.gates = RECURRENT[name]
        self.itemsize = data.element_size()
        self.precision = PRECISIONS[data.dtype]
        self.parameter_bytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)

    def forward(self) -> None:
        self._record(products=1, role="")

    def backward(self) -> None:
        self._record(products=2, role="input gradient")

    def _record(self, products: int, role: Any) -> None:
        """Per layer and direction: one product for all inputs, then one product and one gate kernel per time step."""
        columns = self.gates * self.hidden
        tokens = self.rows * self.steps
        for layer in range(self.layers):
            inputs = self.inputs if layer == 0 else self.hidden * self.directions
            values = self.itemsize * tokens
            self._add(
                "input product",
                "matmul",
                2.0 * tokens * columns * inputs * products * self.directions,
                values * (inputs * products + columns * (products - 1)) + self.itemsize * inputs * columns,
                values * (columns + inputs * (products - 1)),
                kernels=products * self.directions,
                calls=1.0 if layer == 0 else 0.0,
                shape=(1.0, tokens, float(columns), float(inputs)),
                role=role,
            )
            self._add(
                "recurrence",
                "recurrent",
                2.0 * tokens * columns * self.hidden * products * self.directions,
                values * columns * self.directions * products + self.itemsize * self.hidden * columns,
                values * self.hidden * self.directions * 2 * products,
                kernels=2.0 * self.steps * self.directions,
                calls=0.0,
                shape=(float(self.steps * self.directions), self.rows, float(columns), float(self.hidden)),
                role=role,
            )

    def _add(self, part: str, kind: Any, flops: float, read: float, written: float, **fields: Any) -> None:
        self.recorder.add(
            Operator(
                name=f"torch.{self.name} {part}",
                kind=kind,
                phase=self.recorder.phase or "forward",
                precision=self.precision,
                flops=flops,
                bytes_read=float(read),
                bytes_written=float(written),
                **fields,
            )
        )


class _FusedRecurrent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recorded: _Recorded, shape: tuple[int, ...], data: Tensor, *tensors: Tensor) -> Any:
        ctx.recorded = recorded
        ctx.save_for_backward(data, *tensors)
        states = tensors[: 2 if recorded.name == "lstm" else 1]
        recorded.forward()
        return (data.new_empty(shape), *(torch.empty_like(state) for state in states))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ARG004
        ctx.recorded.backward()
        saved: Sequence[Tensor] = ctx.saved_tensors
        return (None, None, *(torch.empty_like(tensor) if tensor.requires_grad else None for tensor in saved))
