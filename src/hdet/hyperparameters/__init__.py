"""What can be explored: a class for each hyperparameter, its coordinate (``scales``), and the locations that
hold its value (``axis``). This room imports torch alone."""

from hdet.hyperparameters.axis import Axis, Explorable, Rows, ScalarAxis, refuse_shared_locations
from hdet.hyperparameters.custom import Hyperparameter
from hdet.hyperparameters.learning_rate import GroupLearningRate, LearningRate, separate_learning_rates
from hdet.hyperparameters.module import Dropout, LabelSmoothing, Temperature, has_dropout
from hdet.hyperparameters.optimizer import Betas, GradientClip, Momentum, WeightDecay

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
    "Rows",
    "ScalarAxis",
    "Temperature",
    "WeightDecay",
    "has_dropout",
    "refuse_shared_locations",
    "separate_learning_rates",
]
