"""The vote of the replicas, for each hyperparameter by itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

import hdet
from hdet.loop.windows import Every
from hdet.published.softmax import SoftmaxController
from hdet.published.vote import Vote
from tests.fakes import bound


def test_the_decay_of_a_learning_rate_is_no_affair_of_others() -> None:
    model = nn.Dropout(0.5)
    (axis,) = hdet.Dropout(model).bind(SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    steering = bound(Vote([], Every(1), SoftmaxController(decay=0.05)), [axis])
    for _ in range(30):
        steering.move([(-1.0, 1.0)], (1.0, 1.0))
    assert model.p == pytest.approx(0.5)
