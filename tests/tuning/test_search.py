"""Order of the trials and choice of the fastest options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from scalewise.core.training_options import ExecutionOptions
from scalewise.formats.tuned import plain_options
from scalewise.tuning.search import Possibilities, Search

EAGER = plain_options()
LAST = replace(EAGER, memory_format="channels_last")
COMPILED = replace(EAGER, execution="compile")
REDUCED = replace(COMPILED, compile_mode="reduce-overhead")


class Machine:
    """Device whose step times are known, and which notes what was compared."""

    def __init__(self, seconds: Mapping[ExecutionOptions, float]) -> None:
        self.seconds = seconds
        self.compared: list[tuple[ExecutionOptions, ExecutionOptions]] = []

    def compare(self, candidate: ExecutionOptions, fastest: ExecutionOptions) -> float | None:
        self.compared.append((candidate, fastest))
        seconds = self.seconds.get(candidate)
        return None if seconds is None else self.seconds[fastest] / seconds

    def search(self, possibilities: Possibilities) -> ExecutionOptions:
        return Search(possibilities, self.compare, EAGER).run()


def test_options_that_help_are_combined() -> None:
    both = replace(COMPILED, memory_format="channels_last")
    machine = Machine({EAGER: 1.0, LAST: 0.8, both: 0.5, COMPILED: 0.7})
    assert machine.search(Possibilities(channels_last=True)) == both
    assert machine.compared == [(LAST, EAGER), (both, LAST), (COMPILED, both)]


def test_a_layout_that_slows_eager_kernels_is_tried_again_with_compilation() -> None:
    both = replace(COMPILED, memory_format="channels_last")
    machine = Machine({EAGER: 1.0, LAST: 1.2, COMPILED: 0.7, both: 0.4})
    assert machine.search(Possibilities(channels_last=True)) == both


def test_a_small_gain_does_not_replace_the_fastest_options() -> None:
    machine = Machine({EAGER: 1.0, LAST: 0.99, COMPILED: 1.1, replace(COMPILED, memory_format="channels_last"): 0.995})
    assert machine.search(Possibilities(channels_last=True)) == EAGER


def test_after_a_compilation_that_was_skipped_no_other_is_tried() -> None:
    machine = Machine({EAGER: 1.0, LAST: 1.1, replace(EAGER, execution="graph"): 0.5})
    assert machine.search(Possibilities(cuda=True, channels_last=True)).execution == "graph"
    assert [candidate.execution for candidate, _ in machine.compared] == ["eager", "graph", "compile"]


def test_a_gpu_tries_graphs_and_compile_modes_with_graphs() -> None:
    graph, tuned = replace(EAGER, execution="graph"), replace(REDUCED, compile_mode="max-autotune")
    machine = Machine({EAGER: 1.0, graph: 0.6, REDUCED: 0.4, tuned: 0.39})
    assert machine.search(Possibilities(cuda=True)) == tuned
    assert [candidate for candidate, _ in machine.compared] == [graph, REDUCED, tuned]


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_lower_precision_is_timed_but_not_selected(precision: str) -> None:
    lower = replace(EAGER, precision=precision)  # type: ignore[arg-type]
    machine = Machine({EAGER: 1.0, COMPILED: 1.0, lower: 0.1})
    assert machine.search(Possibilities(lower_precisions=(precision,))) == EAGER  # type: ignore[arg-type]
    assert (lower, EAGER) in machine.compared


def test_convolutions_are_chosen_by_layer_only_if_there_are_several() -> None:
    one, several = Machine({EAGER: 1.0}), Machine({EAGER: 1.0})
    one.search(Possibilities(long_convolutions=1))
    several.search(Possibilities(long_convolutions=3))
    assert [candidate.convolutions for candidate, _ in one.compared[:2]] == ["fft", "direct"]
    assert [candidate.convolutions for candidate, _ in several.compared[:2]] == ["fft", "auto"]


def test_the_number_of_trials_is_known_before() -> None:
    search = Search(Possibilities(channels_last=True, long_convolutions=2), lambda _, __: 0.0, EAGER)
    count = search.count()
    search.run()
    assert count == len(search.tried) == 6
