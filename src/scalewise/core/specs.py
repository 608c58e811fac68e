"""Parse names with options, such as `unet:width=16,norm=batch`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scalewise.core.errors import UserError


@dataclass(frozen=True)
class Spec:
    """Name with options, as text. An option without a value is 'true'."""

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
    """Parse 'unet:width=16,full' into Spec('unet', {'width': '16', 'full': 'true'})."""
    name, _, tail = text.partition(":")
    options: dict[str, str] = {}
    for option in filter(None, (part.strip() for part in tail.split(","))):
        key, equals, value = option.partition("=")
        if equals and not value:
            raise UserError(f"option '{key}' of '{text}' has no value; write {key}=VALUE")
        if key in options:
            raise UserError(f"option '{key}' is given twice in '{text}'")
        options[key] = value if equals else "true"
    return Spec(name.strip(), options)


def matching(given: str, valid: Iterable[str]) -> str | None:
    """Return the valid name that `given` means, or None.

    Case is ignored, and so are spaces, hyphens and underscores, unless two names differ only in them.
    """
    names = list(valid)
    for simplify in (str, str.lower, _letters_and_digits):
        matches = [name for name in names if simplify(name) == simplify(given)]
        if len(matches) == 1:
            return matches[0]
    return None


def unknown(kind: str, given: str, valid: Iterable[str], what: Mapping[str, str] | None = None) -> UserError:
    """Return the error for an unknown name: similar names and all valid ones. `what` maps names to descriptions."""
    names = list(valid)
    similar = _similar(given, names)
    hint = f"did you mean {' or '.join(map(repr, similar))}?" if similar else ""
    listed = [f"{name} ({what[name]})" for name in names] if what else names
    return UserError(f"unknown {kind} '{given}'", f"valid: {', '.join(listed)}", hint)


def _similar(given: str, names: Sequence[str]) -> list[str]:
    """Return the names that start with the word `given` ('infiniband' in 'infiniband-100'), else the most similar."""
    starting = [name for name in names if name.lower().startswith((f"{given.lower()}-", f"{given.lower()} "))]
    if starting:
        return starting
    by_letters = {_letters_and_digits(name): name for name in reversed(names)}
    matches = difflib.get_close_matches(_letters_and_digits(given), by_letters, n=1)
    return [by_letters[match] for match in matches]


def _letters_and_digits(text: str) -> str:
    return re.sub(r"[\W_]", "", text.lower())
