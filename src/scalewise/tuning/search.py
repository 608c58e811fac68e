"""Order in which `scalewise tune` tries execution options: greedy, with a few interactions. Imports no torch.

    eager -> memory format -> convolutions -> CUDA graph -> compile -> memory format again -> lower precision

Every candidate is compared with the fastest options so far, and replaces them if it is clearly faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from scalewise.core.training_options import CompileMode, ExecutionOptions, Precision

LEAST_GAIN = 1.02
"""Ratio of step times from which a candidate replaces the fastest options so far."""


@dataclass(frozen=True)
class Possibilities:
    """What this device and this model allow."""

    cuda: bool = False
    channels_last: bool = False
    """Whether the model has 2-D or 3-D convolutions."""
    long_convolutions: int = 0
    """Number of convolutions with kernels that Fourier transforms support."""
    lower_precisions: tuple[Precision, ...] = ()
    """Precisions to try as offers."""


@dataclass
class Search:
    """State of the search. `compare(candidate, fastest)` returns how many times faster the candidate is.

    It returns None for a candidate that was skipped or that must not be selected.
    """

    possibilities: Possibilities
    compare: Callable[[ExecutionOptions, ExecutionOptions], float | None]
    fastest: ExecutionOptions
    tried: set[ExecutionOptions] = field(default_factory=set)
    compiled: bool | None = None
    """Whether a compiled candidate ran; None before the first one. After a failure no other is tried."""

    def run(self) -> ExecutionOptions:
        """Try all candidates; return the fastest options."""
        self.tried.add(self.fastest)
        for candidate in self._candidates():
            if candidate in self.tried or (candidate.compiles and self.compiled is False):
                continue
            self.tried.add(candidate)
            ratio = self.compare(candidate, self.fastest)
            if candidate.compiles:
                self.compiled = self.compiled or ratio is not None
            lower_precision = candidate.precision != self.fastest.precision
            if ratio is not None and ratio >= LEAST_GAIN and not lower_precision:
                self.fastest = candidate
        return self.fastest

    def count(self) -> int:
        """Number of trials, including the first one, if no candidate is faster; for the progress bar."""
        rest = Search(self.possibilities, lambda _, __: 0.0, self.fastest)
        rest.run()
        return len(rest.tried)

    def _candidates(self) -> Iterator[ExecutionOptions]:
        """Yield candidates; each depends on the fastest options at that time."""
        possible = self.possibilities
        if possible.channels_last:
            yield replace(self.fastest, memory_format="channels_last")
        if possible.long_convolutions:
            yield replace(self.fastest, convolutions="fft")
        if possible.long_convolutions > 1:
            yield replace(self.fastest, convolutions="auto")
        if possible.cuda:
            yield replace(self.fastest, execution="graph")
        mode: CompileMode = "reduce-overhead" if possible.cuda else "default"
        yield replace(self.fastest, execution="compile", compile_mode=mode)
        # A layout that eager kernels run slower can still be faster in generated code, and the other way round.
        if self.fastest.compiles and possible.channels_last:
            other = "contiguous" if self.fastest.memory_format == "channels_last" else "channels_last"
            yield replace(self.fastest, memory_format=other)  # type: ignore[arg-type]
        elif possible.channels_last:
            yield replace(self.fastest, execution="compile", compile_mode=mode, memory_format="channels_last")
        for precision in possible.lower_precisions:
            yield replace(self.fastest, precision=precision)
        if self.fastest.compiles and possible.cuda:  # takes minutes, so it is the last one
            yield replace(self.fastest, compile_mode="max-autotune")
