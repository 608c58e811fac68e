"""Execution options on a device: global settings of torch, memory format, convolution algorithm, compilation."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor, nn

from scalewise.core.errors import UserError
from scalewise.core.training_options import MODES_WITH_GRAPHS, ExecutionOptions
from scalewise.models.workload import Workload
from scalewise.runtime.exchange import all_gather_values
from scalewise.runtime.fourier_convolution import use_fourier_convolutions
from scalewise.runtime.optimizers import autocast, set_precision

States = Mapping[str, Tensor]
"""States of a rank's random generators: 'cpu' and, on a GPU, 'cuda'."""


@dataclass(frozen=True)
class Stream:
    """Random numbers of one rank.

    Ranks that must draw equal numbers have the same `home`: the first of these ranks.
    """

    seed: int
    home: int = 0
    world: int = 1

    def begin(self, steps_done: int = 0) -> None:
        """Seed the generators; those of home rank 0 continue after model creation, as on one device."""
        if self.home:
            torch.manual_seed(seed_of(self.seed, self.home, steps_done))

    def go_on(self, states: Sequence[States], steps_done: int) -> None:
        """Resume from the states of all ranks of a checkpoint.

        If the number of ranks has changed, only home rank 0 resumes its state; the others are seeded anew, with numbers
        that differ from those of their first step.
        """
        if len(states) != self.world and self.home:
            self.begin(steps_done)
        else:
            set_states(states[self.home])


def seed_of(*numbers: int) -> int:
    """Derive a seed from numbers by hashing, so that close numbers give unrelated seeds."""
    text = "/".join(map(str, numbers))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def states_of_all(rank: int, world: int) -> list[States]:
    """Gather the random states of all ranks on rank 0; every rank must call this."""
    own = states()
    if world == 1:
        return [own]
    gathered: list[States] = all_gather_values(dict(own))
    return [] if rank else gathered


def states() -> States:
    cpu_state = {"cpu": torch.get_rng_state()}
    # A CPU rank on a machine with a GPU has no CUDA context and must not create one.
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return cpu_state | {"cuda": torch.cuda.get_rng_state()} if on_gpu else cpu_state


def set_states(states: States) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():  # applied by torch when a context is created
        torch.cuda.set_rng_state(states["cuda"])


CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Number of dimensions -> memory format."""


@contextmanager
def execution_scope(options: ExecutionOptions, device: torch.device) -> Iterator[None]:
    """Set the global settings of torch that the options need, and restore them at the end.

    Compiled code is discarded at the end, together with the processes that compile it.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
    set_precision(options.precision, device)
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
        if stream is not None:
            torch.cuda.set_stream(stream)
        if options.compiles:
            from torch._inductor.async_compile import shutdown_compile_workers

            torch.compiler.reset()
            shutdown_compile_workers()


def place_model(
    model: nn.Module, options: ExecutionOptions, device: torch.device, inputs: Callable[[], Tensor]
) -> list[str]:
    """Move a model to the device in place and apply memory format and convolution algorithm; return notes.

    `inputs` returns a batch on the device, for timing convolutions.
    """
    model.to(device)
    if options.memory_format == "channels_last":
        refuse_without_images(model)
        for dimensions, memory_format in CHANNELS_LAST.items():
            for tensor in [*model.parameters(), *model.buffers()]:
                if tensor.dim() == dimensions:
                    tensor.data = tensor.data.contiguous(memory_format=memory_format)
    if options.convolutions == "direct":
        return []
    with autocast(options.precision, device):
        return use_fourier_convolutions(model, options.convolutions, lambda: formatted(inputs(), options))


def refuse_without_images(model: nn.Module) -> None:
    """Raise a UserError if the memory format channels_last changes nothing in this model."""
    if not any(parameter.dim() in CHANNELS_LAST for parameter in model.parameters()):
        raise UserError(
            "--memory-format channels_last needs a model with 2-D or 3-D convolutions, and this one has none; use "
            "--memory-format contiguous"
        )


def formatted(inputs: Tensor, options: ExecutionOptions) -> Tensor:
    """Return the inputs in the memory format of the options."""
    if options.memory_format == "channels_last" and inputs.dim() in CHANNELS_LAST:
        return inputs.contiguous(memory_format=CHANNELS_LAST[inputs.dim()])
    return inputs


def refuse_without_compiler(device: torch.device) -> None:
    """Raise a UserError if this machine lacks the compiler that torch.compile needs for the device."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise UserError(
                "--execution compile needs triton to generate code for a GPU, and it is not installed; use "
                "pip install triton, or --execution eager"
            )
        compilers, language, variable = ["gcc", "clang"], "C", "CC"
    else:
        compilers, language, variable = ["g++"], "C++", "CXX"
    if given := os.environ.get(variable):
        compilers = [given.split()[0]]
    if not any(map(shutil.which, compilers)):
        raise UserError(
            f"--execution compile needs a {language} compiler, and this machine has no {' or '.join(compilers)}; "
            f"install one, name it in the environment variable {variable}, or use --execution eager"
        )


class LossComputation:
    """Forward pass and loss of a batch with execution options, for training.

    `network` is the module to call: the model or a wrapper of it. With `--execution compile`, the network and the loss
    are compiled together, unless `loss_apart` is given, which wrappers with hooks of their own need.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        options: ExecutionOptions,
        device: torch.device,
        *,
        loss_apart: bool = False,
    ) -> None:
        self.network, self.loss, self.options, self.device = network, loss, options, device
        self.loss_apart = loss_apart
        self.notes: list[str] = []
        self.compile_seconds = 0.0
        self.overwrites = False
        """Whether results are overwritten by the next call (CUDA graphs of torch.compile)."""
        self._forward: Callable[[Tensor], Tensor] = network
        self._compiled: Callable[[Tensor, Tensor], Tensor] | None = None

    def __call__(self, inputs: Tensor, targets: Tensor, mark: Callable[[str], None]) -> Tensor:
        """Return the mean loss; `mark` is called at the end of the phases forward and loss."""
        with autocast(self.options.precision, self.device):
            if self._compiled is not None:
                if self.overwrites:
                    torch.compiler.cudagraph_mark_step_begin()
                loss = self._compiled(inputs, targets)
                mark("forward")
                return loss
            outputs = self._forward(formatted(inputs, self.options))
            mark("forward")
            loss = self.loss(outputs, targets)
        mark("loss")
        return loss

    def compile(self, *, captured: bool = False) -> None:
        """Compile on the next calls. `captured`: the caller captures the whole step in a CUDA graph."""
        refuse_without_compiler(self.device)
        options, network, loss = self.options, self.network, self.loss
        mode = options.compile_mode
        if captured:
            mode = MODES_WITH_GRAPHS.get(mode, mode)
        self.overwrites = mode in MODES_WITH_GRAPHS and self.device.type == "cuda"
        if self.loss_apart:
            self._forward = torch.compile(network, mode=mode, dynamic=False)
            return

        def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
            return loss(network(formatted(inputs, options)), targets)

        self._compiled = torch.compile(loss_of, mode=mode, dynamic=False)

    def prepare(self, model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
        """Compile for the shape of each batch, without training: gradients, buffers and random numbers are restored.

        Raise a UserError if the model cannot be compiled.
        """
        # Loading the compiler takes seconds.
        from torch._dynamo.exc import TorchDynamoException
        from torch._dynamo.utils import counters

        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        random = states()
        breaks = sum(counters["graph_break"].values())
        started = perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for inputs, targets in batches:
                    self(inputs, targets, lambda _: None).backward()
        except TorchDynamoException as error:
            raise UserError(
                f"--execution compile is not possible: {_reason(error)}; use --execution eager or auto"
            ) from error
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.compile_seconds += perf_counter() - started
        set_states(random)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
        for parameter in model.parameters():
            parameter.grad = None
        if not self.loss_apart and (count := sum(counters["graph_break"].values()) - breaks):
            reason = str(next(iter(counters["graph_break"]))).strip().partition("\n")[0]
            self.notes.append(f"torch.compile compiled the model in parts ({count} graph breaks): {reason}")


def _reason(error: BaseException) -> str:
    """First informative line of an error of torch.compile."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".:;") if lines else type(error).__name__


@dataclass(frozen=True)
class StepResult:
    """Loss and gradients of one batch."""

    loss: float
    gradients: Mapping[str, Tensor]
    """Parameter name -> gradient in host memory."""


def loss_and_gradients(
    workload: Workload, model: nn.Module, options: ExecutionOptions, device: torch.device, batch: tuple[Tensor, Tensor]
) -> StepResult:
    """Compute one batch with execution options, without updating the weights; run it inside `execution_scope`.

    The model is changed in place (device, memory format, convolutions). CUDA graphs are not used: they replay the same
    kernels.
    """
    inputs, targets = (tensor.to(device) for tensor in batch)
    place_model(model, options, device, lambda: inputs)
    compute = LossComputation(model, workload.loss, options, device)
    if options.compiles:
        compute.compile(captured=True)
        compute.prepare(model, iter([(inputs, targets)]))
    scale = 2.0**16 if options.precision == "fp16" else 1.0
    loss = compute(inputs, targets, lambda _: None)
    (loss * scale).backward()
    gradients = {
        name: parameter.grad.detach().cpu().contiguous() / scale
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    model.zero_grad()
    return StepResult(float(loss.detach()), gradients)
