"""Tasks that a session runs in its processes: training on a rank, and serving on a parameter server."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from scalewise.engines.base import Place
from scalewise.models.parameters import flatten_parameters, make_model, refuse_unreached, trainable, views_of
from scalewise.parameter_server.checkpoints import NOW, WEIGHTS, WHEN_OVER, Archive, Beside
from scalewise.parameter_server.client import FIRST_STEP
from scalewise.parameter_server.server import Served, Server
from scalewise.runtime.graceful_stop import GracefulStop
from scalewise.runtime.optimizers import make_optimizer, refuse_unless_elementwise, state_after_a_step
from scalewise.strategies.server_plan import Piece
from scalewise.training.asynchronous import StepCounter, last_step, train_asynchronously
from scalewise.training.checkpoint import load_checkpoint, progress_of, save_checkpoint
from scalewise.training.loop import train_on
from scalewise.training.results import Outcome, Report, Request


class Rank(Protocol):
    """Worker attributes that training uses."""

    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def gpus(self) -> int: ...
    @property
    def shared(self) -> Store | None: ...
    @property
    def timeout_seconds(self) -> float: ...
    @property
    def stop(self) -> GracefulStop: ...
    def report(self, progress: Report, /) -> None: ...


def train_task(worker: Rank, request: Request) -> Outcome:
    place = Place(
        worker.rank, worker.world, worker.device, worker.gpus, worker.shared, worker.timeout_seconds, worker.stop
    )
    if request.strategy.asynchronous:
        return train_asynchronously(place, request, worker.report)
    return train_on(place, request, worker.report)


class ServerRank(Protocol):
    """Worker attributes that serving uses."""

    @property
    def rank(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def shared(self) -> Store: ...


def serve_task(worker: ServerRank, request: Request) -> Served:
    strategy, workers = request.strategy, worker.workers
    host_model = HostModel(request)
    server = Server(
        worker.rank,
        host_model.pieces,
        host_model.weights,
        host_model.optimizer_for,
        max_staleness=strategy.max_staleness,
        workers=workers,
        # N asynchronous workers update N times per batch, each from its part. Full-size updates from stale weights
        # would diverge.
        whole_batch=None if strategy.exact else request.settings.batch,
    )
    host_model.restore_into(server)
    if worker.rank == 0:
        if not strategy.exact:
            Beside(worker.shared, workers=None).tell(host_model.model, host_model.first)
        worker.shared.set(FIRST_STEP, str(host_model.first))
    archive = Archive(server, host_model.pieces, host_model.kinds, worker.shared)
    if worker.rank or not request.settings.checkpoint:
        served = server.serve(worker.shared)
    elif strategy.exact:
        server.on_version = lambda version: host_model.save_if_due(archive, version, host_model.first + version)
        served = server.serve(worker.shared)
        host_model.save_if_stopped(archive, served.versions)
    else:
        steps = StepCounter(host_model.first, host_model.samples, request.settings.batch, workers)
        server.on_version = lambda _: host_model.save_if_due(archive, NOW, steps.after(server.pushes))
        served = server.serve(worker.shared)
        # All parts have been assigned. The part of a worker that died is lost, and no other push follows.
        last = last_step(worker.shared, host_model.first, host_model.total, workers)
        if served.applied:
            host_model.save(archive, WHEN_OVER, last)
    archive.close()
    return served


class HostModel:
    """Whole model in the host memory of a server: source of the server's pieces and of the checkpoints it writes."""

    def __init__(self, request: Request) -> None:
        self.settings = request.settings
        self.workload = request.resolved()
        self.name = self.settings.optimizer or self.workload.optimizer
        self.learning_rate = self.settings.learning_rate or self.workload.learning_rate
        refuse_unless_elementwise(self.name, "parameter servers")
        data = self.workload.data(request.data)
        self.samples = len(data)
        torch.manual_seed(self.settings.seed)
        self.model = make_model(self.workload, data)
        self.weights = flatten_parameters(self.model)
        self.parameters = trainable(self.model)
        self.optimizer = self.optimizer_for(self.parameters)
        self.pieces = request.strategy.pieces(self.weights.numel(), self.weights.element_size())
        self.total = self.settings.total_steps(self.samples)
        self.first = 0
        if self.settings.resume and self.settings.checkpoint:
            expected = progress_of(self.workload, self.samples, self.settings, 0)
            self.first = load_checkpoint(self.settings.checkpoint, self.model, self.optimizer, expected).steps_done
        self.kinds = state_after_a_step(self.optimizer_for, self.weights.dtype)
        self.checked_step = self.first

    def optimizer_for(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return make_optimizer(self.name, parameters, self.learning_rate)

    def restore_into(self, server: Server) -> None:
        """Copy the optimizer state of a resumed run into the server, split into pieces like the weights."""
        states = [self.optimizer.state.get(parameter, {}) for parameter in self.parameters]
        if not any(states):
            return
        incomplete = [
            parameter
            for parameter, state in zip(self.parameters, states, strict=True)
            if self.kinds.keys() - state.keys()
        ]
        refuse_unreached(self.model, incomplete)
        for slot in server.slots:
            for number, weight in zip(slot.pieces, slot.weights, strict=True):
                slot.optimizer.state[weight] = {
                    key: _elements([state[key] for state in states], self.pieces[number])
                    if example.dim()
                    else states[0][key].clone()
                    for key, example in self.kinds.items()
                }

    def save_if_due(self, archive: Archive, version: int, done: int) -> None:
        """Save if a checkpoint is due after any step finished since the last call."""
        steps = range(self.checked_step + 1, done + 1)
        self.checked_step = done
        if any(self.settings.saves_after(step, self.samples) for step in steps):
            self.save(archive, version, done)

    def save_if_stopped(self, archive: Archive, versions: int) -> None:
        """Save the last step of a run that was stopped, unless a checkpoint was due then."""
        done = self.first + versions
        if versions and not self.settings.saves_after(done, self.samples):
            self.save(archive, versions, done)

    def save(self, archive: Archive, version: int, steps_done: int) -> None:
        whole, scalars = archive.collect(version)
        self.weights.copy_(whole.pop(WEIGHTS))
        random = archive.beside.hear(self.model, steps_done)
        if not torch.isfinite(self.weights).all():
            return  # keep the last good checkpoint; a worker reports that the loss is not finite
        for kind, flat in whole.items():
            for parameter, view in zip(self.parameters, views_of(flat, self.parameters), strict=True):
                self.optimizer.state[parameter][kind] = view
        for key, value in scalars.items():
            for parameter in self.parameters:
                self.optimizer.state[parameter][key] = value.clone()
        assert self.settings.checkpoint is not None
        progress = progress_of(self.workload, self.samples, self.settings, steps_done)
        save_checkpoint(
            self.settings.checkpoint, self.model, self.optimizer, progress, random, keep=self.settings.keep_checkpoints
        )


def _elements(tensors: list[Tensor], piece: Piece) -> Tensor:
    """Elements `piece.start` to `piece.stop` of the concatenated tensors, without concatenating all of them."""
    parts: list[Tensor] = []
    start = 0
    for tensor in tensors:
        first, last = max(piece.start - start, 0), min(piece.stop - start, tensor.numel())
        if first < last:
            parts.append(tensor.reshape(-1)[first:last])
        start += tensor.numel()
    return torch.cat(parts)
