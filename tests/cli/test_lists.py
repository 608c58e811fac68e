"""Comma lists of whole numbers."""

from __future__ import annotations

import re

import pytest

from scalewise.cli.lists import whole_numbers
from scalewise.errors import UserError


def test_numbers_keep_their_order() -> None:
    assert whole_numbers("--batch", "20, 10,50") == [20, 10, 50]


@pytest.mark.parametrize("text", ["", "0", "-1", "10,", "1.5", "ten", "10;20", "²"])
def test_all_else_is_refused_with_what_was_given(text: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"--batch is '{text}'; it must be whole numbers from 1")):
        whole_numbers("--batch", text)
