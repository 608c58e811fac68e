"""Sharded training on torch's FSDP2.

forward   | gather layer 0 | forward 0 | gather 1 | forward 1 | ...          a layer's weights are given up after it
backward  | (gather 0) backward 1 | reduce 1 | backward 0 | reduce 0 |       each rank keeps its shard of the gradients
update    | of every rank's own shards, as ordinary tensors
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

from scalewise.engines.engine import Engine, Job
from scalewise.engines.parts import HoldsParts, Pieces, chunk_sizes
from scalewise.errors import UserError
from scalewise.step.clock import Clock
from scalewise.step.feed import Feed, kept_bytes, make_feed
from scalewise.step.optimizers import make_optimizer, refuse_unless_elementwise
from scalewise.step.shards import Shard, shards_of
from scalewise.strategies.sharded import Sharded
from scalewise.strategies.units import units_of
from scalewise.workloads.used_outside import used_outside

NEVER_CALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def build(_: Sharded, job: Job) -> Engine:
    if job.settings.execution == "graph":
        raise UserError("--execution graph is not possible: steps between ranks cannot be captured; use eager or auto")
    refuse_unless_elementwise(job.optimizer, "shards")
    model = job.workload.model()
    _refuse_what_cannot_be_sharded(model)
    _refuse_uses_without_a_call(job, model)
    own = kept_bytes(model, job.optimizer) // job.place.world
    feed = make_feed(job.data, job.settings.load, job.place.device, own)
    return ShardedEngine(job, model, feed)


class ShardedEngine(HoldsParts):
    """The optimizer works on this rank's shards, which share memory with those that FSDP2 gathers from."""

    def __init__(self, job: Job, model: nn.Module, feed: Feed) -> None:
        self.place = place = job.place
        self.parts, self.part = place.world, place.rank
        self.counted = sum(parameter.numel() for parameter in model.parameters())
        self.pieces = {
            name: Pieces(0, chunk_sizes(parameter.shape[0], place.world))
            for name, parameter in model.named_parameters()
        }
        shard(model, place.device, job.clock)
        super().__init__(job, model, feed)
        self.reduces = place.device.type == "cuda"
        self.sharded = dict(model.named_parameters())
        self.own = {
            name: nn.Parameter(_local(parameter), requires_grad=parameter.requires_grad)
            for name, parameter in self.sharded.items()
        }
        self.optimizer = make_optimizer(job.optimizer, self.own.values(), job.learning_rate)

    def held(self) -> Mapping[str, Tensor]:
        return self.own

    def start_epoch(self, batches: list[Tensor]) -> None:
        """Every part is gathered for, so all ranks compute in as many, the last of which may have no weight."""
        place, parts = self.job.place, self.job.settings.accumulate
        shards = [shards_of(rows, place.world, place.rank, parts) for rows in batches]
        for rows, mine in zip(batches, shards, strict=True):
            most = min(parts, -(-len(rows) // place.world))
            mine += [Shard(rows[:1], 0.0) for _ in range(most - len(mine))]
        feed = self.feed.batches([shard.rows for mine in shards for shard in mine])
        told = [(shard.weight, shard is mine[-1]) for mine in shards for shard in mine]
        self.pending = ((batch, *what) for batch, what in zip(feed, told, strict=True))

    def _update(self) -> None:
        for name, parameter in self.sharded.items():
            self.own[name].grad = None if parameter.grad is None else _local(parameter.grad)
            parameter.grad = None
        super()._update()


def shard(model: nn.Module, device: torch.device, clock: Clock) -> None:
    """In place, layer by layer: no more than one of them is whole on the device at a time.

    Gradients are summed and not averaged, which is what weighted shares of a batch want.
    """
    # Said of every layer that hands on what it was given, as those of the U-Net do with skips.
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


# It had another name before torch 2.13.
_reduce_scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor


class TimedReduceScatter(ReduceScatter):
    """Tells the clock. On a GPU it runs beside backward, which ends where the last one starts."""

    def __init__(self, clock: Clock, device: torch.device) -> None:
        self.clock = clock
        self.beside = device.type == "cuda"

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        if self.beside:
            self.clock.note()
        else:
            self.clock.lap("backward")
        work: dist.Work | None = None
        if dist.get_backend(group) == "gloo":
            # Which would do the same with a copy of the input, that its thread then keeps for a while.
            dist.all_reduce(input_tensor, op, group)
            output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])
        else:
            work = _reduce_scatter(output_tensor, input_tensor, op, group, async_op)
        if not self.beside:
            self.clock.lap("reduce")
        return work


def _time_gathers(layer: nn.Module, clock: Clock) -> None:
    """Marks right before and right after what FSDP2 itself does before a layer's forward and backward."""

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
def _local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local()


def _refuse_what_cannot_be_sharded(model: nn.Module) -> None:
    names = [name for name, _ in model.named_parameters()]
    units = {names[position]: unit for unit, positions in units_of(names).items() for position in positions}
    first: dict[nn.Parameter, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.dim() == 0:
            raise UserError(f"sharded cuts tensors along their first dimension, and '{name}' is a single number")
        known = first.setdefault(parameter, name)
        if known != name and units[known] != _unit_around(name, units.values()):
            raise UserError(
                f"sharded gathers layer by layer, and '{name}' is the same as '{known}' of another layer; use mirrored"
            )
    for unit in filter(None, set(units.values())):
        if isinstance(layer := model.get_submodule(unit), NEVER_CALLED):
            raise UserError(
                f"sharded gathers a layer when it is called, and '{unit}' is a {type(layer).__name__}, which never is; "
                "put its contents into a module of their own, or use mirrored"
            )


def _refuse_uses_without_a_call(job: Job, model: nn.Module) -> None:
    names = [name for name, _ in model.named_parameters()]
    units = {names[position]: unit for unit, positions in units_of(names).items() for position in positions}
    if name := used_outside(job.workload, job.data, units):
        kind = type(model.get_submodule(units[name])).__name__
        raise UserError(
            f"sharded gathers a layer when it is called, and the model uses '{name}' without a call of "
            f"'{units[name]}' ({kind}); call that, or use mirrored"
        )


def _unit_around(name: str, units: Iterable[str]) -> str:
    return max((unit for unit in units if unit and name.startswith(f"{unit}.")), key=len, default="")
