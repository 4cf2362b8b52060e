"""hdet: the data-parallel replicas you already pay for find your hyperparameters while they train."""

from hdet.controllers import SoftmaxController
from hdet.ensemble import Ensemble
from hdet.history import HyperparameterRecord, SyncRecord
from hdet.hyperparameters import LearningRate
from hdet.one_cycle import OneCycleAutoLR
from hdet.warm_start import warm_start_

__version__ = "0.1.0"

__all__ = [
    "Ensemble",
    "HyperparameterRecord",
    "LearningRate",
    "OneCycleAutoLR",
    "SoftmaxController",
    "SyncRecord",
    "__version__",
    "warm_start_",
]
