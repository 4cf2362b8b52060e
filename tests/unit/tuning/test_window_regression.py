"""Regression beside a horizon: which windows decide, and what the horizon does with what they moved."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet.autolr.best import BestWeights, Incumbent
from hdet.autolr.choice import Candidate
from hdet.autolr.rule import HorizonController, HorizonState
from hdet.loop.levels import orthogonal
from hdet.loop.policy import Context, Seen
from hdet.loop.windows import Windows
from hdet.replicas import SoloReplica
from hdet.tuning.policies import SequentialRegression, WindowRegression
from hdet.tuning.regression import RegressionController
from tests.states import there_and_back

SIZE = 8


class Path:
    """A horizon as others see it."""

    def __init__(self) -> None:
        self.windows, self.window_end, self.learns, self.improves = Windows(), 10, True, True
        self.axes, self.evidence, self.stood = [object()], None, False

    def judges(self, step: int) -> bool:
        return True


def beside(kind: type[WindowRegression] = WindowRegression) -> tuple[Any, Path, SimpleNamespace]:
    place = SimpleNamespace(value=1.0)
    dial = hdet.Hyperparameter(
        "dial",
        lambda: place.value,
        lambda v: setattr(place, "value", v),
        scale="linear",
        spread=0.1,
        bounds=(0, 9),
    )
    path = Path()
    policy = kind([dial], path, RegressionController())  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    context = Context("Test", optimizer, SoloReplica(), 1000, True, tuple, None)  # type: ignore[arg-type]
    policy.bind(dial.bind(optimizer), context)
    return policy, path, place


def window(policy: Any, k: int, slope: float) -> Any:
    """One in which the loss falls, or rises, with the dial."""
    levels = orthogonal(SIZE, ["dial"], seed=0, round=k)
    rows = [[slope * z + 1e-3 * math.sin(9 * k + r), 0.0] for r, z in enumerate(levels[0])]
    return policy.decide(Seen(10 * k, 1000, levels, (0.0,) * SIZE, rows))()


def test_nothing_is_explored_before_it_has_been_seen_to_stop() -> None:
    policy, path, _ = beside()
    policy.start(0)
    assert not policy.learns
    path.stood = True
    assert policy.learns
    path.learns = False
    policy.start(0)
    assert not policy.learns, "nor once the learning rate comes down"


@pytest.mark.parametrize("kind", [WindowRegression, SequentialRegression])
def test_a_window_in_which_nothing_was_explored_says_nothing(kind: type[WindowRegression]) -> None:
    policy, path, place = beside(kind)
    fresh = policy.state_dict()["joint"]
    for k in range(1, 30):
        path.improves = k % 2 == 0
        size = SIZE if kind is WindowRegression else 1
        rows = [[math.sin(9 * k + r), math.cos(k)] for r in range(size)]
        policy.decide(Seen(10 * k, 1000, [(0.0,) * size], (0.0,) * size, rows))()
    assert place.value == 1.0
    assert policy.axes[0].spread == 0.1
    assert policy.state_dict()["joint"] == fresh
    assert policy.state_dict().get("block", []) == []


def test_only_windows_that_gain_nothing_say_anything() -> None:
    policy, path, place = beside()
    for k in range(1, 4):
        assert window(policy, k, 1.0).explained == 0
    assert place.value == 1.0
    path.improves = False
    window(policy, 4, -1.0)
    high = place.value
    assert high > 1.0, "the first window that gains nothing is heard at once"
    path.improves = True
    for k in range(5, 9):
        assert window(policy, k, 1.0).explained == 0
    assert place.value == high, "and those that gain still say nothing"
    path.improves = False
    window(policy, 9, -1.0)
    assert place.value > high


def test_what_it_has_seen_is_saved() -> None:
    policy, path, _ = beside()
    path.improves = False
    window(policy, 1, 1.0)
    again, there, place = beside()
    again.load_state_dict(policy.state_dict())
    assert again.state_dict() == policy.state_dict() != beside()[0].state_dict()
    before = place.value
    window(again, 2, 1.0)
    assert place.value == before, "whether this window gained is the horizon's to say"
    there.improves = False
    window(again, 3, 1.0)
    assert place.value < before


def test_its_moves_are_explained_by_their_slopes() -> None:
    policy, path, _ = beside()
    path.improves = False
    window(policy, 1, 1.0)
    decided = window(policy, 2, 1.0)
    (known,) = decided.hyperparameters
    assert decided.explained == pytest.approx(known.slope * known.delta) != 0
    assert decided.explained < 0, "it expects a gain"


def test_in_turn_neighbours_are_compared_by_shares() -> None:
    """A window that gains twice as much at the high value as at the low one, while all gain less and less."""
    policy, _, place = beside(SequentialRegression)
    loss = 100.0
    for k in range(1, 14):
        level = 1.0 if k % 4 in (1, 2) else -1.0
        before, loss = loss, loss - 0.8**k * (1.5 + 0.5 * level)
        assert before > loss
        policy.decide(Seen(10 * k, 1000, [(level,)], (0.0,), [[loss, loss]]))()
    assert place.value > 1.05


def test_in_turn_what_was_undone_is_compared_with_nothing() -> None:
    policy, _, _ = beside(SequentialRegression)
    policy.decide(Seen(10, 1000, [(1.0,)], (0.0,), [[5.0, 5.0]]))()
    policy.decide(Seen(20, 1000, [(-1.0,)], (0.0,), [[4.0, 4.0]]))()
    policy.missed(30)
    policy.decide(Seen(40, 1000, [(1.0,)], (0.0,), [[9.0, 9.0]]))()
    policy.decide(Seen(50, 1000, [(-1.0,)], (0.0,), [[8.5, 8.5]]))()
    assert policy.state_dict()["block"] == []


# ---------------------------------------------------------------------- what the horizon does with it


def incumbent() -> Incumbent:
    model = nn.Linear(2, 1)
    probe = hdet.Probe(lambda x: model(x).mean(), [torch.ones(1, 2)] * 8, model=model)
    weights = [p.detach() for p in model.parameters()]
    best = BestWeights(probe, model, weights, SoloReplica(), offload=True)
    return Incumbent(best, 3, 0.1)


def offer(best: Incumbent, step: int, loss: float, *, moved: bool) -> None:
    candidate = Candidate(step, "mean", tuple(loss + 1e-3 * k for k in range(4)))
    best.offer(candidate, list(candidate.losses), best.weights._parameters)
    best.count(step, [1.0], rises=False, moved=moved)


def windows_until_back(*, moved: bool) -> int:
    best = incumbent()
    for step, loss in ((0, 3.0), (10, 2.0), (20, 1.0)):
        offer(best, step, loss, moved=False)
    for k in range(1, 20):
        offer(best, 20 + 10 * k, 1.5, moved=moved)
        if best.behind:
            assert best.others_moved == moved
            best.return_to_best_()
            assert not best.others_moved
            return k
    raise AssertionError("it never went back")


def test_it_goes_back_as_soon_whether_others_move_or_not() -> None:
    """What they moved is tried from the best weights: from those that overfit it seldom leads anywhere."""
    assert windows_until_back(moved=False) == windows_until_back(moved=True) == 2


def test_after_an_improvement_nothing_has_been_moved_since_the_best() -> None:
    best = incumbent()
    for step, loss in ((0, 3.0), (10, 2.0), (20, 1.0), (30, 1.5), (40, 0.5), (50, 1.5)):
        offer(best, step, loss, moved=True)
        assert best.improves == (loss != 1.5)
        assert best.others_moved == (loss == 1.5)
    again = incumbent()
    again.load_state_dict(there_and_back(best.state_dict()))
    assert again.others_moved


def test_who_goes_back_to_try_what_others_moved_is_not_slower() -> None:
    controller, state = HorizonController(), HorizonState(0.3, windows=9, gap=1.0, progress=1.0)
    assert controller.retreat(state).value == pytest.approx(0.1)
    kept = controller.retreat(state, slower=False)
    assert (kept.value, kept.ceiling, kept.gap) == (0.3, math.inf, None)
    assert controller.restart(state, 1e-5, 0.3).ceiling == pytest.approx(0.1)
    assert controller.restart(state, 1e-5, 0.3, slower=False).ceiling == 0.3
