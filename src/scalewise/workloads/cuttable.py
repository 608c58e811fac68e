"""Where a model can be cut: as it says itself, or as torch.export finds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import nn

from scalewise.data.data import Data
from scalewise.plan import Section
from scalewise.workloads.chain import (
    WEIGHED,
    Border,
    Part,
    Weighed,
    chain_of,
    chain_through,
    example_of,
    joined_as,
    weigh,
    whole_part,
)
from scalewise.workloads.chain_trial import refuse_another_model
from scalewise.workloads.outputs import gives_otherwise
from scalewise.workloads.reached import dice_alike
from scalewise.workloads.workload import Workload


@dataclass(frozen=True)
class Cuttable:
    """A chain of parts that together are the model, with what each weighs and hands on."""

    parts: tuple[Part, ...]
    sections: tuple[Section, ...]
    borders: tuple[Border, ...]
    fixed_batch: int | None = None
    """Samples that must go through at a time: an exported model takes no other number."""
    not_between: str = ""
    """Why the first of those places is none where the chain cannot be cut."""


def cuttable_as_said(workload: Workload, data: Data, model: nn.Module, cut: str) -> Cuttable | None:
    """Of a model that says where it can be cut; None of one that is yet to be exported. `cut` names modules."""
    parts, names = chain_of(workload, model), cut.split("+") if cut else []
    if not parts or not set(names) <= {part.name for part in parts}:
        return None
    if workload.stages is not None:
        refuse_another_model(workload, data, model, parts)
    weighed = _weighed(workload, data, parts)
    if weighed.borders[-1].packed:
        raise gives_otherwise(workload.name, "tuple")
    return _cuttable(weighed, parts, names)


def cuttable_else(workload: Workload, data: Data, model: nn.Module, stages: int, cut: str, size: int) -> Cuttable:
    """Of any other, by its export, for `size` samples at a time."""
    names = cut.split("+") if cut else []
    if stages == 1:
        alone = (whole_part(model),)
        with torch.random.fork_rng(devices=[]):
            return _cuttable(chain_through(alone, example_of(data, WEIGHED, "cpu")), alone, names)
    from scalewise.workloads.exported import evaluated_otherwise, exported_chain  # takes seconds to load

    exported = exported_chain(workload, model, example_of(data, size, "cpu"), names)
    with dice_alike(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        weighed = chain_through(exported, example_of(data, size, "cpu"))
        for part in weighed.parts:
            part.module.eval()
        _, evaluated = weigh(weighed.parts, example_of(data, size, "cpu"))
    for part, border, other in zip_longest(weighed.parts, weighed.borders, evaluated):
        part.module.train()
        if not other or border.kinds != other.kinds:
            raise evaluated_otherwise(workload, part.name)
    return _cuttable(weighed, exported, names, fixed_batch=size)


def _cuttable(weighed: Weighed, parts: tuple[Part, ...], names: list[str], fixed_batch: int | None = None) -> Cuttable:
    """Of these parts, joined as those are that were weighed."""
    for name, error in weighed.blocked:
        if name in names:
            raise error
    why = str(weighed.blocked[0][1]) if weighed.blocked else ""
    return Cuttable(joined_as(weighed, parts), weighed.sections, weighed.borders, fixed_batch, why)


def _weighed(workload: Workload, data: Data, parts: tuple[Part, ...]) -> Weighed:
    """On the meta device, else with real samples through the parts themselves; alike on every rank, which all have to
    cut at the same places."""
    with dice_alike():
        try:
            with torch.device("meta"):
                like = chain_of(workload, workload.model())
            return chain_through(like, example_of(data, WEIGHED, "meta"))
        except Exception:  # whatever a model does with real numbers only; if it fails on the CPU too, that is its error
            pass
    with dice_alike(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return chain_through(parts, example_of(data, WEIGHED, "cpu"))
