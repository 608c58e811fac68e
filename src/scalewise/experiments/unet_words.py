"""What the U-Net's runs say beside the survey's table, in words with numbers."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from scalewise.experiments.unet_runs import NAMES, PIPELINE, Ran, speedup, survey_speedup
from scalewise.published.unet import DATA_PARALLEL, MODEL_PARALLEL, SINGLE, SURVEY_EPOCH_SECONDS
from scalewise.results.units import bytes_text, seconds_text

EVEN = 0.03
"""Times that differ by less are called equal."""
APART = 0.2
"""Steps that were watched and steps that were measured: when they differ by more, it is said."""


def headline(machine: str, ran: Mapping[str, Ran]) -> str:
    how = {DATA_PARALLEL: "data parallel", MODEL_PARALLEL: "model parallel", PIPELINE: "as a pipeline"}
    parts = [f"{speedup(ran, name):.2f}x {words}" for name, words in how.items() if name in ran]
    survey = f"{survey_speedup(DATA_PARALLEL):.2f}x and {survey_speedup(MODEL_PARALLEL):.2f}x"
    if not parts:
        return f"Found on {machine}: no run on two devices got done; the survey has {survey}"
    return f"Found on {machine}: two devices train the U-Net {', '.join(parts)}; the survey has {survey}"


def comparison(ran: Mapping[str, Ran]) -> list[str]:
    """A sentence or more for each row of the survey's table, and why it differs."""
    said = [_alone(ran[SINGLE])]
    if DATA_PARALLEL in ran:
        said.append(_data_parallel(ran))
    if MODEL_PARALLEL in ran:
        said.append(_model_parallel(ran))
    if PIPELINE in ran:
        said.append(_pipeline(ran))
    return said


def _alone(here: Ran) -> str:
    return (
        f"One device: {seconds_text(here.epoch_seconds)} an epoch; the survey's has {SURVEY_EPOCH_SECONDS[SINGLE]:g} s"
        ", with a width, images and a batch that it does not give: seconds cannot be compared, only how many times as "
        "fast two devices are."
    )


def _data_parallel(ran: Mapping[str, Ran]) -> str:
    here, alone = ran[DATA_PARALLEL], ran[SINGLE]
    ours, theirs = speedup(ran, DATA_PARALLEL), survey_speedup(DATA_PARALLEL)
    other = 1 - fmean(here.computing(rank) for rank in range(len(here.ranks)))
    share = here.computing_seconds / len(here.ranks) / alone.computing_seconds
    return (
        f"Data parallel: an epoch takes {seconds_text(here.epoch_seconds)} on two devices and "
        f"{seconds_text(alone.epoch_seconds)} on one, {ours:.2f}x; the survey has {theirs:.2f}x. Each device computes "
        f"{share:.0%} as long as one alone, for half the samples; {other:.0%} of the step, in the mean of both, goes "
        f"to {bytes_text(here.sent_bytes)} of gradients and to waiting for the other. If the survey's GPUs computed "
        f"half as long, they spent {1 - theirs / 2:.0%} of theirs on it: {_more_or_less(other, 1 - theirs / 2)} than "
        "here."
    )


def _model_parallel(ran: Mapping[str, Ran]) -> str:
    here, alone = ran[MODEL_PARALLEL], ran[SINGLE]
    ours, theirs = speedup(ran, MODEL_PARALLEL), survey_speedup(MODEL_PARALLEL)
    moving = max(sum(phases.get(phase, 0.0) for phase in ("send", "receive")) for phases in here.ranks)
    return (
        f"Model parallel: {seconds_text(here.epoch_seconds)} an epoch, {ours:.2f}x; the survey has {theirs:.2f}x. The "
        f"devices take turns: they compute {_each(here)} of the step. Together that is "
        f"{seconds_text(here.computing_seconds)} of a step's {seconds_text(here.step_seconds)}, and one device "
        f"computes {seconds_text(alone.computing_seconds)}; what comes on top is {bytes_text(here.sent_bytes)} of "
        f"activations, skip connections and their gradients, {seconds_text(moving)} of sending and receiving. Turns by "
        f"themselves save nothing: {_beyond_turns(ours, here, alone)}"
    )


def _beyond_turns(ours: float, here: Ran, alone: Ran) -> str:
    quicker = here.computing_seconds / alone.computing_seconds
    theirs = f"the survey's {survey_speedup(MODEL_PARALLEL) - 1:.0%}"
    if ours <= 1 + EVEN:
        return (
            f"{theirs} must come from something else: parts of a batch that overlap, as below, or a device that "
            f"computes half a model in less than half the time. Here both halves take {quicker:.0%} of one device's "
            "seconds."
        )
    if quicker < 1:
        return (
            f"what is gained here comes from halves of the model that compute quicker than the whole, in {quicker:.0%} "
            f"of one device's seconds, as where each device's caches hold more of its half; {theirs} may too."
        )
    return (
        f"nor does what is gained here come from computing, of which both halves take {quicker:.0%} of one device's "
        "seconds: the runs were not alike."
    )


def _pipeline(ran: Mapping[str, Ran]) -> str:
    here = ran[PIPELINE]
    longer = here.computing_seconds / ran[SINGLE].computing_seconds
    against = f", {speedup(ran, PIPELINE) / speedup(ran, MODEL_PARALLEL):.2f}x the model parallel one" * (
        MODEL_PARALLEL in ran
    )
    return (
        f"With micro-batches (pipeline): {seconds_text(here.epoch_seconds)} an epoch, {speedup(ran, PIPELINE):.2f}x"
        f"{against}: both devices work at the same time and compute {_each(here)} of the step. In parts of a "
        f"batch the same work takes {longer:.2f} times as long as on one device; the rest of the step is its start and "
        f"end, stages that are not equally long, and {bytes_text(here.sent_bytes)} that go between them."
    )


def _each(ran: Ran) -> str:
    return " and ".join(f"{ran.computing(rank):.0%}" for rank in range(len(ran.ranks)))


def _more_or_less(here: float, there: float) -> str:
    if abs(here - there) < EVEN:
        return "neither more nor less"
    return "more" if there > here else "less"


def apart(ran: Mapping[str, Ran]) -> list[str]:
    """Where the run that told the phases was not like the one that was measured."""
    return [
        f"A step of {NAMES[name]} took {seconds_text(each.watched_seconds)} in the run that tells its phases, and "
        f"{seconds_text(each.step_seconds)} where it was measured: read its shares with care."
        for name, each in ran.items()
        if each.watched_seconds and abs(each.watched_seconds / each.step_seconds - 1) > APART
    ]
