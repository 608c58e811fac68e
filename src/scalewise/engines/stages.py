"""Base class of engines whose ranks hold consecutive stages, and one stage as a module."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from scalewise.core.errors import UserError
from scalewise.core.training_options import Precision
from scalewise.engines.base import Job, ReadCheckpoint, WholeModel
from scalewise.engines.communication import StageRanks, Wire
from scalewise.models.chain import Boundary, Part, example_of
from scalewise.models.footprint import norms_batches
from scalewise.models.model_split import SplittableChain, declared_chain, section_seconds, split_by_export
from scalewise.models.parameters import make_model
from scalewise.parameter_server.client import Client
from scalewise.predict.memory import OPTIMIZER_COPIES
from scalewise.runtime.device_memory import memory_limit_bytes
from scalewise.runtime.exchange import all_gather_values, broadcast_value
from scalewise.runtime.feed import Batch, Shard, make_feed
from scalewise.runtime.host_offload import Copied
from scalewise.runtime.optimizers import autocast, make_optimizer, placed_state, sum_losses
from scalewise.strategies.partitioning import Balance, TooManyStages
from scalewise.strategies.plan import Footprint, Section


class Stage(nn.Module):
    """Consecutive parts of a model, from the tensors of the boundary before it to those of the boundary behind it."""

    def __init__(
        self,
        parts: Sequence[Part],
        before: Boundary | None,
        behind: Boundary,
        device: torch.device,
        precision: Precision,
        recompute: bool,
    ) -> None:
        """`before` is None for the first stage."""
        super().__init__()
        self.parts = tuple(parts)
        self.modules_in_a_row = nn.ModuleList(part.module for part in parts)
        self.before, self.behind = before, behind
        self.device, self.precision, self.recompute = device, precision, recompute
        self.overwrites: bool | None = None
        """Whether the stage overwrites its inputs in place; None until the first recomputation has tested it."""
        self.sample_count: int | None = None
        """Number of rows of the current input that are samples, the rest is padding; None if there is no padding."""
        self.norms = norms_batches(self)
        self.to(device)
        self.persistent_buffers = [
            (module, name)
            for module in self.modules_in_a_row.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in module._non_persistent_buffers_set
        ]

    @contextmanager
    def unchanged_buffers(self) -> Iterator[None]:
        """Restore all persistent buffers afterwards, for example batch norm statistics."""
        before = [
            (module, name, buffer)
            for module, name in self.persistent_buffers
            if (buffer := module._buffers[name]) is not None
        ]
        values = [buffer.clone() for _, _, buffer in before]
        try:
            yield
        finally:
            for (module, name, buffer), value in zip(before, values, strict=True):
                buffer.data.copy_(
                    value
                )  # .data keeps the version counter, which the backward of other micro-batches checks
                module._buffers[name] = buffer

    def tensors(self) -> dict[str, Tensor]:
        """Return parameters and buffers by their names in the whole model."""
        tensors: dict[str, Tensor] = {}
        for part in self.parts:
            state = part.module.state_dict(keep_vars=True)
            tensors |= {name: state[local_name] for local_name, name in part.names().items()}
        return tensors

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        # Gradients of a concatenation are views of one tensor, but gloo sends only contiguous tensors.
        tensors = tuple(contiguous_gradient(tensor) if tensor.requires_grad else tensor for tensor in tensors)
        rows = len(tensors[0])
        if self.norms and self.sample_count and self.sample_count < rows:
            # Batch norm must not count padding. It refuses a single sample, which is therefore repeated.
            tensors = tuple(_repeat_rows(tensor, self.sample_count, max(self.sample_count, 2)) for tensor in tensors)
        with autocast(self.precision, self.device):
            value = self.before.unpack(tensors) if self.before else tensors[0]
            value = (
                self._run_with_recomputation(value) if self.recompute and torch.is_grad_enabled() else self._run(value)
            )
        outputs = (value,) if isinstance(value, Tensor) else tuple(value)
        if len(tensors[0]) < rows:
            outputs = tuple(_repeat_rows(output, len(output), rows) for output in outputs)
        # With bf16 autocast a stage may compute in another dtype than the boundary has.
        return tuple(
            output.to(spec.dtype).contiguous() for output, spec in zip(outputs, self.behind.tensors, strict=True)
        )

    def _run_with_recomputation(self, value: Any) -> Any:
        """Run with activation checkpointing; on copies of the inputs if the stage overwrites them."""
        run = self._run if self.overwrites is False else self._run_on_copies
        return checkpoint(run, value, use_reentrant=False, context_fn=lambda: (nullcontext(), self.unchanged_buffers()))

    def _run_on_copies(self, value: Any) -> Any:
        copies = value.clone() if isinstance(value, Tensor) else tuple(tensor.clone() for tensor in value)
        tensors = (copies,) if isinstance(copies, Tensor) else copies
        versions = [tensor._version for tensor in tensors]
        result = self._run(copies)
        self.overwrites = versions != [tensor._version for tensor in tensors]
        return result

    def _run(self, value: Any) -> Any:
        for module in self.modules_in_a_row:
            value = module(value)
        return value


def _repeat_rows(tensor: Tensor, rows: int, count: int) -> Tensor:
    """Return `count` rows that repeat the first `rows` in turn, so that padding has ordinary values."""
    return tensor[:count] if count <= rows else tensor[torch.arange(count, device=tensor.device) % rows]


class _ContiguousGradient(torch.autograd.Function):
    """Identity whose gradient is contiguous. The result is no view, so in-place layers may follow."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:  # noqa: ARG004
        return tensor.detach()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return gradients[0].contiguous()


def contiguous_gradient(tensor: Tensor) -> Tensor:
    result: Tensor = _ContiguousGradient.apply(tensor)  # type: ignore[no-untyped-call]
    return result


class StagedModel:
    """Checkpoints of a model whose stages are on different ranks, each with its own optimizer."""

    job: Job
    stage_ranks: StageRanks
    stages: dict[int, Stage]
    optimizer: torch.optim.Optimizer | None
    wire: Wire | None
    tensors_in_no_stage: dict[str, Tensor]

    @property
    def copied(self) -> Copied | None:
        return None

    @property
    def server_client(self) -> Client | None:
        return None

    def whole(self) -> WholeModel | None:
        """Send all tensors to the first rank, which assembles the model in host memory."""
        if self.stage_ranks.part:
            return None
        tensors, scalars = self._state()
        specs = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()]
        first, *others = self.stage_ranks.ranks
        if self.job.place.rank != first:
            all_gather_values((specs, scalars), self.stage_ranks.group)
            assert self.wire is not None
            for tensor in tensors.values():
                self.wire.send([(self._sendable(tensor), first)])
            return None
        gathered = all_gather_values((specs, scalars), self.stage_ranks.group) if others else [None]
        for rank, (specs_of_rank, scalars_of_rank) in zip(others, gathered[1:], strict=True):
            scalars |= scalars_of_rank
            for name, shape, dtype in specs_of_rank:
                assert self.wire is not None
                received = self._sendable(torch.empty(shape, dtype=dtype))
                self.wire.receive([(received, rank)])
                tensors[name] = received.cpu()
        return self._assemble(tensors, scalars)

    def restore(self, read: ReadCheckpoint) -> None:
        """Load the whole checkpoint into host memory on every rank and keep the tensors of this rank's stages."""
        model, optimizer = self._new_model_and_optimizer()
        read(model, optimizer)
        state = model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, tensor in self.tensors_in_no_stage.items():
                tensor.copy_(state[name])
            for name, tensor in self._tensors().items():
                if name not in state:  # a constant that torch.export created
                    continue
                tensor.copy_(state[name])
                if self.optimizer and (loaded := optimizer.state.get(state[name])):
                    self.optimizer.state[tensor] = {
                        key: placed_state(key, value, tensor, self.optimizer) for key, value in loaded.items()
                    }

    def _tensors(self) -> dict[str, Tensor]:
        return dict(chain.from_iterable(stage.tensors().items() for stage in self.stages.values()))

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and numbers of the model and optimizer under their checkpoint names."""
        tensors: dict[str, Tensor] = {}
        scalars: dict[str, Any] = {}
        for name, tensor in self._tensors().items():
            tensors[f"model/{name}"] = tensor.detach()
            state: Mapping[str, Any] = self.optimizer.state.get(tensor, {}) if self.optimizer else {}
            for key, value in state.items():
                (tensors if isinstance(value, Tensor) else scalars)[f"optimizer/{name}/{key}"] = value
        return tensors, scalars

    def _assemble(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> WholeModel:
        model, optimizer = self._new_model_and_optimizer()
        state = model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, tensor in self.tensors_in_no_stage.items():
                state[name].copy_(tensor)
            for name, tensor in state.items():
                if (entry := f"model/{name}") in tensors:
                    tensor.copy_(tensors[entry])
        for entry, value in chain(tensors.items(), scalars.items()):
            kind, _, rest = entry.partition("/")
            if kind == "optimizer":
                name, _, key = rest.rpartition("/")
                optimizer.state[state[name]][key] = value
        return WholeModel(model, optimizer)

    def _new_model_and_optimizer(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return a whole model and optimizer on the host without changing the state of random generators."""
        with torch.random.fork_rng(devices=[]):
            model = self.job.workload.model()
        return model, make_optimizer(self.job.optimizer, model.parameters(), self.job.learning_rate)

    def _sendable(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.job.place.device) if dist.get_backend() == "nccl" else tensor


def tensors_in_no_stage(model: nn.Module, chain: SplittableChain) -> dict[str, Tensor]:
    """Return the tensors that the model never uses: they stay unchanged, but belong into checkpoints."""
    state = model.state_dict(keep_vars=True)
    staged = {name for part in chain.parts for name in part.names().values()}
    tied = {id(state[name]) for name in staged & state.keys()}
    return {name: tensor.detach() for name, tensor in state.items() if name not in staged and id(tensor) not in tied}


def refuse_shared(model: nn.Module, chain: SplittableChain, ranges: Sequence[range]) -> None:
    """Raise UserError if two stages share a weight, which each would update with a part of its gradient."""
    whole = dict(model.named_parameters(remove_duplicate=False))
    stage_of: dict[nn.Parameter, tuple[int, str]] = {}
    for stage, sections in enumerate(ranges):
        for part in (chain.parts[index] for index in sections):
            for parameter in (whole[name] for name in part.names().values() if name in whole):
                other, first_part = stage_of.setdefault(parameter, (stage, part.name))
                if other != stage:
                    raise UserError(
                        f"{_describe_sharing(parameter, whole, first_part, part.name)}, which would be in different "
                        "stages; use fewer stages, split elsewhere with cut=MODULE, or untie the weights"
                    )


def _describe_sharing(
    parameter: nn.Parameter, whole: Mapping[str, nn.Parameter], first_part: str, later_part: str
) -> str:
    """Describe which modules share the weight, or in which parts the model uses it."""
    owners = [name.rpartition(".")[0] for name, candidate in whole.items() if candidate is parameter]
    if len(owners) > 1:
        return f"'{owners[0]}' and '{owners[-1]}' share weights"
    [name] = [name for name, candidate in whole.items() if candidate is parameter]
    return f"the model uses '{name}' in '{first_part}' and again in or after '{later_part}'"


class StageEngine(StagedModel):
    """Base class of engines with stages: the first stage loads the inputs, the last stage the targets."""

    execution = "eager"

    def __init__(
        self,
        job: Job,
        stage_ranks: StageRanks,
        cut: str,
        samples_for: Callable[[nn.Module, Footprint], int],
        ranges_for: Callable[[Footprint], Sequence[range]],
        balance: Balance = "counted",
        stages_each: int = 1,
        recompute: bool = False,
    ) -> None:
        """Split the model and place this rank's stages on the device.

        `samples_for` returns the rows of a micro-batch for a model and its footprint before export. `ranges_for`
        returns the sections of every stage for the footprint after export. `recompute` enables activation
        checkpointing.
        """
        self.job, self.stage_ranks = job, stage_ranks
        place = job.place
        model = make_model(job.workload, job.data) if stage_ranks.parts > 1 else job.workload.model()
        self.parameter_count = sum(parameter.numel() for parameter in model.parameters())
        count = len(stage_ranks.ranks) * stages_each
        on_gpu, state_copies = place.device.type == "cuda", OPTIMIZER_COPIES.get(job.optimizer, 0)
        self.stage_footprint = Footprint(
            (), 0, 0, 0, room_bytes=memory_limit_bytes(), state_copies=state_copies, on_gpu=on_gpu
        )
        declared = declared_chain(job.workload, job.data, model, cut)
        with _explain_blocked_split(declared):
            size = samples_for(model, replace(self.stage_footprint, sections=declared.sections if declared else ()))
        chain = declared or split_by_export(job.workload, job.data, model, count, cut, size)
        self.fixed_batch = chain.fixed_batch
        measured = balance == "measured" and count > 1
        self.sections = self._measured_sections(chain, size) if measured else chain.sections
        with _explain_blocked_split(chain):
            self.ranges = ranges_for(replace(self.stage_footprint, sections=self.sections))
        refuse_shared(model, chain, self.ranges)
        self.tensors_in_no_stage = tensors_in_no_stage(model, chain)
        self.stages = {
            stage: self._stage(chain, stage, recompute)
            for stage in range(count)
            if stage_ranks.rank_of(stage) == place.rank
        }
        self.first, self.last = 0 in self.stages, count - 1 in self.stages
        parameters = [
            parameter for stage in self.stages.values() for parameter in stage.parameters() if parameter.requires_grad
        ]
        self.optimizer = make_optimizer(job.optimizer, parameters, job.learning_rate) if parameters else None
        copies = 1 + OPTIMIZER_COPIES.get(job.optimizer, 0)
        remaining_bytes = copies * sum(parameter.nbytes for parameter in parameters)
        loads_data = self.first or self.last
        self.feed = make_feed(job.data, job.settings.load, place.device, remaining_bytes) if loads_data else None
        self.wire = Wire(place.device) if len(stage_ranks.ranks) > 1 else None
        self.step_losses: list[Tensor] = []
        self.steps = 0
        if self.fixed_batch:
            del model, chain
            gc.collect()  # reference cycles of the export would keep other stages' weights in memory

    def as_run(self, footprint: Footprint) -> Footprint:
        """Return the footprint with the sections, memory limit and micro-batches of this run."""
        stage_footprint = self.stage_footprint
        return replace(
            footprint,
            sections=self.sections,
            room_bytes=stage_footprint.room_bytes,
            state_copies=stage_footprint.state_copies,
            on_gpu=stage_footprint.on_gpu,
            microbatches=stage_footprint.microbatches,
        )

    @property
    def stream(self) -> int:
        return self.job.place.rank

    def losses(self) -> Tensor:
        losses = torch.stack(self.step_losses).float() if self.last and self.step_losses else torch.zeros(self.steps)
        self.step_losses, self.steps = [], 0
        return sum_losses(losses, self.job.place.device)

    def close(self) -> None:
        """Do nothing: no connections are open."""

    @torch.no_grad()
    def predictions(self, rows: list[Tensor]) -> Iterator[Batch]:
        """Pass batches through the stages one after the other; yield the outputs on the rank of the last stage."""
        if self.stage_ranks.part:
            return
        for stage in self.stages.values():
            stage.eval()
        pieces = [Shard(piece, 1.0) for batch in rows for piece in batch.split(self.fixed_batch or len(batch))]
        padded = [self.padded(piece.rows, self.fixed_batch) for piece in pieces]
        batches = self.feed.batches(padded) if self.feed else [None] * len(pieces)
        for piece, padded_rows, batch in zip(pieces, padded, batches, strict=True):
            outputs = self._forward_all_stages(len(padded_rows), batch[0] if batch else None)
            if outputs is not None and batch:
                yield outputs[: len(piece.rows)], batch[1][: len(piece.rows)]
        for stage in self.stages.values():
            stage.train()

    @staticmethod
    def padded(rows: Tensor, size: int | None) -> Tensor:
        """Pad sample indices to `size` by repeating them in turn, so that batch norm sees all about equally often."""
        return rows if size is None else rows[torch.arange(size) % len(rows)]

    def _forward_all_stages(self, samples: int, inputs: Tensor | None) -> Tensor | None:
        place, rank_of = self.job.place, self.stage_ranks.rank_of
        value: tuple[Tensor, ...] = () if inputs is None else (inputs,)
        for number, stage in self.stages.items():
            if number and rank_of(number - 1) != place.rank:
                assert self.wire is not None
                assert stage.before is not None
                value = tuple(spec.empty(samples, place.device) for spec in stage.before.tensors)
                self.wire.receive([(tensor, rank_of(number - 1)) for tensor in value])
            value = stage(*value)
            if number + 1 < len(self.ranges) and rank_of(number + 1) != place.rank:
                assert self.wire is not None
                self.wire.send([(tensor, rank_of(number + 1)) for tensor in value])
        return value[0] if self.last else None

    def _stage(self, chain: SplittableChain, number: int, recompute: bool) -> Stage:
        sections, parts, boundaries = self.ranges[number], chain.parts, chain.boundaries
        return Stage(
            [parts[index] for index in sections],
            boundaries[sections.start - 1] if sections.start else None,
            boundaries[sections.stop - 1],
            self.job.place.device,
            self.job.settings.precision,
            recompute,
        )

    def _measured_sections(self, chain: SplittableChain, size: int) -> tuple[Section, ...]:
        """Measure the sections on the first rank and send the times to all, so that all ranks split alike."""
        first, device = self.stage_ranks.ranks[0], self.job.place.device
        section_times: Sequence[float] = ()
        if self.job.place.rank == first:
            section_times = list(section_seconds(chain, example_of(self.job.data, size, "cpu"), device))
        if len(self.stage_ranks.ranks) > 1:
            section_times = broadcast_value(section_times, first, self.stage_ranks.group)
        return tuple(
            replace(section, seconds=seconds) for section, seconds in zip(chain.sections, section_times, strict=True)
        )

    def _update(self) -> None:
        """Update the weights; a rank without trainable parameters has no optimizer and idles."""
        self.steps += 1
        if self.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.job.clock.lap("update")
        else:
            self.job.clock.lap("idle")


@contextmanager
def _explain_blocked_split(chain: SplittableChain | None) -> Iterator[None]:
    """Add to TooManyStages why the model cannot be split at the first place that looked possible."""
    try:
        yield
    except TooManyStages as error:
        if chain and chain.not_between:
            raise UserError(f"{error}; {chain.not_between}") from error
        raise
