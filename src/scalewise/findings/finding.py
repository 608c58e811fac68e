"""What all findings have in common: numbers, and a sentence with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding(ABC):
    """About one series; a subclass adds its numbers and says them."""

    series: str

    @property
    @abstractmethod
    def sentence(self) -> str:
        """Without the name of the series."""

    @property
    def telling(self) -> bool:
        """Worth a line among those of other series; all of them are in the full report."""
        return True

    def __str__(self) -> str:
        return f"{self.series}: {self.sentence}"

    def to_json(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, **asdict(self), "sentence": self.sentence}


def listed(parts: Sequence[object]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    texts = [str(part) for part in parts]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def devices_text(counts: Sequence[int]) -> str:
    """'1 device', '2 and 4 devices'."""
    return f"{listed(counts)} device{'' if list(counts) == [1] else 's'}"
