"""One training, a part at a time."""

from __future__ import annotations

import torch

from benchmarks.autotune.arena import Arena
from benchmarks.autotune.space import DEFAULTS, Setting
from benchmarks.autotune.training import Training

DROPPING = Setting(lr=1e-2, weight_decay=0.1, dropout=0.3, label_smoothing=0.1)


def weights(training: Training) -> torch.Tensor:
    return torch.cat([part.detach().flatten() for part in training.model.parameters()])


def moments(training: Training) -> list[torch.Tensor]:
    return [state[name] for state in training.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]


def test_a_number_decides_all_of_it(arena: Arena) -> None:
    first, again, other = (arena.training(number, DROPPING) for number in (1, 1, 2))
    assert torch.equal(weights(first), weights(other)), "all start from the same weights"
    losses = [training.advance(4) for training in (first, again, other)]
    assert torch.equal(weights(first), weights(again))
    assert losses[0] == losses[1] != losses[2]


def test_parts_make_the_whole(arena: Arena) -> None:
    whole, parts = arena.training(0, DEFAULTS), arena.training(0, DEFAULTS)
    whole.advance(6)
    for _ in range(3):
        parts.advance(2)
    assert torch.equal(weights(whole), weights(parts))
    assert whole.taken == parts.taken == 6
    assert arena.ledger.samples == 2 * 6 * 32


def test_the_learning_rate_is_onecycles_at_the_settings_peak(arena: Arena) -> None:
    training = arena.training(0, DROPPING)
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=DROPPING.lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(plain, DROPPING.lr, 20, cycle_momentum=False)
    for _ in range(20):
        expected = plain.param_groups[0]["lr"]
        training.advance(1)
        torch.testing.assert_close(training.optimizer.param_groups[0]["lr"], expected)
        plain.step()
        if schedule.last_epoch < 20:
            schedule.step()
