"""Predictions for this machine, made from one rank's profile and doctor's links before anything is run, then measured.

    python benchmarks/predict_here.py                                  # two cores, loopback and rehearsed hosts
    python benchmarks/predict_here.py --workload linear --link loopback --out runs/here
    python benchmarks/predict_here.py --out runs/here --again          # predict what was measured there, once more
    python benchmarks/predict_here.py --device-kind slice --devices 2,4 --budget 400 --out runs/slices

Cells: strategies x workloads x batches x links x devices. Every device has the same share of a GPU: the profiled one,
the one that others are compared with, and each of those. All steps are eager. A cell chokes where it is slower than one
device at the same batch.

A machine that others share is slower in one minute than in another, which no model can foresee. So every round is a
prediction of its own: loopback is measured, and then, workload by workload, one device profiled, cells predicted, and
run. A cell counts by the medians of what was predicted and of what was measured. `OUT` keeps profiles, clusters, what
was predicted and every block as it is measured: a run that was ended goes on there, and `--again` scores the present
model on it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp

from predicting.cells import ALL
from predicting.machine import LOOPBACK, Machine
from predicting.measured import compared
from predicting.quiet import say
from predicting.rounds import Question, run_rounds
from predicting.scores import middle_of, scored, scores, show, show_scores
from scalewise.errors import UserError
from scalewise.strategies.registry import STRATEGIES

WORKLOADS: dict[str, Sequence[int]] = {"linear": (8, 64), "conv": (2, 8), "transformer": (16,), "unet": (16,)}
GPU_WORKLOADS: dict[str, Sequence[int]] = {"linear": (8, 64, 600), "conv": (10, 100, 600), "unet": (16,)}
OTHER_BATCHES = (8, 64)
LINKS = (LOOPBACK, "1gbit", "200mbit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", help=f"repeat it; {', '.join(WORKLOADS)}")
    parser.add_argument("--strategy", action="append", help="repeat it; all that this version has")
    parser.add_argument("--link", action="append", help=f"repeat it; {', '.join(LINKS)}; on GPUs the first alone")
    parser.add_argument("--batch", help="a comma list, instead of one to three for each workload")
    parser.add_argument("--device-kind", choices=("cpu", "slice", "cuda"), help="cpu, or what OUT was made with")
    parser.add_argument("--devices", help="a comma list; 2, or what OUT was made with")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is predicted and measured; odd")
    parser.add_argument("--budget", type=float, help="seconds of measuring, at most")
    parser.add_argument("--quick", action="store_true", help="measure links with fewer repeats")
    parser.add_argument("--out", type=Path, default=None, help="keep everything in this folder; go on with what it has")
    parser.add_argument("--again", action="store_true", help="measure nothing: score the model on what OUT has")
    parser.add_argument("--json", action="store_true")
    try:
        answer(parser.parse_args())
    except UserError as error:
        parser.error(str(error))


def answer(asked: argparse.Namespace) -> None:
    out = asked.out or Path(mkdtemp(prefix="predict-here-"))
    out.mkdir(parents=True, exist_ok=True)
    machine = Machine.in_folder(out, machine_of(asked))
    usual = WORKLOADS if machine.device_kind == "cpu" else GPU_WORKLOADS
    workloads = {name: usual.get(name, OTHER_BATCHES) for name in asked.workload or usual}
    if asked.batch:
        workloads = dict.fromkeys(workloads, numbers(asked.batch))
    links = asked.link or (LINKS if machine.device_kind == "cpu" else LINKS[:1])
    strategies = asked.strategy or [name for name in ALL if name in STRATEGIES]
    load = os.getloadavg()[0]
    if load > 0.5 and not asked.again:
        say(f"the machine is not quiet: load {load:.2f}")
    question = Question(out, machine, workloads, links, strategies, quick=asked.quick)
    if not asked.again:
        try:
            run_rounds(question, asked.rounds, asked.budget)
        except KeyboardInterrupt:
            raise SystemExit(
                f"stopped; the same command with --out {out} goes on, --again scores what there is"
            ) from None
    rounds = [found for folder in question.folders() if (found := compared(folder, question.cells(folder)))]
    middle = middle_of(rounds)
    if not scored(middle):
        raise UserError(f"nothing that was asked for has been measured in {out}")
    if asked.json:
        told = {"scores": scores(scored(middle)), "scores_by_round": [scores(scored(cells)) for cells in rounds]}
        print(json.dumps({"cells": [asdict(cell) for cell in middle], **told}, indent=1))
        return
    show(middle)
    print()
    show_scores(rounds)


def machine_of(asked: argparse.Namespace) -> Machine | None:
    """Nothing where nothing was said: then what the folder has counts."""
    if asked.device_kind is None and asked.devices is None:
        return None
    return Machine.of(asked.device_kind or "cpu", numbers(asked.devices or "2"))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    main()
