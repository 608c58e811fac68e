"""Amount of training and its limits, as a buyer gives them: epochs or tokens, deadline, cost, prices."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scalewise.core.errors import UserError

if TYPE_CHECKING:
    from scalewise.models.workload import Workload

DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|h|d)")
UNIT_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
MONEY = re.compile(r"\$?\s*([0-9]+(?:\.[0-9]+)?)")


def duration_of(text: str) -> float:
    """Parse '24h', '90min' or '2d' into seconds."""
    match = DURATION.fullmatch(text.strip().lower())
    seconds = float(match[1]) * UNIT_SECONDS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise UserError(f"--deadline is '{text}'; write a time such as 24h, 90min or 2d")
    return seconds


def money_of(text: str) -> float:
    """Parse '500' or '$500'."""
    match = MONEY.fullmatch(text.strip())
    amount = float(match[1]) if match else 0.0
    if not 0 < amount < math.inf:
        raise UserError(f"--max-cost is '{text}'; write US dollars, as in 500")
    return amount


def count_of(flag: str, text: str) -> float:
    """Parse a positive number that may have an exponent: '1e9', '300'."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UserError(f"{flag} is '{text}'; write a positive number, as in {flag} {'1e9' if 'tok' in flag else '90'}")
    return value


@dataclass(frozen=True)
class Budget:
    """Amount of training, limits of time and cost, and prices."""

    samples: int | None = None
    """Samples per epoch; None: those of the profile."""
    epochs: float | None = None
    tokens: float | None = None
    """Tokens of the whole training, instead of epochs."""
    deadline: str = ""
    """As given, '24h'; empty: none."""
    max_cost: str = ""
    """As given, '500'; empty: none."""
    prices: Sequence[float] = ()
    """US dollars per hour of each whole cluster; empty: list prices."""
    spot: bool = False

    def check(self) -> None:
        """Raise UserError for values that are invalid on any cluster."""
        _ = self.deadline_seconds, self.max_dollars
        for flag, value in (("--epochs", self.epochs), ("--tokens", self.tokens)):
            if value is not None:
                count_of(flag, f"{value:g}")
        if self.tokens is not None and (self.epochs is not None or self.samples is not None):
            other = "--epochs" if self.epochs is not None else "--samples"
            raise UserError(
                f"both --tokens and {other} are given; --tokens is the whole training, so leave {other} out"
            )
        if self.spot and self.prices:
            raise UserError("both --spot and --price are given; give one of them")
        for price in self.prices:
            if not 0 <= price < math.inf:
                raise UserError(f"--price is {price:g}; write US dollars per hour of the whole cluster, as in 12.5")

    @property
    def deadline_seconds(self) -> float:
        return duration_of(self.deadline) if self.deadline else math.inf

    @property
    def max_dollars(self) -> float:
        return money_of(self.max_cost) if self.max_cost else math.inf

    @property
    def text(self) -> str:
        """Limits as text: 'within 24h for at most $500'."""
        parts = [f"within {self.deadline}"] if self.deadline else []
        return " ".join([*parts, *([f"for at most ${self.max_dollars:,.0f}"] if self.max_cost else [])])

    @property
    def amount(self) -> str:
        """Amount of training as text: '90 epochs' or '1 billion tokens'."""
        if self.tokens is not None:
            return f"{_large_number(self.tokens)} tokens"
        epochs = self.number_of_epochs
        return "one epoch" if epochs == 1 else f"{epochs:,g} epochs"

    @property
    def is_given(self) -> bool:
        """Whether time or cost to finish is asked for, so that even one cluster is shown as a comparison."""
        questions = (self.epochs, self.tokens, self.deadline or None, self.max_cost or None)
        return self.spot or bool(self.prices) or any(value is not None for value in questions)

    @property
    def number_of_epochs(self) -> float:
        """Epochs of the whole training; with `tokens`, the whole training is one epoch."""
        return 1.0 if self.epochs is None else self.epochs

    def samples_per_epoch(
        self, workload: str | Workload | None, input_shape: str | None, classes: int | None
    ) -> int | None:
        """Samples per epoch, as given or from the number of tokens; None: those of the profile."""
        if self.tokens is None:
            return self.samples
        return math.ceil(self.tokens / _tokens_per_sample(workload, input_shape, classes))


def _large_number(value: float) -> str:
    """Return '1.5 billion' for 1.5e9."""
    for name, unit in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if value >= unit:
            return f"{value / unit:,g} {name}"
    return f"{value:,g}"


def _tokens_per_sample(workload: str | Workload | None, input_shape: str | None, classes: int | None) -> int:
    from scalewise.models.resolve import resolve

    if workload is None:
        raise UserError("--tokens needs the WORKLOAD, which says how many tokens a sample has; name it")
    model = resolve(workload, input_shape, classes) if isinstance(workload, str) else workload
    if model.input_dtype.is_floating_point or len(model.input_shape) != 1:
        shape = "x".join(map(str, model.input_shape))
        raise UserError(
            f"--tokens is for models of token ids; a sample of {model.name} is {shape} numbers: use --epochs"
        )
    return model.input_shape[0]
