"""hdet: the data-parallel replicas you already pay for find your hyperparameters while they train."""

from hdet.auto_lr import AutoLR
from hdet.controllers import HorizonController, SoftmaxController
from hdet.ensemble import Ensemble
from hdet.history import HorizonRecord, HyperparameterRecord, SyncRecord
from hdet.hyperparameters import LearningRate
from hdet.one_cycle import OneCycleAutoLR
from hdet.probe import Probe
from hdet.replay import replay
from hdet.warm_start import warm_start_

__version__ = "0.1.0"

__all__ = [
    "AutoLR",
    "Ensemble",
    "HorizonController",
    "HorizonRecord",
    "HyperparameterRecord",
    "LearningRate",
    "OneCycleAutoLR",
    "Probe",
    "SoftmaxController",
    "SyncRecord",
    "__version__",
    "replay",
    "warm_start_",
]
