"""Split a model with torch.export.

A tensor that a later part needs is passed on through all parts between, so that parts communicate with neighbours only.
"""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.distributed.pipelining import SplitPoint, pipeline

from scalewise.core.errors import UserError
from scalewise.core.specs import unknown
from scalewise.models.chain import Part, unchanged_buffers
from scalewise.models.resolve import users_line
from scalewise.models.workload import Workload
from scalewise.strategies.partitioning import begins_the_model


class Piece:
    """Exported part that maps the tensors of the boundary before it to those of the boundary behind it, by name."""

    def __init__(self, module: nn.Module, call: fx.Node, inputs: list[str], outputs: list[str]) -> None:
        self.module = module
        self.arguments = [node.name for node in call.all_input_nodes]
        self.results: dict[str, Any] = {call.name: None} | {
            user.name: user.args[1] for user in call.users if user.target is operator.getitem
        }
        self.inputs, self.outputs = inputs, outputs

    def __call__(self, value: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        known = dict(zip(self.inputs, (value,) if isinstance(value, Tensor) else value, strict=True))
        output = self.module(*(known[name] for name in self.arguments))
        known |= {name: output if index is None else output[index] for name, index in self.results.items()}
        values = tuple(known[name] for name in self.outputs)
        return values[0] if len(values) == 1 else values


class ExportedPart(nn.Module):
    """Part with one graph for training and one for evaluation, which share their tensors."""

    def __init__(self, trained: Piece, evaluated: Piece, whole: Mapping[str, Tensor]) -> None:
        """`whole`: tensors of the model by name; an export may have copies of them."""
        super().__init__()
        self.exported = trained.module
        self.pieces = {True: trained, False: evaluated}
        self.shared: list[tuple[nn.Module, str, str]] = []
        """Modules of the evaluation graph, names of their tensors, and names of the same tensors in this module."""
        own_name = {id(whole.get(name, tensor)): f"exported.{name}" for name, tensor in named_tensors(self.exported)}
        for number, (path, tensor) in enumerate(named_tensors(evaluated.module)):
            key = id(whole.get(path, tensor))
            if key not in own_name:  # a constant that torch.export created
                own_name[key] = f"constant_{number}"
                self.register_buffer(own_name[key], tensor.detach(), persistent=False)
            inner, _, name = path.rpartition(".")
            self.shared.append((evaluated.module.get_submodule(inner), name, own_name[key]))
        self._share({})

    def train(self, mode: bool = True) -> ExportedPart:
        super().train(mode)
        self._share({} if mode else dict(named_tensors(self)))
        return self

    def forward(self, value: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        return self.pieces[self.training](value)

    def _share(self, tensors: dict[str, Tensor]) -> None:
        """Set the tensors of the evaluation graph; an empty dict removes them, so that they are not held twice."""
        for module, name, own_name in self.shared:
            store: dict[str, Any] = module._parameters if name in module._parameters else module._buffers
            store[name] = tensors.get(own_name)


def uses_same_weights(trained: nn.Module, evaluated: nn.Module, whole: Mapping[str, Tensor]) -> bool:
    """Return whether the evaluation graph uses no other weights than the training graph."""
    trained_ids = {id(whole.get(name, tensor)) for name, tensor in named_tensors(trained)}
    weights = evaluated.named_parameters(remove_duplicate=False)
    return all(id(whole.get(name, weight)) in trained_ids for name, weight in weights)


def named_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return parameters and buffers under all of their names."""
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]


@dataclass(frozen=True)
class ChangedBuffer:
    """Buffer that a forward pass changes."""

    name: str
    replaced: bool
    """Whether it was replaced by another tensor with other values, which torch.export does not keep."""

    @property
    def owner(self) -> str:
        """Path of the module that holds the buffer; empty for the model itself."""
        return self.name.rpartition(".")[0]


@contextmanager
def record_changed_buffers(model: nn.Module) -> Iterator[list[ChangedBuffer]]:
    """Yield a list that is filled at the end with the buffers that were changed."""
    before = [(name, buffer, buffer._version, buffer.clone()) for name, buffer in model.named_buffers()]
    changed: list[ChangedBuffer] = []
    yield changed
    after = dict(model.named_buffers())
    for name, buffer, version, value in before:
        new_buffer = after.get(name)
        if new_buffer is not buffer or buffer._version != version:
            same_value = new_buffer is not None and torch.equal(new_buffer, value)
            changed.append(ChangedBuffer(name, replaced=new_buffer is not buffer and not same_value))


ADVICE = (
    "write it as an nn.Sequential, or declare its stages with Workload(stages=...), between which it is then split "
    "(or at pipeline:cut=STAGE)"
)
BEGINNING = "the beginning"
NEVER_CALLED = (nn.ModuleList, nn.ModuleDict)
"""Containers that only hold other modules and are never called."""
DATA_DEPENDENT_ERRORS = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException")
"""Errors that torch.export raises if the control flow of a model depends on the values of tensors."""


def exported_chain(workload: Workload, model: nn.Module, inputs: Tensor, names: Sequence[str]) -> tuple[Part, ...]:
    """Split a model into parts for a fixed number of samples.

    `names` are the modules that begin a part; if empty, every layer begins a part.
    """
    paths = [path for path, _ in model.named_modules() if path]
    for name in names:
        if name not in paths:
            valid = _layers(model) or paths
            kinds = {path: type(model.get_submodule(path)).__name__ for path in valid}
            raise unknown("module to split at", name, valid, kinds)
    calls, changed = _run_recorded(workload, model, inputs, names or paths)
    if not names:
        layers = [inner for layer in _layers(model) for inner in _called_layers(model, layer, calls)]
        calls = [name for name in calls if name in layers]
    for name in names:
        if calls.count(name) != 1:
            raise UserError(
                f"'{workload.name}' cannot be split at '{name}', which is called {calls.count(name)} times per step; "
                "name a module that is called once"
            )
    order = [name for name in calls if calls.count(name) == 1]
    cuts = order if names else order[1:]
    if not cuts:
        raise UserError(f"'{workload.name}' cannot be split into stages: {_explain_no_cuts(layers, calls)}; {ADVICE}")
    _refuse_lost_buffers(workload, changed, cuts)
    try:
        with _silence_export():
            split_points = dict.fromkeys(cuts, SplitPoint.BEGINNING)
            trained = pipeline(model, (inputs,), split_spec=split_points).split_gm
            evaluated = pipeline(
                model.eval(), (inputs,), split_spec={}
            ).split_gm  # the split points are already set in the model
    except Exception as error:  # torch.export runs the whole model, which may raise anything
        raise UserError(
            f"'{workload.name}' cannot be split into stages: {_explain_export_error(error)}; {ADVICE}"
        ) from error
    return _parts(workload, model, (trained, evaluated), [BEGINNING if names else order[0], *cuts])


def _layers(model: nn.Module) -> list[str]:
    """Return the elements of the outermost lists of layers, and all other submodules."""
    layers: list[str] = []
    for name, child in model.named_children():
        if isinstance(child, (*NEVER_CALLED, nn.Sequential)):
            layers += [f"{name}.{inner}" for inner in _elements(child)]
        elif any(isinstance(module, NEVER_CALLED) for module in child.modules()):
            layers += [f"{name}.{inner}" for inner in _layers(child)]
        else:
            layers.append(name)
    return layers


def _called_layers(model: nn.Module, layer: str, calls: Sequence[str]) -> list[str]:
    """Return the layer, or the layers inside it if the model never calls the layer itself."""
    inside = [name for name, _ in model.get_submodule(layer).named_children()]
    if layer in calls or not inside:
        return [layer]
    return [inner for name in inside for inner in _called_layers(model, f"{layer}.{name}", calls)]


def _explain_no_cuts(layers: Sequence[str], calls: Sequence[str]) -> str:
    """Explain why the model has no place to split: a split needs a layer that is called exactly once per step."""
    never = [name for name in layers if name not in calls]
    often = [name for name in layers if calls.count(name) > 1]
    reasons = ["it needs two layers that are called once per step each"]
    if never:
        reasons.append(f"'{never[0]}' is never called, the model only uses its parameters")
    if often:
        reasons.append(f"'{often[0]}' is called {calls.count(often[0])} times")
    return ", ".join(reasons)


def _elements(container: nn.Module) -> Iterator[str]:
    for name, child in container.named_children():
        if isinstance(child, NEVER_CALLED):
            yield from (f"{name}.{inner}" for inner in _elements(child))
        else:
            yield name


def _run_recorded(
    workload: Workload, model: nn.Module, inputs: Tensor, names: Sequence[str]
) -> tuple[list[str], list[ChangedBuffer]]:
    """Run the model once; return the calls of these modules in order and the buffers that the model changes."""
    calls: list[str] = []
    with ExitStack() as hooks, torch.no_grad(), torch.random.fork_rng(devices=[]), unchanged_buffers([model]):
        for name in names:
            hook = _call_hook(calls, name)
            hooks.callback(model.get_submodule(name).register_forward_pre_hook(hook).remove)
        try:
            with record_changed_buffers(model) as changed:
                model(inputs)
        except Exception as error:
            message = " ".join(str(error).split())
            raise UserError(f"'{workload.name}' fails on its own data: {type(error).__name__}: {message}") from error
    return calls, changed


def _refuse_lost_buffers(workload: Workload, changed: Sequence[ChangedBuffer], cuts: Sequence[str]) -> None:
    """Raise UserError if a changed buffer is replaced, or belongs to a module that is split."""
    for buffer in changed:
        divided = [name for name in cuts if not buffer.owner or name.startswith(f"{buffer.owner}.")]
        if divided or buffer.replaced:
            reason = f"in a module that is split at '{divided[0]}'" if divided else "by replacing it with a new tensor"
            raise UserError(
                f"'{workload.name}' cannot be split into stages: its forward changes the buffer '{buffer.name}' "
                f"{reason}; change it in place with copy_, in a module that is not split; or {ADVICE}"
            )


def _call_hook(calls: list[str], name: str) -> Any:
    return lambda _module, _inputs: calls.append(name)


def _parts(
    workload: Workload, model: nn.Module, splits: Sequence[fx.GraphModule], names: list[str]
) -> tuple[Part, ...]:
    """Build the parts from the graphs in `splits`: the training graph and the evaluation graph."""
    whole = dict(named_tensors(model))
    trained, evaluated = (list(_pieces(split)) for split in splits)
    if len(trained) + 1 == len(names) and names[0] == BEGINNING:
        raise begins_the_model(names[1])
    if len(trained) != len(names):
        raise UserError(
            f"'{workload.name}' cannot be split: it must return one tensor, made by its last layer; {ADVICE}"
        )
    parts: list[Part] = []
    for name, training, evaluation in zip_longest(names, trained, evaluated):
        if not (training and evaluation and uses_same_weights(training.module, evaluation.module, whole)):
            raise differs_in_evaluation(workload, name or names[-1])
        parts.append(Part(name, ExportedPart(training, evaluation, whole), "", within="exported."))
    return tuple(parts)


def _pieces(split: fx.GraphModule) -> Iterator[Piece]:
    """Yield the parts of a split graph; yield none if the model returns more than one tensor."""
    nodes = list(split.graph.nodes)
    [result] = [node for node in nodes if node.op == "output"]
    if len(result.all_input_nodes) != 1:
        return
    calls = [node for node in nodes if node.op == "call_module"]
    inputs = [node.name for node in nodes if node.op == "placeholder"]
    for number, call in enumerate(calls):
        needed = {node.name for later_call in calls[number + 1 :] for node in later_call.all_input_nodes}
        needed |= {node.name for node in result.all_input_nodes}
        results = [call.name, *(user.name for user in call.users if user.target is operator.getitem)]
        outputs = [name for name in [*inputs, *results] if name in needed]
        yield Piece(split.get_submodule(str(call.target)), call, inputs, outputs)
        inputs = outputs


def differs_in_evaluation(workload: Workload, name: str) -> UserError:
    return UserError(
        f"'{workload.name}' cannot be split at '{name}', because it computes differently in evaluation and training "
        f"there; {ADVICE}"
    )


@contextmanager
def _silence_export() -> Iterator[None]:
    """Suppress the logs, warnings and output of torch.export; errors are reported by the caller."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _explain_export_error(error: BaseException) -> str:
    """Describe the error with the user's own line, without torch's advice for direct users of torch.export."""
    while error.__cause__:
        error = error.__cause__
    line = users_line(error)
    place = f" at {line.file}:{line.line}" + f" ({line.code})" * bool(line.code) if line else ""
    kind = type(error).__name__
    if kind in DATA_DEPENDENT_ERRORS:
        return f"torch.export stops{place}, where the computation depends on the values of a tensor"
    message = next(iter(str(error).strip().splitlines()), "").rstrip(".")
    return f"torch.export stops{place} with {kind}" + f": {message}" * bool(message)
