"""Predict whether more GPUs make training faster.

The functions have the names of the commands. Each is imported on first use, so that `import scalewise` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scalewise.advice.advise import advise
    from scalewise.core.errors import RunFailed, UserError
    from scalewise.data.dataset import Data, DataRequest
    from scalewise.models.describe import describe
    from scalewise.models.workload import Workload
    from scalewise.probe.doctor import doctor
    from scalewise.probe.profile import profile
    from scalewise.reporting.report import report
    from scalewise.sweep.measure import measure
    from scalewise.training.attach import attach
    from scalewise.training.train import train
    from scalewise.tuning.tune import tune
    from scalewise.validation.validate import validate

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
    "tune",
    "validate",
]

_MODULE_OF_NAME = {
    "Data": "scalewise.data.dataset",
    "DataRequest": "scalewise.data.dataset",
    "RunFailed": "scalewise.core.errors",
    "UserError": "scalewise.core.errors",
    "Workload": "scalewise.models.workload",
    "advise": "scalewise.advice.advise",
    "attach": "scalewise.training.attach",
    "describe": "scalewise.models.describe",
    "doctor": "scalewise.probe.doctor",
    "measure": "scalewise.sweep.measure",
    "profile": "scalewise.probe.profile",
    "report": "scalewise.reporting.report",
    "train": "scalewise.training.train",
    "tune": "scalewise.tuning.tune",
    "validate": "scalewise.validation.validate",
}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF_NAME:
        return getattr(import_module(_MODULE_OF_NAME[name]), name)
    raise AttributeError(f"module 'scalewise' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return the names for `dir(scalewise)` and tab completion."""
    return sorted({*globals(), *__all__})
