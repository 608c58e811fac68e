"""Predict step times on this machine from the profile of one rank and the measured links, then measure them.

    python benchmarks/predict_here.py                                  # two cores, loopback and emulated hosts
    python benchmarks/predict_here.py --workload linear --link loopback --out runs/here
    python benchmarks/predict_here.py --out runs/here --again          # predict the measured cells again
    python benchmarks/predict_here.py --device-kind slice --devices 2,4 --budget 400 --out runs/slices

Cells: strategies x workloads x batches x links x devices. With slices, every device has the same share of the GPU, also
the profiled device and the baseline. All steps are eager. A cell chokes if it is slower than one device at the same
batch.

The speed of a shared machine changes from minute to minute, which no model can predict. Therefore every round predicts
anew: it measures loopback and then, for one workload after another, profiles one device, predicts the cells and runs
them. A cell is scored by the medians of its predictions and of its measurements. The folder OUT keeps profiles,
clusters, predictions and every measured block: an interrupted run continues there, and `--again` scores the present
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
from predicting.measured import measured_cells
from predicting.quiet import say
from predicting.rounds import Experiment, run_rounds
from predicting.scores import medians_of, scored, scores, show, show_scores
from scalewise.core.errors import UserError
from scalewise.strategies.registry import STRATEGIES

WORKLOADS: dict[str, Sequence[int]] = {"linear": (8, 64), "conv": (2, 8), "transformer": (16,), "unet": (16,)}
GPU_WORKLOADS: dict[str, Sequence[int]] = {"linear": (8, 64, 600), "conv": (10, 100, 600), "unet": (16,)}
OTHER_BATCHES = (8, 64)
LINKS = (LOOPBACK, "1gbit", "200mbit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", help=f"repeatable; default {', '.join(WORKLOADS)}")
    parser.add_argument("--strategy", action="append", help="repeatable; default all strategies of this version")
    parser.add_argument("--link", action="append", help=f"repeatable; default {', '.join(LINKS)}; on GPUs {LINKS[0]}")
    parser.add_argument("--batch", help="comma-separated batches; default one to three per workload")
    parser.add_argument("--device-kind", choices=("cpu", "slice", "cuda"), help="default cpu, or that of OUT")
    parser.add_argument("--devices", help="comma-separated device counts; default 2, or those of OUT")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds of prediction and measurement; odd")
    parser.add_argument("--budget", type=float, help="maximum seconds of measuring")
    parser.add_argument("--quick", action="store_true", help="measure links with fewer repeats")
    parser.add_argument("--out", type=Path, default=None, help="keep everything in this folder, and continue from it")
    parser.add_argument("--again", action="store_true", help="measure nothing: score the model on the cells in OUT")
    parser.add_argument("--json", action="store_true", help="print JSON")
    try:
        predict_and_measure(parser.parse_args())
    except UserError as error:
        parser.error(str(error))


def predict_and_measure(options: argparse.Namespace) -> None:
    out = options.out or Path(mkdtemp(prefix="predict-here-"))
    out.mkdir(parents=True, exist_ok=True)
    machine = Machine.in_folder(out, machine_of(options))
    default_batches = WORKLOADS if machine.device_kind == "cpu" else GPU_WORKLOADS
    workloads = {name: default_batches.get(name, OTHER_BATCHES) for name in options.workload or default_batches}
    if options.batch:
        workloads = dict.fromkeys(workloads, numbers(options.batch))
    links = options.link or (LINKS if machine.device_kind == "cpu" else LINKS[:1])
    strategies = options.strategy or [name for name in ALL if name in STRATEGIES]
    load = os.getloadavg()[0]
    if load > 0.5 and not options.again:
        say(f"the machine is busy: load {load:.2f}")
    experiment = Experiment(out, machine, workloads, links, strategies, quick=options.quick)
    if not options.again:
        try:
            run_rounds(experiment, options.rounds, options.budget)
        except KeyboardInterrupt:
            raise SystemExit(
                f"stopped; continue with the same command and --out {out}, or add --again to score the measured cells"
            ) from None
    rounds = [cells for folder in experiment.folders() if (cells := measured_cells(folder, experiment.cells(folder)))]
    medians = medians_of(rounds)
    if not scored(medians):
        raise UserError(f"none of the requested cells has been measured in {out}")
    if options.json:
        summary = {"scores": scores(scored(medians)), "scores_by_round": [scores(scored(cells)) for cells in rounds]}
        print(json.dumps({"cells": [asdict(cell) for cell in medians], **summary}, indent=1))
        return
    show(medians)
    print()
    show_scores(rounds)


def machine_of(options: argparse.Namespace) -> Machine | None:
    """Machine given on the command line; None if no option was given, so that the folder's machine is used."""
    if options.device_kind is None and options.devices is None:
        return None
    return Machine.of(options.device_kind or "cpu", numbers(options.devices or "2"))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    main()
