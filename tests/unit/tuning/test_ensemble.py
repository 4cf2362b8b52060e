"""What Ensemble takes and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hdet


def test_a_hyperparameter_is_explored_once() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(ValueError, match="explore must name each hyperparameter once"):
        hdet.Ensemble(optimizer, [hdet.LearningRate(), hdet.LearningRate(0.5)])
