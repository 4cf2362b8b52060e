"""hdet: the data-parallel replicas you already pay for find your hyperparameters while they train."""

from hdet.auto_lr import AutoLR
from hdet.controllers import HorizonController, RegressionController, SoftmaxController
from hdet.ensemble import Ensemble
from hdet.history import HorizonRecord, HyperparameterRecord, SyncRecord
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
from hdet.one_cycle import OneCycleAutoLR
from hdet.probe import Probe
from hdet.replay import replay
from hdet.replicas import Arms, StackedReplicas
from hdet.warm_start import warm_start_

__version__ = "0.1.0"

__all__ = [
    "Arms",
    "AutoLR",
    "Betas",
    "Dropout",
    "Ensemble",
    "GradientClip",
    "HorizonController",
    "HorizonRecord",
    "Hyperparameter",
    "HyperparameterRecord",
    "LabelSmoothing",
    "LearningRate",
    "Momentum",
    "OneCycleAutoLR",
    "Probe",
    "RegressionController",
    "SoftmaxController",
    "StackedReplicas",
    "SyncRecord",
    "Temperature",
    "WeightDecay",
    "__version__",
    "replay",
    "warm_start_",
]
