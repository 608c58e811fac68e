"""What a server process does while workers train: serve, and write the checkpoints."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed import Store  # type: ignore[attr-defined]

from scalewise.servers.archive import NOW, WEIGHTS, WHEN_OVER, Archive
from scalewise.servers.beside import Beside
from scalewise.servers.meeting import FIRST_STEP
from scalewise.servers.server import Served, Server
from scalewise.step.flat import flatten_parameters, trainable, views_of
from scalewise.step.left_out import make_model, refuse_unreached
from scalewise.step.optimizers import make_optimizer, refuse_unless_elementwise, state_after_a_step
from scalewise.strategies.parameter_server import ParameterServer
from scalewise.strategies.parameter_server_async import ParameterServerAsync
from scalewise.strategies.pieces import Piece, pieces_of
from scalewise.training.checkpoint import load_checkpoint, progress_of, refuse_if_through, save_checkpoint
from scalewise.training.pushes import Steps
from scalewise.training.request import Request


class ServerRank(Protocol):
    """What serving needs of a worker."""

    @property
    def rank(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def shared(self) -> Store: ...


def serve_task(worker: ServerRank, request: Request) -> Served:
    strategy, workers = request.strategy, worker.workers
    assert isinstance(strategy, (ParameterServer, ParameterServerAsync))
    holdings = Holdings(request, strategy.servers, strategy.piece_MB)
    most_stale = 0 if strategy.exact else strategy.max_staleness  # type: ignore[union-attr]
    server = Server(
        worker.rank,
        holdings.pieces,
        holdings.weights,
        holdings.optimizer_for,
        max_staleness=most_stale,
        workers=workers,
        # N workers update N times as often, each from its part of a batch: whole steps, of stale weights, diverge.
        whole_batch=None if strategy.exact else request.settings.batch,
    )
    holdings.restore_into(server)
    if worker.rank == 0:
        if not strategy.exact:
            Beside(worker.shared, workers=None).tell(holdings.model, holdings.first)
        worker.shared.set(FIRST_STEP, str(holdings.first))
    archive = Archive(server, holdings.pieces, holdings.kinds, worker.shared)
    if worker.rank or not request.settings.checkpoint:
        served = server.serve(worker.shared)
    elif strategy.exact:
        server.on_version = lambda version: holdings.save_if_due(archive, version, holdings.first + version)
        served = server.serve(worker.shared)
    else:
        steps = Steps(holdings.first, holdings.samples, request.settings.batch, workers)
        server.on_version = lambda _: holdings.save_if_due(archive, NOW, steps.after(server.pushes))
        served = server.serve(worker.shared)
        # All work has been given out; what a worker that died had in hand is lost, and nothing comes after it.
        holdings.save(archive, WHEN_OVER, holdings.total)
    archive.close()
    return served


class Holdings:
    """The whole model on the host: what pieces are cut from, and what checkpoints are put together in."""

    def __init__(self, request: Request, servers: int, piece_MB: float) -> None:
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
        self.pieces = pieces_of(self.weights.numel(), self.weights.element_size(), servers, piece_MB)
        self.total = self.settings.total_steps(self.samples)
        self.first = 0
        if self.settings.resume and self.settings.checkpoint:
            expected = progress_of(self.workload, self.samples, self.settings, 0)
            self.first = load_checkpoint(self.settings.checkpoint, self.model, self.optimizer, expected).steps_done
        refuse_if_through(self.settings, self.first, self.total)
        self.kinds = state_after_a_step(self.optimizer_for, self.weights.dtype)
        self.looked_at = self.first

    def optimizer_for(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return make_optimizer(self.name, parameters, self.learning_rate)

    def restore_into(self, server: Server) -> None:
        """A resumed run's optimizer state, cut as the weights are."""
        states = [self.optimizer.state.get(parameter, {}) for parameter in self.parameters]
        if not any(states):
            return
        told = zip(self.parameters, states, strict=True)
        refuse_unreached(self.model, [parameter for parameter, state in told if self.kinds.keys() - state.keys()])
        for slot in server.slots:
            for number, weight in zip(slot.pieces, slot.weights, strict=True):
                slot.optimizer.state[weight] = {
                    key: _cut([state[key] for state in states], self.pieces[number])
                    if example.dim()
                    else states[0][key].clone()
                    for key, example in self.kinds.items()
                }

    def save_if_due(self, archive: Archive, version: int, done: int) -> None:
        """Where the other strategies save too."""
        steps = range(self.looked_at + 1, done + 1)
        self.looked_at = done
        if any(self.settings.saves_after(step, self.samples) for step in steps):
            self.save(archive, version, done)

    def save(self, archive: Archive, version: int, steps_done: int) -> None:
        whole, scalars = archive.collect(version)
        self.weights.copy_(whole.pop(WEIGHTS))
        random = archive.beside.hear(self.model, steps_done)
        if not torch.isfinite(self.weights).all():
            return  # the last good checkpoint stays; that the loss is no number any more, a worker says
        for kind, flat in whole.items():
            for parameter, view in zip(self.parameters, views_of(flat, self.parameters), strict=True):
                self.optimizer.state[parameter][kind] = view
        for key, value in scalars.items():
            for parameter in self.parameters:
                self.optimizer.state[parameter][key] = value.clone()
        assert self.settings.checkpoint is not None
        progress = progress_of(self.workload, self.samples, self.settings, steps_done)
        save_checkpoint(self.settings.checkpoint, self.model, self.optimizer, progress, random)


def _cut(tensors: list[Tensor], piece: Piece) -> Tensor:
    """A run of all elements laid end to end, without laying them."""
    parts: list[Tensor] = []
    start = 0
    for tensor in tensors:
        first, last = max(piece.start - start, 0), min(piece.stop - start, tensor.numel())
        if first < last:
            parts.append(tensor.reshape(-1)[first:last])
        start += tensor.numel()
    return torch.cat(parts)
