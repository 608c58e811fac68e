"""SIGINT and SIGTERM: ranks agree on the last step, save it and end; a second signal ends the run at once."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scalewise.core.errors import PeerSilent
from scalewise.launch.elastic_agent import LOOPBACK
from scalewise.launch.store import open_tcp_store
from scalewise.runtime.graceful_stop import GracefulStop, RankStop, StopSignals, request_stop
from tests.command import Run, finish, fork
from tests.training.test_resume import content, steps_in


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_requests_a_stop_and_the_second_raises(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    requests: list[int] = []
    with StopSignals() as signals:
        signals.request = lambda: requests.append(1)
        signal.raise_signal(number)
        assert requests == [1]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert requests == [1]
    assert signal.getsignal(number) is before


def test_a_signal_before_the_training_raises_at_once() -> None:
    with StopSignals(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


def test_torchrun_may_send_the_signal_twice() -> None:
    requests: list[int] = []
    with StopSignals(relayed=True) as signals:
        signals.request = lambda: requests.append(1)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert requests == [1]


def test_other_threads_do_not_change_the_signal_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    handlers = []

    def enter() -> None:
        with StopSignals():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert handlers == [before]


def test_a_single_process_finishes_its_step() -> None:
    stop = GracefulStop()
    stop.start(3)
    assert stop.may_begin(3)
    stop.request()
    assert not stop.may_begin(4)


def test_ranks_stop_at_the_same_step_wherever_each_is() -> None:
    """A rank that has announced step 5 may wait in a collective for the others, which must compute it too."""
    store = open_tcp_store(LOOPBACK, 20)
    stops = [RankStop(store, rank, 3, timeout_seconds=20) for rank in range(3)]
    began = [4, 6, 5]
    for stop, step in zip(stops, began, strict=True):
        assert stop.may_begin(step - 1)
    request_stop(store, range(3))

    def steps_of(rank: int) -> int:
        step = began[rank]
        while stops[rank].may_begin(step):
            step += 1
        return step

    with ThreadPoolExecutor(3) as threads:
        last = list(threads.map(steps_of, range(3)))
    assert len(set(last)) == 1
    assert last[0] >= max(began)


def test_a_rank_that_does_not_answer_the_request_is_a_failure() -> None:
    stop = GracefulStop(timeout_seconds=0.01)
    stop.requested = True
    with pytest.raises(PeerSilent, match=r"did not answer the request to stop within 0\.01 s"):
        stop.may_begin(0)


TINY = ("train", "tests.tiny:float32", "--device-kind", "cpu", "--batch", 4, "--samples", 40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "number"), [("mirrored", signal.SIGTERM), ("parameter-server-async", signal.SIGINT)]
)
def test_a_signal_saves_a_checkpoint_from_which_the_run_continues(
    strategy: str, number: signal.Signals, tmp_path: Path, scalewise: Run
) -> None:
    """The signal goes to every process of the group, as from a terminal or a scheduler.

    `make test-chaos` does the same with every strategy.
    """
    saved, whole = tmp_path / "c.safetensors", tmp_path / "whole.safetensors"
    line = [*TINY, "--strategy", strategy, "--devices", 2]
    process = fork(*line, "--epochs", 1_000_000, "--checkpoint", saved, "--checkpoint-every", 7, start_new_session=True)
    while not saved.exists():
        assert process.poll() is None, finish(process)
    os.killpg(process.pid, number)
    output = finish(process)
    steps = steps_in(saved)
    output.refused(1, f"stopped after {steps} step", f"continue with --checkpoint {saved} --resume")
    assert list(tmp_path.iterdir()) == [saved]
    if strategy != "parameter-server-async":
        assert scalewise(*line, "--steps", steps + 3, "--checkpoint", saved, "--resume").code == 0
        assert scalewise(*line, "--steps", steps + 3, "--checkpoint", whole).code == 0
        assert content(saved) == content(whole)
