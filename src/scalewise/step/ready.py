"""When, in backward, each parameter's gradient is complete: a workload watched while it is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import median
from time import perf_counter

import torch
from torch import Tensor, nn

from scalewise.workloads.workload import Workload

Moment = float | torch.cuda.Event


class Watched:
    """Its `workload` trains as the one given does; a mark costs a CPU well under a microsecond, a GPU a few."""

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self.workload = replace(workload, model=self._model, loss=self._loss)
        self._inner = workload
        self._moment: Callable[[], Moment] = _event if device.type == "cuda" else perf_counter
        self._made = False
        self._steps: list[list[Moment]] = []
        """Of each backward: its start, then the moment of every gradient."""

    def ready(self) -> tuple[float, ...]:
        """Fractions of backward in order of completion, the median of all steps but the first, which warms up."""
        whole = max(map(len, self._steps), default=0)
        steps = [_fractions(step) for step in self._steps[1:] or self._steps if len(step) == whole > 1]
        return tuple(accumulate((median(moments) for moments in zip(*steps, strict=True)), max))

    def _model(self) -> nn.Module:
        """The first one made is trained; another may be counted, which goes backward, too."""
        model = self._inner.model()
        for parameter in model.parameters():
            if parameter.requires_grad and not self._made:
                parameter.register_post_accumulate_grad_hook(lambda _: self._steps[-1].append(self._moment()))
        self._made = True
        return model

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = self._inner.loss(outputs, targets)
        self._steps.append([self._moment()])
        return loss


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _fractions(moments: Sequence[Moment]) -> list[float]:
    seconds = [_between(moments[0], moment) for moment in moments[1:]]
    return [each / seconds[-1] if seconds[-1] > 0 else 1.0 for each in seconds]


def _between(start: Moment, end: Moment) -> float:
    if isinstance(start, torch.cuda.Event):
        return start.elapsed_time(end)  # type: ignore[arg-type,no-any-return]
    return end - start  # type: ignore[operator]
