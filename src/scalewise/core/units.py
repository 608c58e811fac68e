"""Format seconds and bytes for people; base class of results that print in a terminal and in a notebook."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.segment import Segment

from scalewise.core.errors import UserError

if TYPE_CHECKING:
    import pandas


def seconds_text(seconds: float) -> str:
    """Return text such as '812 µs', '4.2 ms', '1.53 s' or '2 min 05 s'."""
    if math.isnan(seconds):
        return "-"
    # Change to the next unit before rounding reaches it: '1 ms', not '1000 µs'.
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 119.5:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def bytes_text(count: float) -> str:
    """Return text in binary units, such as '46.2 MiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(abs(count), 1) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def gigabytes_text(count: float, digits: int = 3) -> str:
    """Return text in decimal gigabytes, the unit of a GPU's memory: '13.4 GB'."""
    gigabytes = count / 1e9
    return f"{gigabytes:,.0f} GB" if gigabytes >= 1000 else f"{gigabytes:.{digits}g} GB"


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that move the cursor, change colours or reverse text. Tabs and line ends are not among them."""


def printable(text: str) -> str:
    """Return a text in which control characters are visible: '\\x1b[2J' does not clear the screen."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class EscapingConsole(Console):
    """Console that prints names as they are: their control characters are shown, not obeyed."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            segment if segment.control else segment._replace(text=printable(segment.text)) for segment in buffer
        )


class Printable(ABC):
    """Base class of results. Subclasses implement `__rich__` and `to_json`; this class adds text and HTML output."""

    @abstractmethod
    def __rich__(self) -> RenderableType: ...

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the JSON document that `--json` prints."""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of the result: the document that `--json` prints."""
        return self.to_json()

    def to_dataframe(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with one line per row of the result's table.

        Values within values get a column of their own, named as in 'step_seconds.predicted'.
        """
        try:
            import pandas
        except ImportError:
            raise UserError("to_dataframe needs pandas, which is not installed; pip install pandas") from None
        return pandas.json_normalize(self.records())

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of `to_dataframe`; by default the whole result is one row."""
        return [self.to_json()]

    def __str__(self) -> str:
        console = EscapingConsole(width=110, force_jupyter=False, force_terminal=False, color_system=None)
        with console.capture() as capture:
            console.print(self)
        return capture.get()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Display the table at the prompt of IPython and in a notebook, instead of the fields."""
        return {"text/plain": str(self), "text/html": self._repr_html_()}

    def _repr_html_(self) -> str:
        console = EscapingConsole(width=110, record=True, force_jupyter=False, file=StringIO())
        console.print(self)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
