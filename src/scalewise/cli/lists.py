"""Comma lists on the command line."""

from __future__ import annotations

from scalewise.errors import UserError


def whole_numbers(flag: str, text: str) -> list[int]:
    """'10,20' -> [10, 20]; each must be at least 1."""
    example = "10,20,50" if flag.startswith("--batch") else "1,2,4"
    numbers = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) < 1:
            raise UserError(f"{flag} is '{text}'; it must be whole numbers from 1, as in {flag} {example}")
        numbers.append(int(part))
    return numbers
