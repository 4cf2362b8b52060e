"""The maths behind the policies: losses in, a new immutable state out, all in float64. Pure: they import no
torch, no other room, and do no I/O."""

from hdet.controllers.base import Controller, ControlState, Decision
from hdet.controllers.horizon import HorizonController, HorizonDecision, HorizonState, Window
from hdet.controllers.regression import (
    Estimate,
    RegressionController,
    RegressionDecision,
    RegressionState,
)
from hdet.controllers.softmax import SoftmaxController, geometric_decay, literal_decay

__all__ = [
    "ControlState",
    "Controller",
    "Decision",
    "Estimate",
    "HorizonController",
    "HorizonDecision",
    "HorizonState",
    "RegressionController",
    "RegressionDecision",
    "RegressionState",
    "SoftmaxController",
    "Window",
    "geometric_decay",
    "literal_decay",
]
