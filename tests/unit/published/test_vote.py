"""The vote of the replicas, for each hyperparameter by itself."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD

import hdet
from hdet.loop.policy import Seen
from hdet.loop.windows import Every
from hdet.published.softmax import SoftmaxController
from hdet.published.vote import PrintedVote, Vote
from tests.fakes import bound


def test_the_decay_of_a_learning_rate_is_no_affair_of_others() -> None:
    model = nn.Dropout(0.5)
    (axis,) = hdet.Dropout(model).bind(SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    steering = bound(Vote([], Every(1), SoftmaxController(decay=0.05)), [axis])
    for _ in range(30):
        steering.move([(-1.0, 1.0)], (1.0, 1.0))
    assert model.p == pytest.approx(0.5)


def test_as_printed_the_first_decision_has_the_losses_of_the_whole_warm_up() -> None:
    """Rounds of ten steps, and auto-LR from step 25 on: it decides at 30 by three rounds, at 40 by one."""
    controller = SoftmaxController(temperature=1.0)
    losses = {10: (1.0, 2.0), 20: (3.0, 3.5), 30: (2.0, 1.0), 40: (1.0, 1.2)}
    heard = {30: (6.0, 6.5), 40: (1.0, 1.2)}
    policies = []
    for _ in range(2):
        (axis,) = hdet.LearningRate(0.1).bind(SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
        policies.append(bound(PrintedVote([], Every(10), controller, act_from=25), [axis]))
    policy, other = policies
    for step, seen in losses.items():
        decided = policy.decide(Seen(step, 40, [(-1.0, 1.0)], seen, []))()
        if step not in heard:
            assert decided.weights == ()
        else:
            a, b = (math.exp(-loss) for loss in heard[step])
            assert decided.weights == pytest.approx((a / (a + b), b / (a + b)))
        other.load_state_dict(policy.state_dict())
        policy, other = other, policy
