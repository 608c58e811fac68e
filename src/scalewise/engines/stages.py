"""What engines have in common whose ranks hold consecutive stages of one model."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewise.engines.engine import Job, Read, Whole
from scalewise.engines.line import Line
from scalewise.engines.stage import Stage
from scalewise.errors import UserError
from scalewise.plan import Footprint, Section
from scalewise.prediction.memory import OPTIMIZER_COPIES
from scalewise.step.feed import Batch, make_feed
from scalewise.step.left_out import make_model
from scalewise.step.losses import sum_losses
from scalewise.step.optimizers import make_optimizer, placed_state
from scalewise.step.room import memory_limit_bytes
from scalewise.step.shards import Shard
from scalewise.step.wire import Wire
from scalewise.strategies.stage_cuts import Balance
from scalewise.workloads.chain import example_of
from scalewise.workloads.cuttable import Cuttable, cuttable_of, why_not_elsewhere
from scalewise.workloads.section_seconds import section_seconds


class HoldsStages:
    """A line of ranks; the first stage's has the inputs, the last stage's the targets and the loss."""

    execution = "eager"

    def __init__(
        self,
        job: Job,
        line: Line,
        cut: str,
        samples_for: Callable[[nn.Module, Footprint], int],
        ranges_for: Callable[[Footprint], Sequence[range]],
        balance: Balance = "counted",
        stages_each: int = 1,
        recompute: bool = False,
    ) -> None:
        """`samples_for` a model, of which not even its sections are known yet: how many go through at a time.
        `ranges_for` what is known once they are: those of every stage."""
        if job.settings.execution == "graph":
            raise UserError(
                "--execution graph is not possible: steps between ranks cannot be captured; use eager or auto"
            )
        self.job, self.line = job, line
        place = job.place
        model = make_model(job.workload, job.data) if line.parts > 1 else job.workload.model()
        self.parameter_count = sum(parameter.numel() for parameter in model.parameters())
        count = len(line.ranks) * stages_each
        on_gpu, state_copies = place.device.type == "cuda", OPTIMIZER_COPIES.get(job.optimizer, 0)
        self.known = Footprint((), 0, 0, 0, room_bytes=memory_limit_bytes(), state_copies=state_copies, on_gpu=on_gpu)
        with _explained(job, model):
            size = samples_for(model, self.known)
        cuttable = cuttable_of(job.workload, job.data, model, count, cut, size)
        self.fixed_batch = cuttable.fixed_batch
        measured = balance == "measured" and count > 1
        self.sections = self._measured(cuttable, size) if measured else cuttable.sections
        with _explained(job, model):
            self.ranges = ranges_for(replace(self.known, sections=self.sections))
        _refuse_shared(model, cuttable, self.ranges)
        self.in_no_stage = _in_no_stage(model, cuttable)
        self.stages = {
            stage: self._stage(cuttable, stage, recompute) for stage in range(count) if line.home(stage) == place.rank
        }
        self.first, self.last = 0 in self.stages, count - 1 in self.stages
        parameters = [each for stage in self.stages.values() for each in stage.parameters() if each.requires_grad]
        self.optimizer = make_optimizer(job.optimizer, parameters, job.learning_rate) if parameters else None
        yet_to_come = (1 + OPTIMIZER_COPIES.get(job.optimizer, 0)) * sum(each.nbytes for each in parameters)
        ends = self.first or self.last
        self.feed = make_feed(job.data, job.settings.load, place.device, yet_to_come) if ends else None
        self.wire = Wire(place.device) if len(line.ranks) > 1 else None
        self.seen: list[Tensor] = []
        self.steps = 0
        if self.fixed_batch:
            del model, cuttable
            gc.collect()  # an export holds all of the model in cycles, and other stages' weights are not to stay here

    def as_run(self, footprint: Footprint) -> Footprint:
        """With what was decided here, for plans of just this run."""
        known = self.known
        return replace(
            footprint,
            sections=self.sections,
            room_bytes=known.room_bytes,
            state_copies=known.state_copies,
            on_gpu=known.on_gpu,
            microbatches=known.microbatches,
        )

    @property
    def stream(self) -> int:
        return self.job.place.rank

    def losses(self) -> Tensor:
        known = torch.stack(self.seen).float() if self.last and self.seen else torch.zeros(self.steps)
        self.seen, self.steps = [], 0
        return sum_losses(known, self.job.place.device)

    def close(self) -> None:
        """Nothing is open."""

    def whole(self) -> Whole | None:
        """The first rank is sent everything, tensor by tensor, and puts it together in host memory."""
        if self.line.part:
            return None
        tensors, scalars = self._state()
        told = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()]
        first, *others = self.line.ranks
        if self.job.place.rank != first:
            dist.gather_object((told, scalars), None, dst=first, group=self.line.group)
            assert self.wire is not None
            for tensor in tensors.values():
                self.wire.send([(self._sendable(tensor), first)])
            return None
        gathered: list[Any] = [None] * len(self.line.ranks)
        if others:
            dist.gather_object((told, scalars), gathered, dst=first, group=self.line.group)
        for rank, (names, their_scalars) in zip(others, gathered[1:], strict=True):
            scalars |= their_scalars
            for name, shape, dtype in names:
                assert self.wire is not None
                received = self._sendable(torch.empty(shape, dtype=dtype))
                self.wire.receive([(received, rank)])
                tensors[name] = received.cpu()
        return self._put_together(tensors, scalars)

    def restore(self, read: Read) -> None:
        """Every rank reads it all into host memory and keeps its stages."""
        model, optimizer = self._fresh()
        read(model, optimizer)
        state = model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, left in self.in_no_stage.items():
                left.copy_(state[name])
            for name, mine in self._held().items():
                if name not in state:  # a constant that an export made of the model
                    continue
                mine.copy_(state[name])
                if self.optimizer and (kept := optimizer.state.get(state[name])):
                    self.optimizer.state[mine] = {
                        key: placed_state(key, value, mine, self.optimizer) for key, value in kept.items()
                    }

    @torch.no_grad()
    def predictions(self, rows: list[Tensor]) -> Iterator[Batch]:
        """Through the stages one after the other; the last one's rank tells."""
        if self.line.part:
            return
        for stage in self.stages.values():
            stage.eval()
        pieces = [Shard(piece, 1.0) for each in rows for piece in each.split(self.fixed_batch or len(each))]
        padded = [self.padded(piece.rows, self.fixed_batch) for piece in pieces]
        batches = self.feed.batches(padded) if self.feed else [None] * len(pieces)
        for piece, given, batch in zip(pieces, padded, batches, strict=True):
            outputs = self._go_through(len(given), batch[0] if batch else None)
            if outputs is not None and batch:
                yield outputs[: len(piece.rows)], batch[1][: len(piece.rows)]
        for stage in self.stages.values():
            stage.train()

    @staticmethod
    def padded(rows: Tensor, size: int | None) -> Tensor:
        """With the same in turn, to be given no weight: batch norm sees no sample much more often than others."""
        return rows if size is None else rows[torch.arange(size) % len(rows)]

    def _go_through(self, samples: int, inputs: Tensor | None) -> Tensor | None:
        place, home = self.job.place, self.line.home
        value: tuple[Tensor, ...] = () if inputs is None else (inputs,)
        for number, stage in self.stages.items():
            if number and home(number - 1) != place.rank:
                assert self.wire is not None
                assert stage.before is not None
                value = tuple(each.empty(samples, place.device) for each in stage.before.tensors)
                self.wire.receive([(each, home(number - 1)) for each in value])
            value = stage(*value)
            if number + 1 < len(self.ranges) and home(number + 1) != place.rank:
                assert self.wire is not None
                self.wire.send([(each, home(number + 1)) for each in value])
        return value[0] if self.last else None

    def _stage(self, cuttable: Cuttable, number: int, recompute: bool) -> Stage:
        sections, parts, borders = self.ranges[number], cuttable.parts, cuttable.borders
        return Stage(
            [parts[at] for at in sections],
            borders[sections.start - 1] if sections.start else None,
            borders[sections.stop - 1],
            self.job.place.device,
            self.job.settings.precision,
            recompute,
        )

    def _measured(self, cuttable: Cuttable, size: int) -> tuple[Section, ...]:
        """By the first rank, for all: every rank must cut at the same places."""
        first, device = self.line.ranks[0], self.job.place.device
        told: list[Any] = [None]
        if self.job.place.rank == first:
            told = [section_seconds(cuttable, example_of(self.job.data, size, "cpu"), device)]
        if len(self.line.ranks) > 1:
            dist.broadcast_object_list(told, src=first, group=self.line.group)
        return tuple(
            replace(section, seconds=seconds) for section, seconds in zip(cuttable.sections, told[0], strict=True)
        )

    def _update(self) -> None:
        """A stage may hold nothing that learns."""
        self.steps += 1
        if self.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.job.clock.lap("update")
        else:
            self.job.clock.lap("idle")

    def _held(self) -> dict[str, Tensor]:
        return dict(chain.from_iterable(stage.held().items() for stage in self.stages.values()))

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and numbers, by names as in checkpoints."""
        tensors: dict[str, Tensor] = {}
        scalars: dict[str, Any] = {}
        for name, tensor in self._held().items():
            tensors[f"model/{name}"] = tensor.detach()
            state: Mapping[str, Any] = self.optimizer.state.get(tensor, {}) if self.optimizer else {}
            for key, value in state.items():
                (tensors if isinstance(value, Tensor) else scalars)[f"optimizer/{name}/{key}"] = value
        return tensors, scalars

    def _put_together(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> Whole:
        model, optimizer = self._fresh()
        state = model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, tensor in self.in_no_stage.items():
                state[name].copy_(tensor)
            for name, tensor in state.items():
                if (entry := f"model/{name}") in tensors:
                    tensor.copy_(tensors[entry])
        for entry, value in chain(tensors.items(), scalars.items()):
            kind, _, rest = entry.partition("/")
            if kind == "optimizer":
                name, _, key = rest.rpartition("/")
                optimizer.state[state[name]][key] = value
        return Whole(model, optimizer)

    def _fresh(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """A whole model on the host; what it is initialised with changes no later random number."""
        with torch.random.fork_rng(devices=[]):
            model = self.job.workload.model()
        return model, make_optimizer(self.job.optimizer, model.parameters(), self.job.learning_rate)

    def _sendable(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.job.place.device) if dist.get_backend() == "nccl" else tensor


@contextmanager
def _explained(job: Job, model: nn.Module) -> Iterator[None]:
    """A model that cannot be cut at all of its places is answered with the first where it cannot."""
    try:
        yield
    except UserError as error:
        if why := why_not_elsewhere(job.workload, job.data, model):
            raise UserError(f"{error}; {why}") from error
        raise


def _in_no_stage(model: nn.Module, cuttable: Cuttable) -> dict[str, Tensor]:
    """What the model holds and does not use stays as it is, and goes into checkpoints."""
    state = model.state_dict(keep_vars=True)
    staged = {name for part in cuttable.parts for name in part.names().values()}
    tied = {id(state[name]) for name in staged & state.keys()}
    return {name: tensor.detach() for name, tensor in state.items() if name not in staged and id(tensor) not in tied}


def _refuse_shared(model: nn.Module, cuttable: Cuttable, ranges: Sequence[range]) -> None:
    """A weight that two stages use would be updated twice, each time with half its gradient. An export has copies."""
    whole = dict(model.named_parameters(remove_duplicate=False))
    stage_of: dict[nn.Parameter, tuple[int, str]] = {}
    for stage, sections in enumerate(ranges):
        for part in (cuttable.parts[at] for at in sections):
            for parameter in (whole[name] for name in part.names().values() if name in whole):
                other, begins = stage_of.setdefault(parameter, (stage, part.name))
                if other != stage:
                    raise UserError(
                        f"{_shared(parameter, whole, begins, part.name)}, and a cut lies between them; use fewer "
                        "stages, cut elsewhere with cut=MODULE, or untie them"
                    )


def _shared(parameter: nn.Parameter, whole: Mapping[str, nn.Parameter], begins: str, begins_later: str) -> str:
    """Two modules have it, or the model uses that of one in two places: where those are nobody says but the export."""
    owners = [name.rpartition(".")[0] for name, each in whole.items() if each is parameter]
    if len(owners) > 1:
        return f"'{owners[0]}' and '{owners[-1]}' share weights"
    [name] = [name for name, each in whole.items() if each is parameter]
    return f"the model uses '{name}' in '{begins}' and once more in or behind '{begins_later}'"
