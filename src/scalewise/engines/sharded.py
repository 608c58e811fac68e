"""Engine of sharded training (FSDP2).

forward   | gather layer 0 | forward 0 | gather 1 | forward 1 | ...          gathered weights are freed after use
backward  | (gather 0) backward 1 | reduce 1 | backward 0 | reduce 0 |       each rank keeps its shard of the gradients
update    | each rank updates its own shards, as ordinary tensors
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.tensor import DTensor

from scalewise.core.errors import UserError
from scalewise.engines.base import Engine, Job
from scalewise.engines.model_parts import PartitionedEngine, TensorSplit, chunk_sizes
from scalewise.models.parameters import parameter_used_outside_its_layer
from scalewise.runtime.clock import Clock
from scalewise.runtime.feed import Feed, Shard, kept_bytes, make_feed
from scalewise.runtime.optimizers import make_optimizer, refuse_unless_elementwise
from scalewise.strategies.plan import units_of
from scalewise.strategies.sharded import Sharded

NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def build(_: Sharded, job: Job) -> Engine:
    refuse_unless_elementwise(job.optimizer, "shards")
    model = job.workload.model()
    _refuse_unshardable_parameters(model)
    _refuse_parameters_used_outside_layers(job, model)
    shard_bytes = kept_bytes(model, job.optimizer) // job.place.world
    feed = make_feed(job.data, job.settings.load, job.place.device, shard_bytes)
    return ShardedEngine(job, model, feed)


class ShardedEngine(PartitionedEngine):
    """FSDP2 engine; the optimizer updates plain tensors that share memory with this rank's FSDP2 shards."""

    def __init__(self, job: Job, model: nn.Module, feed: Feed) -> None:
        self.place = place = job.place
        self.parts, self.part = place.world, place.rank
        self.whole_parameter_count = sum(parameter.numel() for parameter in model.parameters())
        self.splits = {
            name: TensorSplit(0, chunk_sizes(parameter.shape[0], place.world))
            for name, parameter in model.named_parameters()
        }
        shard(model, place.device, job.clock)
        super().__init__(job, model, feed)
        self.reduces = place.device.type == "cuda"
        self.sharded = dict(model.named_parameters())
        self.own_shards = {
            name: nn.Parameter(_local_shard(parameter), requires_grad=parameter.requires_grad)
            for name, parameter in self.sharded.items()
        }
        self.optimizer = make_optimizer(job.optimizer, self.own_shards.values(), job.learning_rate)

    def own_tensors(self) -> Mapping[str, Tensor]:
        return self.own_shards

    def _shards(self, rows: Tensor) -> list[Shard]:
        """Give all ranks the same number of micro-batches, because each gathers weights; padding has zero weight."""
        place, parts = self.job.place, self.job.settings.accumulate
        shards = super()._shards(rows)
        count = min(parts, -(-len(rows) // place.world))
        return shards + [Shard(rows[:1], 0.0) for _ in range(count - len(shards))]

    def _update(self) -> None:
        for name, parameter in self.sharded.items():
            self.own_shards[name].grad = None if parameter.grad is None else _local_shard(parameter.grad)
            parameter.grad = None
        super()._update()


def shard(model: nn.Module, device: torch.device, clock: Clock) -> None:
    """Shard the model in place, layer by layer, so that at most one layer is whole on the device at a time.

    Gradients are summed, not averaged, because the losses of shares are weighted already.
    """
    # FSDP2 warns about every layer that returns its input, as the U-Net's layers do with their skips.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    mesh = DeviceMesh.from_group(dist.group.WORLD, device.type)  # type: ignore[arg-type]
    units = [unit for unit in units_of([name for name, _ in model.named_parameters()]) if unit]
    layers = [model.get_submodule(unit) for unit in units]
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=layer is not layers[-1])
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    for layer in [*layers, model]:
        assert isinstance(layer, FSDPModule)
        layer.set_gradient_divide_factor(1.0)
        layer.set_force_sum_reduction_for_comms(True)
        layer.set_custom_reduce_scatter(TimedReduceScatter(clock, device))
        _time_gathers(layer, clock)


# torch 2.13 renamed this function.
_reduce_scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor


class TimedReduceScatter(ReduceScatter):
    """Reduce-scatter that records its phase; on a GPU it overlaps with backward."""

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self.clock = clock
        self.overlaps = device.type == "cuda"

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        if self.overlaps:
            self.clock.note()
        else:
            self.clock.lap("backward")
        work: dist.Work | None = None
        if dist.get_backend(group) == "gloo":
            # gloo's reduce_scatter all-reduces a copy of the input, which its thread keeps for a while.
            dist.all_reduce(input_tensor, op, group)
            output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])
        else:
            work = _reduce_scatter(output_tensor, input_tensor, op, group, async_op)
        if not self.overlaps:
            self.clock.lap("reduce")
        return work


def _time_gathers(layer: nn.Module, clock: Clock) -> None:
    """Record the time of FSDP2's own hooks, which gather weights before a layer's forward and backward."""

    def on_gradients(mark: Callable[[], None]) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: Any, outputs: Any) -> None:
            for tensor in (outputs,) if isinstance(outputs, Tensor) else outputs:
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    tensor.register_hook(lambda _: mark())

        return hook

    def mark(phase: str) -> Callable[[], None]:
        return lambda: clock.lap(phase)

    layer.register_forward_pre_hook(lambda *_: clock.lap("forward"), prepend=True)
    layer.register_forward_pre_hook(lambda *_: clock.lap("gather"))
    layer.register_forward_hook(on_gradients(mark("backward")), prepend=True)
    layer.register_forward_hook(on_gradients(mark("gather")))


@torch.no_grad()
def _local_shard(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local()


def _refuse_unshardable_parameters(model: nn.Module) -> None:
    names = [name for name, _ in model.named_parameters()]
    units = {names[position]: unit for unit, positions in units_of(names).items() for position in positions}
    first: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.dim() == 0:
            raise UserError(f"sharded splits tensors along dimension 0, but '{name}' is a scalar; use mirrored")
        first_name = first.setdefault(parameter, name)
        if first_name != name and units[first_name] != _layer_containing(name, units.values()):
            raise UserError(
                f"sharded gathers layer by layer, but '{name}' is the same as '{first_name}' of another layer; "
                "use mirrored"
            )
    for unit in filter(None, set(units.values())):
        if isinstance(layer := model.get_submodule(unit), NEVER_CALLED):
            raise UserError(
                f"sharded gathers a layer when it is called, but '{unit}' is a {type(layer).__name__}, which is never "
                "called; put its contents into a module of their own, or use mirrored"
            )


def _refuse_parameters_used_outside_layers(job: Job, model: nn.Module) -> None:
    names = [name for name, _ in model.named_parameters()]
    units = {names[position]: unit for unit, positions in units_of(names).items() for position in positions}
    if name := parameter_used_outside_its_layer(job.workload, job.data, units):
        kind = type(model.get_submodule(units[name])).__name__
        raise UserError(
            f"sharded gathers a layer when it is called, but the model uses '{name}' without calling "
            f"'{units[name]}' ({kind}); call this layer, or use mirrored"
        )


def _layer_containing(name: str, units: Iterable[str]) -> str:
    return max((unit for unit in units if unit and name.startswith(f"{unit}.")), key=len, default="")
