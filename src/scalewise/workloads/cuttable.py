"""Where a model can be cut: as it says itself, or as torch.export finds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from scalewise.data.data import Data
from scalewise.plan import Section
from scalewise.workloads.chain import WEIGHED, Border, Part, chain_of, example_of, weigh, whole_part
from scalewise.workloads.workload import Workload


@dataclass(frozen=True)
class Cuttable:
    """A chain of parts that together are the model, with what each weighs and hands on."""

    parts: tuple[Part, ...]
    sections: tuple[Section, ...]
    borders: tuple[Border, ...]
    fixed_batch: int | None = None
    """Samples that must go through at a time: an exported model takes no other number."""


def cuttable_of(workload: Workload, data: Data, model: nn.Module, stages: int, cut: str, size: int) -> Cuttable:
    """`cut` names modules; those of no chain are found in an export, for `size` samples at a time."""
    parts = chain_of(workload, model)
    names = cut.split("+") if cut else []
    if parts and set(names) <= {part.name for part in parts}:
        return Cuttable(parts, *_weighed(workload, data, parts))
    if stages == 1:
        alone = (whole_part(model),)
        with torch.random.fork_rng(devices=[]):
            return Cuttable(alone, *weigh(alone, example_of(data, WEIGHED, "cpu")))
    from scalewise.workloads.exported import evaluated_otherwise, exported_chain  # takes seconds to load

    exported = exported_chain(workload, model, example_of(data, size, "cpu"), names)
    with torch.random.fork_rng(devices=[]):
        sections, borders = weigh(exported, example_of(data, size, "cpu"))
        for part in exported:
            part.module.eval()
        _, evaluated = weigh(exported, example_of(data, size, "cpu"))
    for part, border, other in zip(exported, borders, evaluated, strict=True):
        part.module.train()
        if [(each.shape, each.dtype) for each in border.tensors] != [
            (each.shape, each.dtype) for each in other.tensors
        ]:
            raise evaluated_otherwise(workload, part.name)
    return Cuttable(exported, sections, borders, fixed_batch=size)


def _weighed(workload: Workload, data: Data, parts: tuple[Part, ...]) -> tuple[tuple[Section, ...], tuple[Border, ...]]:
    """On the meta device, else with real samples through the parts themselves."""
    try:
        with torch.device("meta"):
            like = chain_of(workload, workload.model())
        return weigh(like, example_of(data, WEIGHED, "meta"))
    except Exception:  # whatever a model does with real numbers only; if it fails on the CPU too, that is its error
        with torch.random.fork_rng(devices=[]):
            return weigh(parts, example_of(data, WEIGHED, "cpu"))
