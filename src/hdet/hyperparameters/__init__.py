"""What can be explored, and where its value stands; ``base`` says what all of them are. They import torch
and no other room."""

from hdet.hyperparameters.any_scalar import Hyperparameter
from hdet.hyperparameters.base import Axis, Explorable, Rows
from hdet.hyperparameters.learning_rate import GroupLearningRate, LearningRate, separate_learning_rates
from hdet.hyperparameters.module import Dropout, LabelSmoothing, Temperature
from hdet.hyperparameters.optimizer import Betas, GradientClip, Momentum, WeightDecay
from hdet.hyperparameters.outer import OuterLR, OuterMomentum, place_outer
from hdet.hyperparameters.scalar import ScalarAxis, refuse_shared_places

__all__ = [
    "Axis",
    "Betas",
    "Dropout",
    "Explorable",
    "GradientClip",
    "GroupLearningRate",
    "Hyperparameter",
    "LabelSmoothing",
    "LearningRate",
    "Momentum",
    "OuterLR",
    "OuterMomentum",
    "Rows",
    "ScalarAxis",
    "Temperature",
    "WeightDecay",
    "place_outer",
    "refuse_shared_places",
    "separate_learning_rates",
]
