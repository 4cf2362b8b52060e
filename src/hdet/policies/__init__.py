"""Policies: when a sync is due, what is measured there, and how that moves hyperparameters; one file for each
way. They import controllers, hyperparameters, probes, schedules, weights and replicas, never the engine."""

from hdet.policies.base import Context, Decided, Policy, Seen
from hdet.policies.beside import Beside, InTurn
from hdet.policies.comparison import Fixed
from hdet.policies.horizon import Horizon
from hdet.policies.regression import Regression
from hdet.policies.vote import Vote

__all__ = [
    "Beside",
    "Context",
    "Decided",
    "Fixed",
    "Horizon",
    "InTurn",
    "Policy",
    "Regression",
    "Seen",
    "Vote",
]
