"""Will more GPUs make your training faster? The verbs of the command line as functions, loaded when they are called."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalewise.data.data import Data, DataRequest
    from scalewise.errors import RunFailed, UserError
    from scalewise.verbs.advise import advise
    from scalewise.verbs.attach import attach
    from scalewise.verbs.describe import describe
    from scalewise.verbs.doctor import doctor
    from scalewise.verbs.measure import measure
    from scalewise.verbs.profile import profile
    from scalewise.verbs.report import report
    from scalewise.verbs.train import train
    from scalewise.verbs.validate import validate
    from scalewise.workloads.workload import Workload

__version__ = "0.1.0"
__all__ = [
    "Data",
    "DataRequest",
    "RunFailed",
    "UserError",
    "Workload",
    "advise",
    "attach",
    "describe",
    "doctor",
    "measure",
    "profile",
    "report",
    "train",
    "validate",
]

_HOMES = {
    "Data": "scalewise.data.data",
    "DataRequest": "scalewise.data.data",
    "RunFailed": "scalewise.errors",
    "UserError": "scalewise.errors",
    "Workload": "scalewise.workloads.workload",
    "advise": "scalewise.verbs.advise",
    "attach": "scalewise.verbs.attach",
    "describe": "scalewise.verbs.describe",
    "doctor": "scalewise.verbs.doctor",
    "measure": "scalewise.verbs.measure",
    "profile": "scalewise.verbs.profile",
    "report": "scalewise.verbs.report",
    "train": "scalewise.verbs.train",
    "validate": "scalewise.verbs.validate",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'scalewise' has no attribute '{name}'")
