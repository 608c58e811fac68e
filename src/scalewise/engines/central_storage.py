"""Engine of central storage.

every rank   load  (forward pull ...)  loss  (pull backward push ...)  idle  update  idle
                                                                      barrier      barrier
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections.abc import Callable
from functools import partial

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewise.core.errors import RunFailed
from scalewise.engines.base import EagerEngine, Engine, Job
from scalewise.models.parameters import is_left_out, make_model, one_kind, refuse_unreached, trainable, views_of
from scalewise.runtime.exchange import broadcast_value
from scalewise.runtime.feed import Feed, make_feed
from scalewise.runtime.host_offload import Copied, Loans, make_copier
from scalewise.runtime.optimizers import autocast, make_optimizer, refuse_unless_elementwise, state_after_a_step
from scalewise.strategies.central_storage import CentralStorage
from scalewise.strategies.plan import split


def shared_zeros(shape: tuple[int, ...], dtype: torch.dtype, rank: int, world: int) -> Tensor:
    """Create a tensor of zeros in memory that all ranks share; every rank calls this in the same order.

    Uses a memfd: it has no name that a killed run could leave behind, and is not limited by the size of /dev/shm.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes == 0:
        return torch.zeros(shape, dtype=dtype)
    if rank == 0:
        free = psutil.virtual_memory().available
        if nbytes > free:
            raise RunFailed(
                f"central-storage needs {nbytes / 1e9:.2f} GB of host memory, but only {free / 1e9:.2f} GB are free"
            )
        descriptor = os.memfd_create("scalewise", os.MFD_CLOEXEC)
        os.posix_fallocate(descriptor, 0, nbytes)  # reserve all memory now, so that a later write cannot fail
        _send_path(f"/proc/{os.getpid()}/fd/{descriptor}", world)
    else:
        descriptor = os.open(_receive_path(), os.O_RDWR | os.O_CLOEXEC)
    memory = mmap.mmap(descriptor, nbytes)
    if world > 1:
        dist.barrier()  # the other ranks must have opened the descriptor of rank 0
    os.close(descriptor)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def pin(tensor: Tensor) -> None:
    """Page-lock the memory of a tensor, so that the GPU can copy asynchronously; undone when the tensor is freed."""
    if tensor.numel() == 0:
        return
    address, nbytes = tensor.data_ptr(), tensor.nbytes
    cuda = torch.cuda.cudart()
    code = int(cuda.cudaHostRegister(address, nbytes, 0))
    if code:
        raise RunFailed(f"CUDA could not pin {nbytes / 1e9:.2f} GB of host memory for central-storage (error {code})")
    weakref.finalize(tensor, cuda.cudaHostUnregister, address).atexit = False


def _send_path(path: str, world: int) -> None:
    if world > 1:
        broadcast_value(path, 0)


def _receive_path() -> str:
    return str(broadcast_value(None, 0))


MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class HostUpdate:
    """Optimizer of one rank's slice of the weights in shared host memory.

    Works with element-wise optimizers only. Their state is in shared memory too, so that any rank can save all of it.
    """

    def __init__(
        self,
        make: MakeOptimizer,
        parameters: list[nn.Parameter],
        weights: Tensor,
        gradients: Tensor,
        rank: int,
        world: int,
    ) -> None:
        """`weights` contains the concatenated parameters; `gradients` has one such row per rank."""
        self.parameters = parameters
        own_slice = split(weights.numel(), world, rank)
        self.gradients = gradients[:, own_slice]
        self.slice = nn.Parameter(weights[own_slice])
        self.slice.grad = self.gradients[0]
        self.optimizer = make([self.slice])
        self.first = rank == 0
        self.tensors: dict[str, Tensor] = {}
        """Optimizer state with one element per weight, by name."""
        self.scalars: dict[str, Tensor] = {}
        """Optimizer state with one element per parameter, such as a step count, by name."""
        for key, example in state_after_a_step(make, weights.dtype).items():
            if example.dim():
                self.tensors[key] = shared_zeros(tuple(weights.shape), example.dtype, rank, world)
            else:
                self.scalars[key] = shared_zeros((len(parameters),), example.dtype, rank, world)
        self.own: dict[str, Tensor] = {key: tensor[own_slice] for key, tensor in self.tensors.items()}
        self.own |= {key: scalar[0].clone() for key, scalar in self.scalars.items()}
        self.optimizer.state[self.slice] = self.own

    def step(self) -> None:
        """Sum the gradients of all ranks and update the slice; no rank may read weights meanwhile."""
        total, *others = self.gradients
        for other in others:
            total.add_(other)
        self.optimizer.step()
        if self.first:
            for key, scalar in self.scalars.items():
                scalar.copy_(self.own[key])

    def show_in(self, optimizer: torch.optim.Optimizer) -> None:
        """Put views of the state into an optimizer of the whole model, for checkpoints."""
        for number, parameter in enumerate(self.parameters):
            optimizer.state[parameter] = {
                **{key: views[number] for key, views in self._views().items()},
                **{key: scalar[number] for key, scalar in self.scalars.items()},
            }

    def take_from(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy state that a checkpoint has loaded into the optimizer of the whole model."""
        views = self._views() | {key: list(scalar) for key, scalar in self.scalars.items()}
        for number, parameter in enumerate(self.parameters):
            for key, value in optimizer.state[parameter].items():
                if value.data_ptr() != views[key][number].data_ptr():
                    views[key][number].copy_(value)
        self.show_in(optimizer)

    def begin(self) -> None:
        """Continue from the step count of rank 0; called before the first step."""
        for key, scalar in self.scalars.items():
            self.own[key].copy_(scalar[0])

    def _views(self) -> dict[str, list[Tensor]]:
        return {key: views_of(tensor, self.parameters) for key, tensor in self.tensors.items()}


def build(strategy: CentralStorage, job: Job) -> Engine:
    refuse_unless_elementwise(job.optimizer, "slices of central storage")
    model = make_model(job.workload, job.data)
    # The device must have room for the largest parameter, its gradient and the parameters fetched ahead.
    largest = max((parameter.nbytes for parameter in trainable(model)), default=0)
    feed = make_feed(job.data, job.settings.load, job.place.device, (2 + strategy.prefetch) * largest)
    return CentralStorageEngine(job, model, feed, strategy.prefetch)


class CentralStorageEngine(EagerEngine):
    """Engine whose trainable parameters are in host memory; buffers and frozen parameters stay on the device."""

    def __init__(self, job: Job, model: nn.Module, feed: Feed, ahead: int) -> None:
        place = job.place
        self.parameters = trainable(model)
        dtype = one_kind(self.parameters)
        elements = sum(parameter.numel() for parameter in self.parameters)
        self.weights = shared_zeros((elements,), dtype, place.rank, place.world)
        self.gradients = shared_zeros((place.world, elements), dtype, place.rank, place.world)
        for parameter, view in zip(self.parameters, views_of(self.weights, self.parameters), strict=True):
            if place.rank == 0:
                view.copy_(parameter.detach())
            parameter.data = view
        _move_untrained_tensors(model, place.device)
        super().__init__(job, model, feed)
        make = partial(make_optimizer, job.optimizer, learning_rate=job.learning_rate)
        self.update = HostUpdate(make, self.parameters, self.weights, self.gradients, place.rank, place.world)
        if place.rank:
            self.optimizer = None
        else:
            self.update.show_in(self.optimizer)  # type: ignore[arg-type]
        self.row = self.gradients[place.rank]
        self.gradient_views = views_of(self.row, self.parameters)
        if place.device.type == "cuda":
            pin(self.weights)
            pin(self.row)
        self.copier = make_copier(place.device)
        self.loans = Loans(model, self.weights, place.device, self.copier, ahead)
        self.given: set[int] = set()
        """Numbers of the parameters whose gradients have been copied to the host in this step."""
        engine = weakref.proxy(self)  # strong references in hooks would keep the memory from being freed
        for number, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(partial(_push_gradient, engine, number))

    @property
    def copied(self) -> Copied:
        return self.loans.copied

    def start_epoch(self, batches: list[Tensor]) -> None:
        """Set the batches of the epoch and take over optimizer state that a checkpoint may have set."""
        super().start_epoch(batches)
        if self.optimizer:
            self.update.take_from(self.optimizer)
        if self.job.place.world > 1:
            dist.barrier()
        self.update.begin()

    def step(self) -> None:
        job, clock = self.job, self.job.clock
        clock.start()
        total: Tensor | None = None
        last = False
        self.given.clear()
        with self.loans.open():
            while not last:
                (inputs, targets), weight, last = next(self.pending)
                clock.lap("load")
                self.loans.begin("forward", clock)
                with autocast(job.settings.precision, job.place.device):
                    outputs = self.model(inputs)
                    clock.lap("forward")
                    self.loans.stage = "loss"
                    loss = job.workload.loss(outputs, targets)
                if weight != 1.0:
                    loss = loss * weight
                clock.lap("loss")
                self.loans.begin("backward", clock)
                self.loans.backward(loss)
                clock.lap("backward")
                total = loss.detach() if total is None else total + loss.detach()
        self._update()
        self.copied.steps += 1
        self.step_losses.append(total)  # type: ignore[arg-type]

    def give(self, number: int, gradient: Tensor) -> None:
        """Copy a complete gradient to the host, or add it to the gradient of earlier micro-batches."""
        self.job.clock.lap("backward")
        adds = number in self.given
        self.copier.give(gradient, self.gradient_views[number], add=adds)
        self.given.add(number)
        self.copied.given_bytes += gradient.nbytes
        self.copied.fetched_bytes += gradient.nbytes * adds
        self.job.clock.lap("push")

    def _update(self) -> None:
        lap = self.job.clock.lap
        if len(self.given) < len(self.gradient_views):
            missing = set(range(len(self.gradient_views))) - self.given
            refuse_unreached(self.model, [self.parameters[number] for number in missing])
        self.copier.given()
        lap("push")
        self.copier.settle()
        self._wait_for_all_ranks()
        self.update.step()
        lap("update")
        self._wait_for_all_ranks()

    def _wait_for_all_ranks(self) -> None:
        if self.job.place.world > 1:
            dist.barrier()
            self.job.clock.lap("idle")


def _push_gradient(engine: CentralStorageEngine, number: int, parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    engine.give(number, parameter.grad)
    parameter.grad = None


def _move_untrained_tensors(model: nn.Module, device: torch.device) -> None:
    for parameter in model.parameters():
        if not parameter.requires_grad or is_left_out(parameter):
            parameter.data = parameter.data.to(device)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
