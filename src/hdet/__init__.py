"""hdet: the data-parallel replicas you already pay for find your hyperparameters while they train.

Names are imported when they are first asked for: ``hdet --version`` needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hdet.auto_lr import AutoLR
    from hdet.auto_tune import AutoTune
    from hdet.best_mean import BestMean
    from hdet.controllers import HorizonController, RegressionController, SoftmaxController
    from hdet.engine.events import Event
    from hdet.ensemble import Ensemble
    from hdet.finder import Found, find
    from hdet.guard import Guard
    from hdet.history import HorizonRecord, HyperparameterRecord, SyncRecord, read_history
    from hdet.hyperparameters import (
        Betas,
        Dropout,
        GradientClip,
        Hyperparameter,
        LabelSmoothing,
        LearningRate,
        Momentum,
        OuterLR,
        OuterMomentum,
        Temperature,
        WeightDecay,
    )
    from hdet.interruption import Interruptible
    from hdet.one_cycle import OneCycleAutoLR
    from hdet.probes import Probe
    from hdet.replicas import Arms, FaultTolerantReplicas, StackedReplicas
    from hdet.saving import Loaded, load, save
    from hdet.schedules import replay
    from hdet.warm_start import warm_start_
    from hdet.weights.outer import Outer

__version__ = "0.2.0"

#: Where each public name lives; the imports above tell type checkers the same.
_HOMES = {
    "AutoLR": "auto_lr",
    "AutoTune": "auto_tune",
    "BestMean": "best_mean",
    "HorizonController": "controllers",
    "RegressionController": "controllers",
    "SoftmaxController": "controllers",
    "Event": "engine.events",
    "Ensemble": "ensemble",
    "Found": "finder",
    "find": "finder",
    "Guard": "guard",
    "HorizonRecord": "history",
    "HyperparameterRecord": "history",
    "SyncRecord": "history",
    "read_history": "history",
    "Betas": "hyperparameters",
    "Dropout": "hyperparameters",
    "GradientClip": "hyperparameters",
    "Hyperparameter": "hyperparameters",
    "LabelSmoothing": "hyperparameters",
    "LearningRate": "hyperparameters",
    "Momentum": "hyperparameters",
    "OuterLR": "hyperparameters",
    "OuterMomentum": "hyperparameters",
    "Temperature": "hyperparameters",
    "WeightDecay": "hyperparameters",
    "Interruptible": "interruption",
    "OneCycleAutoLR": "one_cycle",
    "Probe": "probes",
    "Arms": "replicas",
    "FaultTolerantReplicas": "replicas",
    "StackedReplicas": "replicas",
    "Loaded": "saving",
    "load": "saving",
    "save": "saving",
    "replay": "schedules",
    "warm_start_": "warm_start",
    "Outer": "weights.outer",
}

__all__ = [
    "Arms",
    "AutoLR",
    "AutoTune",
    "BestMean",
    "Betas",
    "Dropout",
    "Ensemble",
    "Event",
    "FaultTolerantReplicas",
    "Found",
    "GradientClip",
    "Guard",
    "HorizonController",
    "HorizonRecord",
    "Hyperparameter",
    "HyperparameterRecord",
    "Interruptible",
    "LabelSmoothing",
    "LearningRate",
    "Loaded",
    "Momentum",
    "OneCycleAutoLR",
    "Outer",
    "OuterLR",
    "OuterMomentum",
    "Probe",
    "RegressionController",
    "SoftmaxController",
    "StackedReplicas",
    "SyncRecord",
    "Temperature",
    "WeightDecay",
    "__version__",
    "find",
    "load",
    "read_history",
    "replay",
    "save",
    "warm_start_",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"hdet.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_"):
        try:
            return import_module(f"hdet.{name}")  # a room: hdet.history.read(path)
        except ModuleNotFoundError as error:
            if error.name != f"hdet.{name}":
                raise
    raise AttributeError(f"module 'hdet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
