"""Ctrl-C is noted once and obeyed at once the second time; the handler before it comes back."""

from __future__ import annotations

import signal
import threading

import pytest

from scalewise.training.interrupt import Interrupt


def test_the_first_is_noted_the_second_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        seen = [interrupt.requested]
        signal.raise_signal(signal.SIGINT)
        seen.append(interrupt.requested)
        assert seen == [False, True]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_leave_signals_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def inside() -> None:
        with Interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]
