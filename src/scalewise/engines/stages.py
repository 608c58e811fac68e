"""What engines have in common whose ranks hold consecutive stages of one model."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewise.engines.engine import Job
from scalewise.engines.line import Line
from scalewise.engines.stage import Stage
from scalewise.engines.stage_weights import in_no_stage, refuse_shared
from scalewise.engines.staged import Staged
from scalewise.errors import UserError
from scalewise.plan import Footprint, Section
from scalewise.prediction.memory import OPTIMIZER_COPIES
from scalewise.step.feed import Batch, make_feed
from scalewise.step.left_out import make_model
from scalewise.step.losses import sum_losses
from scalewise.step.optimizers import make_optimizer
from scalewise.step.room import memory_limit_bytes
from scalewise.step.shards import Shard
from scalewise.step.wire import Wire
from scalewise.strategies.stage_cuts import Balance, TooManyStages
from scalewise.workloads.chain import example_of
from scalewise.workloads.cuttable import Cuttable, cuttable_as_said, cuttable_else
from scalewise.workloads.section_seconds import section_seconds


class HoldsStages(Staged):
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
        """`samples_for` a model, and what is known of it before it is exported: how many go through at a time.
        `ranges_for` what is known then: those of every stage."""
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
        said = cuttable_as_said(job.workload, job.data, model, cut)
        with _explained(said):
            size = samples_for(model, replace(self.known, sections=said.sections if said else ()))
        cuttable = said or cuttable_else(job.workload, job.data, model, count, cut, size)
        self.fixed_batch = cuttable.fixed_batch
        measured = balance == "measured" and count > 1
        self.sections = self._measured(cuttable, size) if measured else cuttable.sections
        with _explained(cuttable):
            self.ranges = ranges_for(replace(self.known, sections=self.sections))
        refuse_shared(model, cuttable, self.ranges)
        self.in_no_stage = in_no_stage(model, cuttable)
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


@contextmanager
def _explained(cuttable: Cuttable | None) -> Iterator[None]:
    """Where a model has too few places to be cut at, why the first that it seems to have is none."""
    try:
        yield
    except TooManyStages as error:
        if cuttable and cuttable.not_between:
            raise UserError(f"{error}; {cuttable.not_between}") from error
        raise
