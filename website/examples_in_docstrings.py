"""Extension of griffe, which reads docstrings for the reference: lines that start with `>>>` become a code block."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(?:>>>|\.\.\.) .*(?:\n.+)*", re.MULTILINE)


class ExamplesInDocstrings(griffe.Extension):  # type: ignore[misc]
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
