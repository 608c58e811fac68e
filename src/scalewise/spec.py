"""Names with options behind them: 'unet:width=16,norm=batch', 'parameter-server:servers=2', 'stream:workers=4'."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scalewise.errors import UserError


@dataclass(frozen=True)
class Spec:
    """A name and the options written behind it, still as text. A bare word is an option set to 'true'."""

    name: str
    options: Mapping[str, str]

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return (
            self.name
            + ":"
            + ",".join(key if value == "true" else f"{key}={value}" for key, value in self.options.items())
        )


def parse_spec(text: str) -> Spec:
    """'unet:width=16,full' -> Spec('unet', {'width': '16', 'full': 'true'})."""
    name, _, tail = text.partition(":")
    options: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in tail.split(","))):
        key, equals, value = part.partition("=")
        if equals and not value:
            raise UserError(f"option '{key}' of '{text}' has no value; write {key}=VALUE")
        if key in options:
            raise UserError(f"option '{key}' is given twice in '{text}'")
        options[key] = value if equals else "true"
    return Spec(name.strip(), options)


def unknown(kind: str, given: str, valid: Iterable[str], what: Mapping[str, str] | None = None) -> UserError:
    """The answer to a misspelt name: the nearest one, and all the valid ones, with `what` each is where that helps."""
    names = list(valid)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    told = [f"{name} ({what[name]})" for name in names] if what else names
    return UserError(f"unknown {kind} '{given}'{hint}; valid: {', '.join(told)}")
