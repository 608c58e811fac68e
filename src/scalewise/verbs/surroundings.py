"""This machine and its software, as measurements remember them."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import numpy
import psutil
import torch

from scalewise import __version__
from scalewise.errors import UserError
from scalewise.results.environment import VARIES, Environment
from scalewise.session.cores import allowed_cores
from scalewise.session.hardware import cpu_name


def surroundings(data: str, samples: int | None, conditions: Mapping[str, Any]) -> Environment:
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    versions = {
        "scalewise": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return Environment(
        hardware={
            "cpu": cpu_name(),
            "cores": len(allowed_cores()),
            VARIES: psutil.virtual_memory().total,
            "gpus": gpus,
        },
        versions=versions,
        data=data,
        samples_per_epoch=samples,
        conditions=dict(conditions),
    )


def check_same(folder: object, before: Environment, now: Environment) -> None:
    """A UserError where cells of one folder would not be comparable: another machine, other software, data, conditions.

    Where a model failed before its data was known, there is none to differ.
    """
    unknown = before.samples_per_epoch is None or now.samples_per_epoch is None
    for what, old in before.place.items():
        new = now.place[what]
        for key in {**old, **new} if what != "data" or not unknown else ():
            if old.get(key) != new.get(key):
                raise UserError(
                    f"{folder} was measured with other {what}: {key} was {old.get(key)!r} and is now {new.get(key)!r}; "
                    "name another folder with --out (several can be read together)"
                )
