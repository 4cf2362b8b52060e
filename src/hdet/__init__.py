"""Training finds its own hyperparameters while it runs, on the replicas you already pay for.

Names are imported when they are first asked for: ``hdet --version`` needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hdet.autolr.auto_lr import AutoLR
    from hdet.autolr.best_mean import BestMean
    from hdet.autolr.find import find
    from hdet.autolr.guard import Guard
    from hdet.autolr.schedule import replay
    from hdet.hyperparameters import (
        Betas,
        Dropout,
        GradientClip,
        Hyperparameter,
        LabelSmoothing,
        LearningRate,
        Momentum,
        Temperature,
        WeightDecay,
    )
    from hdet.interruption import Interruptible
    from hdet.probes import Probe
    from hdet.published.one_cycle import OneCycleAutoLR
    from hdet.published.warm_start import warm_start_
    from hdet.replicas import Arms, StackedReplicas
    from hdet.saving import load, save
    from hdet.tuning.auto_tune import AutoTune
    from hdet.tuning.ensemble import Ensemble

__version__ = "0.3.0"

#: Where each public name lives; the imports above tell type checkers the same.
_HOMES = {
    "AutoLR": "autolr.auto_lr",
    "AutoTune": "tuning.auto_tune",
    "BestMean": "autolr.best_mean",
    "Ensemble": "tuning.ensemble",
    "find": "autolr.find",
    "Guard": "autolr.guard",
    "Betas": "hyperparameters",
    "Dropout": "hyperparameters",
    "GradientClip": "hyperparameters",
    "Hyperparameter": "hyperparameters",
    "LabelSmoothing": "hyperparameters",
    "LearningRate": "hyperparameters",
    "Momentum": "hyperparameters",
    "Temperature": "hyperparameters",
    "WeightDecay": "hyperparameters",
    "Interruptible": "interruption",
    "OneCycleAutoLR": "published.one_cycle",
    "Probe": "probes",
    "Arms": "replicas",
    "StackedReplicas": "replicas",
    "load": "saving",
    "save": "saving",
    "replay": "autolr.schedule",
    "warm_start_": "published.warm_start",
}

__all__ = [
    "Arms",
    "AutoLR",
    "AutoTune",
    "BestMean",
    "Betas",
    "Dropout",
    "Ensemble",
    "GradientClip",
    "Guard",
    "Hyperparameter",
    "Interruptible",
    "LabelSmoothing",
    "LearningRate",
    "Momentum",
    "OneCycleAutoLR",
    "Probe",
    "StackedReplicas",
    "Temperature",
    "WeightDecay",
    "__version__",
    "find",
    "load",
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
        import_module("hdet.removed").refuse_name(name)
        try:
            return import_module(f"hdet.{name}")  # a room: hdet.history.read_history(path)
        except ModuleNotFoundError as error:
            if error.name != f"hdet.{name}":
                raise
    raise AttributeError(f"module 'hdet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
