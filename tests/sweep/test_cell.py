"""Text of a cell."""

from __future__ import annotations

from scalewise.strategies.registry import strategy_of
from scalewise.sweep.grid import Cell


def test_text_of_a_cell_names_options_that_differ_from_defaults() -> None:
    def text(strategy: str, hosts: int = 1, link: str | None = None) -> str:
        return Cell("linear", strategy_of(strategy), 2, "cpu", hosts, link, 20, "fp32", "adam", "quick", "eager").text

    assert text("mirrored") == "linear, mirrored on 2 cpu devices, batch 20"
    assert text("mirrored:compress=fp16") == "linear, mirrored:compress=fp16 on 2 cpu devices, batch 20"
    assert text("ring", 2, "1gbit") == "linear, ring on 2 cpu devices on 2 hosts at 1gbit, batch 20"
