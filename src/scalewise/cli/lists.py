"""Comma lists on the command line."""

from __future__ import annotations

from scalewise.errors import UserError


def whole_numbers(flag: str, text: str, least: int = 1) -> list[int]:
    """'10,20' -> [10, 20]."""
    example = "10,20,50" if flag.startswith("--batch") else {0: "0,1,2", 1: "1,2,4"}.get(least, "2,4")
    numbers = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) < least:
            raise UserError(f"{flag} is '{text}'; it must be whole numbers from {least}, as in {flag} {example}")
        numbers.append(int(part))
    return numbers
