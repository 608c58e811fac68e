"""Results that print well in a terminal and in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType


class Printable(ABC):
    """Give `__rich__` and `to_json`; text and HTML follow."""

    @abstractmethod
    def __rich__(self) -> RenderableType: ...

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The document that `--json` prints."""

    def __str__(self) -> str:
        console = Console(width=110)
        with console.capture() as capture:
            console.print(self)
        return capture.get()

    def _repr_html_(self) -> str:
        console = Console(width=110, record=True, force_jupyter=False, file=StringIO())
        console.print(self)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
