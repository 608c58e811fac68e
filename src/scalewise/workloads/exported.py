"""A model that says nowhere how it can be cut, cut by torch.export: before named modules, or before each of its layers.

What a later part needs is handed on from part to part, so that parts only ever talk to their neighbours.
"""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.distributed.pipelining import SplitPoint, pipeline

from scalewise.errors import UserError
from scalewise.spec import unknown
from scalewise.strategies.stage_cuts import begins_the_model
from scalewise.workloads.chain import Part
from scalewise.workloads.changed_buffers import Changed, watched_buffers
from scalewise.workloads.exported_part import ExportedPart, Piece, is_evaluated_alike, tensors_of
from scalewise.workloads.unchanged import unchanged_buffers
from scalewise.workloads.user import users_line
from scalewise.workloads.workload import Workload

ADVICE = (
    "write it as an nn.Sequential, or say its stages with Workload(stages=...): then it is cut between those, or where "
    "pipeline:cut=STAGE says"
)
BEGINNING = "the beginning"
NEVER_CALLED = (nn.ModuleList, nn.ModuleDict)
"""Modules that only hold others."""
LOOKS_AT_NUMBERS = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException")
"""What torch.export raises where a model does one thing or another by the numbers that go through it."""


def exported_chain(workload: Workload, model: nn.Module, inputs: Tensor, names: Sequence[str]) -> tuple[Part, ...]:
    """Parts for just so many samples at a time. `names`: modules that begin a part; none: every layer does."""
    paths = [path for path, _ in model.named_modules() if path]
    for name in names:
        if name not in paths:
            valid = _layers(model) or paths
            kinds = {each: type(model.get_submodule(each)).__name__ for each in valid}
            raise unknown("module to cut at", name, valid, kinds)
    calls, changed = _tried(workload, model, inputs, names or paths)
    if not names:
        layers = [inner for layer in _layers(model) for inner in _called(model, layer, calls)]
        calls = [name for name in calls if name in layers]
    for name in names:
        if calls.count(name) != 1:
            raise UserError(
                f"'{workload.name}' cannot be cut at '{name}', which is called {calls.count(name)} times per step; "
                "name a module that is called once"
            )
    order = [name for name in calls if calls.count(name) == 1]
    cuts = order if names else order[1:]
    if not cuts:
        raise UserError(f"'{workload.name}' cannot be cut into stages: {_too_few(layers, calls)}; {ADVICE}")
    _refuse_lost(workload, changed, cuts)
    try:
        with _quiet():
            at = dict.fromkeys(cuts, SplitPoint.BEGINNING)
            trained = pipeline(model, (inputs,), split_spec=at).split_gm
            evaluated = pipeline(model.eval(), (inputs,), split_spec={}).split_gm  # it knows already where to be cut
    except Exception as error:  # torch.export runs all of the model, which may do anything
        raise UserError(f"'{workload.name}' cannot be cut into stages: {_why(error)}; {ADVICE}") from error
    return _parts(workload, model, (trained, evaluated), [BEGINNING if names else order[0], *cuts])


def _layers(model: nn.Module) -> list[str]:
    """Elements of its outermost lists of layers, and whatever else it is made of."""
    found: list[str] = []
    for name, child in model.named_children():
        if isinstance(child, (*NEVER_CALLED, nn.Sequential)):
            found += [f"{name}.{inner}" for inner in _elements(child)]
        elif any(isinstance(each, NEVER_CALLED) for each in child.modules()):
            found += [f"{name}.{inner}" for inner in _layers(child)]
        else:
            found.append(name)
    return found


def _called(model: nn.Module, layer: str, calls: Sequence[str]) -> list[str]:
    """The layer, or those inside of one that the model never calls itself."""
    inside = [name for name, _ in model.get_submodule(layer).named_children()]
    if layer in calls or not inside:
        return [layer]
    return [found for name in inside for found in _called(model, f"{layer}.{name}", calls)]


def _too_few(layers: Sequence[str], calls: Sequence[str]) -> str:
    """Why nothing is left to cut at: a cut is made where a layer is called, for the first and only time."""
    never = [name for name in layers if name not in calls]
    often = [name for name in layers if calls.count(name) > 1]
    reasons = ["it has no two layers that are called, each once per step"]
    if never:
        reasons.append(f"'{never[0]}' never is, the model only uses what it holds")
    if often:
        reasons.append(f"'{often[0]}' is called {calls.count(often[0])} times")
    return ", ".join(reasons)


def _elements(several: nn.Module) -> Iterator[str]:
    for name, child in several.named_children():
        if isinstance(child, NEVER_CALLED):
            yield from (f"{name}.{inner}" for inner in _elements(child))
        else:
            yield name


def _tried(
    workload: Workload, model: nn.Module, inputs: Tensor, names: Sequence[str]
) -> tuple[list[str], list[Changed]]:
    """Calls of these modules, in order, and the buffers that the model changes."""
    calls: list[str] = []
    with ExitStack() as within, torch.no_grad(), torch.random.fork_rng(devices=[]), unchanged_buffers([model]):
        for name in names:
            note = _note(calls, name)
            within.callback(model.get_submodule(name).register_forward_pre_hook(note).remove)
        try:
            with watched_buffers(model) as changed:
                model(inputs)
        except Exception as error:
            message = " ".join(str(error).split())
            raise UserError(f"'{workload.name}' fails on its own data: {type(error).__name__}: {message}") from error
    return calls, changed


def _refuse_lost(workload: Workload, changed: Sequence[Changed], cuts: Sequence[str]) -> None:
    """What a module changes of its own stays right in place, and where no cut goes through that module."""
    for each in changed:
        divided = [name for name in cuts if not each.owner or name.startswith(f"{each.owner}.")]
        if divided or each.forgotten:
            why = f"in a module that is cut at '{divided[0]}'" if divided else "by putting another tensor in its place"
            raise UserError(
                f"'{workload.name}' cannot be cut into stages: its forward changes the buffer '{each.name}' {why}; "
                f"change it in place, as copy_ does, in a module that is not cut; or {ADVICE}"
            )


def _note(calls: list[str], name: str) -> Any:
    return lambda _module, _inputs: calls.append(name)


def _parts(
    workload: Workload, model: nn.Module, splits: Sequence[fx.GraphModule], names: list[str]
) -> tuple[Part, ...]:
    """`splits`: as it is trained, and as it is evaluated."""
    whole = dict(tensors_of(model))
    trained, evaluated = (list(_pieces(split)) for split in splits)
    if len(trained) + 1 == len(names) and names[0] == BEGINNING:
        raise begins_the_model(names[1])
    if len(trained) != len(names):
        raise UserError(f"'{workload.name}' cannot be cut: it must give one tensor, made by its last layer; {ADVICE}")
    parts: list[Part] = []
    for name, training, evaluation in zip_longest(names, trained, evaluated):
        if not (training and evaluation and is_evaluated_alike(training.module, evaluation.module, whole)):
            raise evaluated_otherwise(workload, name or names[-1])
        parts.append(Part(name, ExportedPart(training, evaluation, whole), "", within="exported."))
    return tuple(parts)


def _pieces(split: fx.GraphModule) -> Iterator[Piece]:
    """None if it gives more than one tensor."""
    nodes = list(split.graph.nodes)
    [result] = [node for node in nodes if node.op == "output"]
    if len(result.all_input_nodes) != 1:
        return
    calls = [node for node in nodes if node.op == "call_module"]
    takes = [node.name for node in nodes if node.op == "placeholder"]
    for number, call in enumerate(calls):
        later = {need.name for each in calls[number + 1 :] for need in each.all_input_nodes}
        later |= {need.name for need in result.all_input_nodes}
        made = [call.name, *(user.name for user in call.users if user.target is operator.getitem)]
        gives = [each for each in [*takes, *made] if each in later]
        yield Piece(split.get_submodule(str(call.target)), call, takes, gives)
        takes = gives


def evaluated_otherwise(workload: Workload, name: str) -> UserError:
    return UserError(
        f"'{workload.name}' cannot be cut at '{name}', where it computes otherwise in evaluation than in training; "
        f"{ADVICE}"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """torch.export remarks on what it does, and prints its graph where it fails; a refusal is told by us."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _why(error: BaseException) -> str:
    """With the user's own line, without torch's advice, which is about other uses of torch.export."""
    while error.__cause__:
        error = error.__cause__
    line = users_line(error)
    place = f" at {line.filename}:{line.lineno}" + f" ({line.line})" * bool(line.line) if line else ""
    kind = type(error).__name__
    if kind in LOOKS_AT_NUMBERS:
        return f"torch.export stops{place}, where what is computed depends on the numbers in a tensor"
    said = next(iter(str(error).strip().splitlines()), "").rstrip(".")
    return f"torch.export stops{place} with {kind}" + f": {said}" * bool(said)
