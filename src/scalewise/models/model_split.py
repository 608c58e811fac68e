"""Find where a model can be split into stages, time the parts, and check that they compute the same as the model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from scalewise.core.errors import UserError
from scalewise.data.dataset import Data
from scalewise.models.chain import (
    WEIGHED,
    Boundary,
    MeasuredChain,
    Part,
    chain_of,
    example_of,
    join_like,
    measure_chain,
    measure_parts,
    unchanged_buffers,
    whole_part,
)
from scalewise.models.parameters import seeded_python_random
from scalewise.models.workload import Workload, not_one_tensor, one_tensor
from scalewise.strategies.plan import Section


def largest_difference(actual: Tensor, expected: Tensor) -> str:
    """Describe the largest difference, or return an empty string if it is rounding (half of the dtype's digits)."""
    if actual.shape != expected.shape:
        return f"{_shape(actual)} instead of {_shape(expected)}"
    if not expected.numel():
        return ""
    if not expected.is_floating_point():
        return "" if torch.equal(actual, expected) else "different integers"
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    if same.all():
        return ""
    largest = float((actual.double() - expected.double()).abs()[~same].max())
    size = float(expected.double().abs().nan_to_num(0.0).max())
    if largest <= math.sqrt(torch.finfo(expected.dtype).eps) * max(size, torch.finfo(expected.dtype).tiny):
        return ""
    return f"largest difference {largest:.3g}, where the largest value is {size:.3g}"


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a scalar"


class _CallOrder:
    """Check during a forward pass whether the model only calls its stages in order.

    Tensors are compared by identity, so that this works on the meta device.
    """

    def __init__(self, parts: Sequence[Part], inputs: Tensor) -> None:
        self.stages = [part.module for part in parts]
        self.started = self.finished = 0
        self.last_output = _StageOutput(inputs)
        self.in_order = True

    def end(self, outputs: Any) -> bool:
        """Return whether all stages were called in order and the model returned the output of the last one."""
        return self.in_order and self.finished == len(self.stages) and self.last_output.is_unchanged(outputs)

    def enter(self, stage: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        due = self.started == self.finished < len(self.stages) and self.stages[self.finished] is stage
        self.in_order &= due and len(arguments) == 1 and not options and self.last_output.is_unchanged(arguments[0])
        self.started += 1

    def leave(self, outputs: Any) -> None:
        self.last_output = _StageOutput(outputs)
        self.finished += 1


class _StageOutput:
    """Output of a stage, with the versions of its tensors to detect in-place changes."""

    def __init__(self, value: Any) -> None:
        self.leaves, self.structure = tree_flatten(value)
        self.versions = _versions(self.leaves)

    def is_unchanged(self, value: Any) -> bool:
        """Return whether `value` has the same tensors, not modified since."""
        leaves, structure = tree_flatten(value)
        same = structure == self.structure and all(a is b for a, b in zip(leaves, self.leaves, strict=True))
        return same and _versions(leaves) == self.versions


def run_and_check_order(model: nn.Module, parts: Sequence[Part], inputs: Tensor) -> tuple[Any, bool]:
    """Run the model; return its output and whether it does nothing but call its stages in order."""
    order = _CallOrder(parts, inputs)
    hooks = []
    for stage in set(order.stages):
        hooks.append(stage.register_forward_pre_hook(order.enter, with_kwargs=True, prepend=True))
        hooks.append(stage.register_forward_hook(lambda _, __, outputs: order.leave(outputs)))
    try:
        outputs = model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs, order.end(outputs)


def _versions(leaves: Sequence[Any]) -> list[int]:
    return [leaf._version for leaf in leaves if isinstance(leaf, Tensor)]


SEED = 0
RULE = (
    "each stage must take exactly the output of the stage before, and everything the model computes must be in a stage"
)

INITIAL_STATE = torch.Generator().manual_seed(SEED).get_state()


def refuse_different_stages(workload: Workload, data: Data, model: nn.Module, parts: Sequence[Part]) -> None:
    """Raise UserError if the declared stages compute something else than the model.

    A model that only calls its stages in order needs no comparison; the meta device shows this without computing.
    Other models are compared with their stages on the host. In evaluation mode batch norm is independent of the other
    samples of a batch. In training mode both start from the same random state. If both draw equally many numbers, the
    order may differ and the outputs are not compared. If one draws more, the stages leave out a dropout, for example.
    """
    if _calls_stages_in_order_on_meta(workload, data):
        return
    inputs = example_of(data, WEIGHED, "cpu")
    stages = f"the stages of '{workload.name}' ({', '.join(part.name for part in parts)})"
    for training in (False, True):
        (expected, in_turn), state = _run(partial(run_and_check_order, model, parts), model, inputs, training)
        one_tensor(workload.name, expected)
        if in_turn:
            continue
        try:
            outputs, state_of_stages = _run(lambda value: _run_parts(parts, value), model, inputs, training)
        except Exception as error:  # a stage may raise anything for the output of another
            message = " ".join(str(error).split())
            raise UserError(
                f"{stages} fail, although the model does not: {type(error).__name__}: {message}; {RULE}"
            ) from error
        difference = largest_difference(outputs, expected)
        drawn_in_other_order = (
            training and torch.equal(state, state_of_stages) and not torch.equal(state, INITIAL_STATE)
        )
        if difference and not drawn_in_other_order:
            mode = " in training mode" if training else ""
            raise UserError(f"{stages} do not compute what the model does{mode} ({difference}); {RULE}")


def _calls_stages_in_order_on_meta(workload: Workload, data: Data) -> bool:
    with torch.random.fork_rng(devices=[]), torch.no_grad(), seeded_python_random():
        try:
            with torch.device("meta"):
                model = workload.model()
            parts, inputs = chain_of(workload, model), example_of(data, WEIGHED, "meta")
            return all(run_and_check_order(model.train(training), parts, inputs)[1] for training in (False, True))
        except Exception:  # the model may need real numbers; it is then compared on the CPU
            return False


def _run(call: Callable[[Tensor], Any], model: nn.Module, inputs: Tensor, training: bool) -> tuple[Any, Tensor]:
    """Return the output of the call and the state of the random generator after it."""
    modes = {module: module.training for module in model.modules()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]), seeded_python_random(), unchanged_buffers([model]):
        torch.default_generator.manual_seed(SEED)
        model.train(training)
        try:
            outputs = call(inputs.clone())
            return outputs, torch.get_rng_state()
        finally:
            for module, mode in modes.items():
                module.training = mode


def _run_parts(parts: Sequence[Part], value: Any) -> Any:
    for part in parts:
        value = part.module(value)
    return value


@dataclass(frozen=True)
class SplittableChain:
    """Model as a chain of parts, with the costs of every part and the tensors that it passes on."""

    parts: tuple[Part, ...]
    sections: tuple[Section, ...]
    boundaries: tuple[Boundary, ...]
    fixed_batch: int | None = None
    """Number of samples that an exported model takes at a time; None if any number is possible."""
    not_between: str = ""
    """Why the model cannot be split at the first place that looked possible; empty if there is no such place."""


def declared_chain(workload: Workload, data: Data, model: nn.Module, cut: str) -> SplittableChain | None:
    """Return the declared chain of a model, or None if the model must be exported. `cut` names modules."""
    parts, names = chain_of(workload, model), cut.split("+") if cut else []
    if not parts or not set(names) <= {part.name for part in parts}:
        return None
    if workload.stages is not None:
        refuse_different_stages(workload, data, model, parts)
    measured = _measure_parts(workload, data, parts)
    if measured.boundaries[-1].packed:
        raise not_one_tensor(workload.name, "tuple")
    return _build_chain(measured, parts, names)


def split_by_export(
    workload: Workload, data: Data, model: nn.Module, stages: int, cut: str, size: int, device: str = "cpu"
) -> SplittableChain:
    """Split any other model with torch.export, for `size` samples at a time. `device` is that of the model."""
    names = cut.split("+") if cut else []
    if stages == 1:
        single = (whole_part(model),)
        with torch.random.fork_rng(devices=[]):
            return _build_chain(measure_chain(single, example_of(data, WEIGHED, device)), single, names)
    from scalewise.models.export import differs_in_evaluation, exported_chain  # torch.export takes seconds to import

    exported = exported_chain(workload, model, example_of(data, size, device), names)
    with seeded_python_random(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        measured = measure_chain(exported, example_of(data, size, device))
        for part in measured.parts:
            part.module.eval()
        _, evaluated = measure_parts(measured.parts, example_of(data, size, device))
    for part, boundary, other in zip_longest(measured.parts, measured.boundaries, evaluated):
        part.module.train()
        if not other or boundary.kinds != other.kinds:
            raise differs_in_evaluation(workload, part.name)
    return _build_chain(measured, exported, names, fixed_batch=size)


def _build_chain(
    measured: MeasuredChain, parts: tuple[Part, ...], names: list[str], fixed_batch: int | None = None
) -> SplittableChain:
    """Build the chain of these parts, joined like the parts that were measured."""
    for name, error in measured.blocked:
        if name in names:
            raise error
    why = str(measured.blocked[0][1]) if measured.blocked else ""
    return SplittableChain(join_like(measured, parts), measured.sections, measured.boundaries, fixed_batch, why)


def _measure_parts(workload: Workload, data: Data, parts: tuple[Part, ...]) -> MeasuredChain:
    """Measure the parts on the meta device, or with real samples if the model cannot run there.

    Random numbers are seeded, so that all ranks split at the same places.
    """
    with seeded_python_random():
        try:
            with torch.device("meta"):
                meta_parts = chain_of(workload, workload.model())
            return measure_chain(meta_parts, example_of(data, WEIGHED, "meta"))
        except Exception:  # the model may need real numbers; if it fails on the CPU too, that error is raised
            pass
    with seeded_python_random(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return measure_chain(parts, example_of(data, WEIGHED, "cpu"))


REPEATS = 3


def section_seconds(chain: SplittableChain, inputs: Tensor, device: torch.device) -> list[float]:
    """Time forward and backward of copies of all parts; return the shortest of a few runs for each."""
    section_times: list[float] = []
    tensors: tuple[Tensor, ...] = (inputs.to(device),)
    before: Boundary | None = None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for part, boundary in zip(chain.parts, chain.boundaries, strict=True):
            module = _copy(part.module).to(device)
            runs = [_run_timed(module, before, tensors, device) for _ in range(REPEATS)]
            module.to("meta")  # frees the weights now: an exported module is in a reference cycle
            section_times.append(min(seconds for seconds, _ in runs))
            tensors, before = runs[-1][1], boundary
    return section_times


def _copy(module: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch warns about itself when it copies an exported module
        return deepcopy(module)


def _run_timed(
    module: nn.Module, before: Boundary | None, values: tuple[Tensor, ...], device: torch.device
) -> tuple[float, tuple[Tensor, ...]]:
    requires_grad = [tensor.requires_grad for tensor in before.tensors] if before else [False]
    tensors = [value.detach().requires_grad_(flag) for value, flag in zip(values, requires_grad, strict=True)]
    _wait_for(device)
    started = perf_counter()
    value = module(before.unpack(tensors) if before else tensors[0])
    outputs = (value,) if isinstance(value, Tensor) else tuple(value)
    if differentiable := [output for output in outputs if output.requires_grad]:
        torch.autograd.backward(differentiable, [torch.ones_like(output) for output in differentiable])
    _wait_for(device)
    return perf_counter() - started, tuple(output.detach() for output in outputs)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
