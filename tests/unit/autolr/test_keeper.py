"""The best is kept and handed over, and what it is worth is said by batches that did not choose it."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hdet.autolr.choice import Candidate, Kind
from hdet.autolr.keeper import Handed, Keeper
from hdet.probes import Probe
from hdet.replicas import Replicas, SoloReplica
from tests.fakes import Alike
from tests.states import there_and_back


class Point(nn.Module):
    """One weight; the loss on a batch is its distance from the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(()))


class Recorded:
    """A keeper of a point, and which batches were looked at."""

    def __init__(self, batches: Sequence[float], *, replicas: Replicas | None = None) -> None:
        self.model = Point()
        self.looked_at: list[float] = []
        self.probe = Probe(self.loss, list(batches), model=self.model)
        weights = list(self.model.parameters())
        self.keeper = Keeper(self.probe, self.model, weights, replicas or SoloReplica(), offload=False)

    def loss(self, batch: float) -> Tensor:
        self.looked_at.append(batch)
        return (self.model.place - batch).abs()

    def go(self, place: float) -> None:
        with torch.no_grad():
            self.model.place.fill_(place)

    def offer(self, place: float, step: int, kind: Kind = "mean") -> bool:
        self.go(place)
        losses = tuple(self.keeper.measure())
        return self.keeper.offer(Candidate(step, kind, losses), {0: self.model.place})

    @property
    def place(self) -> float:
        return self.model.place.item()


BATCHES = (1.0, 2.0, 3.0, 4.0, 10.0, 20.0)


def test_the_best_that_was_offered_is_handed_over() -> None:
    at = Recorded(BATCHES)
    assert at.keeper.best is None
    assert at.offer(6.0, 1)
    assert at.offer(2.0, 2)
    assert not at.offer(9.0, 3)
    assert at.keeper.best == Handed(2, "mean", 2 / 3)
    assert math.isnan(at.keeper.best.estimate)
    handed = at.keeper.hand_over_(standing=False)
    assert handed is not None
    assert (handed.step, handed.kind, handed.loss) == (2, "mean", 2 / 3)
    assert at.place == 2.0


def test_one_half_chooses_and_the_other_alone_estimates() -> None:
    at = Recorded(BATCHES)
    at.offer(2.0, 1)
    assert at.looked_at == [1.0, 2.0, 3.0]
    at.looked_at.clear()
    at.go(50.0)
    handed = at.keeper.hand_over_(standing=False)
    assert at.looked_at == [4.0, 10.0, 20.0]
    losses = [2.0, 8.0, 18.0]
    assert handed is not None
    assert handed.estimate == pytest.approx(statistics.fmean(losses))
    assert handed.error == pytest.approx(statistics.stdev(losses) / math.sqrt(3))


def test_the_first_few_batches_alone_can_be_measured() -> None:
    at = Recorded(BATCHES)
    assert at.keeper.measure(2) == [1.0, 2.0]
    assert at.keeper.measure() == [1.0, 2.0, 3.0]
    assert at.keeper.measure_deployed(refresh=True) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("batches", [[1.0], [1.0, math.nan], [1.0, math.inf]])
def test_without_other_batches_there_is_no_estimate(batches: list[float]) -> None:
    at = Recorded(batches)
    at.offer(2.0, 1)
    handed = at.keeper.hand_over_(standing=True)
    assert handed is not None
    assert handed.loss == 1.0
    assert math.isnan(handed.estimate)
    assert math.isnan(handed.error)


def test_of_one_batch_the_estimate_has_no_error() -> None:
    at = Recorded([1.0, 4.0])
    at.offer(2.0, 1)
    handed = at.keeper.hand_over_(standing=True)
    assert handed is not None
    assert handed.estimate == 2.0
    assert math.isnan(handed.error)


def test_nothing_offered_is_nothing_handed_over() -> None:
    at = Recorded(BATCHES)
    assert at.keeper.hand_over_(standing=False) is None
    assert at.keeper.bytes() == 0
    with pytest.raises(RuntimeError, match="nothing was kept"):
        at.keeper.write_()


def test_weights_that_are_lost_are_not_handed_over() -> None:
    at = Recorded(BATCHES)
    at.offer(2.0, 1)
    assert not at.offer(math.nan, 2, "end")
    at.keeper.hand_over_(standing=False)
    assert at.place == 2.0


def test_a_layer_freed_later_is_handed_over_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    weights = list(model.parameters())
    probe = Probe(lambda _: 0.0, [1, 2], model=model)
    keeper = Keeper(probe, model, weights, SoloReplica(), offload=False)
    before = [w.detach().clone() for w in weights]
    keeper.offer(Candidate(1, "iterate", (1.0,)), {2: weights[2], 3: weights[3]})
    keeper.follow(dict(enumerate(weights)))
    with torch.no_grad():
        for weight in weights:
            weight += 1
    keeper.hand_over_(standing=False)
    for weight, old in zip(weights, before, strict=True):
        assert torch.equal(weight, old)


# ---------------------------------------------------------------------- several ranks


class Beside(SoloReplica):
    """Rank 0 of two; the other one's estimate is of the batches given."""

    size = 2

    def __init__(self, *losses: float) -> None:
        self.other = [float(len(losses)), math.fsum(losses), math.fsum(x * x for x in losses)]

    def gather(self, row: Sequence[Any]) -> list[list[float]]:
        return [list(row), self.other]


@pytest.mark.parametrize("others", [(), (5.0,), (1.0, 7.0, 30.0)])
def test_ranks_pool_unlike_numbers_of_batches(others: tuple[float, ...]) -> None:
    at = Recorded(BATCHES, replicas=Beside(*others))
    at.offer(2.0, 1)
    handed = at.keeper.hand_over_(standing=True)
    pooled = [2.0, 8.0, 18.0, *others]
    assert handed is not None
    assert handed.estimate == pytest.approx(statistics.fmean(pooled))
    assert handed.error == pytest.approx(statistics.stdev(pooled) / math.sqrt(len(pooled)))


def test_a_rank_without_an_estimate_takes_that_of_the_others() -> None:
    at = Recorded([1.0], replicas=Beside(4.0, 6.0))
    at.offer(2.0, 1)
    handed = at.keeper.hand_over_(standing=True)
    assert handed is not None
    assert (handed.estimate, handed.error) == pytest.approx((5.0, 1.0))


def test_a_loss_that_is_lost_on_one_rank_is_known_to_all() -> None:
    at = Recorded(BATCHES, replicas=Beside(math.nan))
    at.offer(2.0, 1)
    handed = at.keeper.hand_over_(standing=True)
    assert handed is not None
    assert math.isnan(handed.estimate)


def test_ranks_that_are_alike_estimate_alike() -> None:
    handed = []
    for replicas in (SoloReplica(), Alike(size=3)):
        at = Recorded(BATCHES, replicas=replicas)
        at.offer(2.0, 1)
        handed.append(at.keeper.hand_over_(standing=True))
    assert handed[0] is not None
    assert handed[1] is not None
    assert handed[0].estimate == pytest.approx(handed[1].estimate)
    assert handed[1].error < handed[0].error


# ---------------------------------------------------------------------- batch norm


def normed() -> tuple[nn.Sequential, Keeper, list[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    batches = list(torch.randn(6, 16, 4) + 5)
    probe = Probe(lambda x: model(x).square().mean(), batches, model=model)
    return model, Keeper(probe, model, list(model.parameters()), SoloReplica(), offload=False), batches


@pytest.mark.parametrize("kind", ["mean", "iterate", "end"])
def test_statistics_of_a_mean_are_made_anew_and_those_of_an_iterate_kept(kind: Kind) -> None:
    model, keeper, batches = normed()
    model(torch.randn(16, 4))
    stood = model[1].running_mean.clone()  # type: ignore[union-attr, operator]
    losses = tuple(keeper.measure_deployed(refresh=kind == "mean"))
    keeper.offer(Candidate(1, kind, losses), dict(enumerate(model.parameters())))
    with torch.no_grad():
        inputs = torch.stack([model[0](x).mean(0) for x in batches[:3]]).mean(0)
        model[0].weight.add_(1)  # type: ignore[operator]
        model[1].running_mean.fill_(100.0)  # type: ignore[union-attr, operator]
    handed = keeper.hand_over_(standing=False)
    torch.testing.assert_close(model[1].running_mean, inputs if kind == "mean" else stood)
    model.eval()
    with torch.no_grad():
        assert tuple(model(x).square().mean().item() for x in batches[:3]) == losses
        assert handed is not None
        assert handed.estimate == pytest.approx(
            statistics.fmean(model(x).square().mean().item() for x in batches[3:])
        )


def test_weights_are_chosen_with_running_statistics() -> None:
    model, keeper, batches = normed()
    with_own = keeper.measure()
    with_running = keeper.measure_deployed(refresh=False)
    assert max(with_own) < 1.5
    assert min(with_running) > 1.5
    model.eval()
    with torch.no_grad():
        assert with_running == [model(x).square().mean().item() for x in batches[:3]]


def test_a_mean_is_handed_over_with_its_statistics_to_a_model_in_eval_mode() -> None:
    model, keeper, batches = normed()
    losses = tuple(keeper.measure_deployed(refresh=True))
    keeper.offer(Candidate(1, "mean", losses), dict(enumerate(model.parameters())))
    model.eval()
    keeper.hand_over_(standing=False)
    with torch.no_grad():
        assert tuple(model(x).square().mean().item() for x in batches[:3]) == pytest.approx(losses)


# ---------------------------------------------------------------------- saving


@pytest.mark.parametrize("offered", [0, 1, 2])
def test_a_saved_keeper_goes_on(offered: int) -> None:
    at, other = Recorded(BATCHES), Recorded(BATCHES)
    for step, place in enumerate([2.0, 3.5][:offered]):
        at.offer(place, step)
    file = io.BytesIO()
    torch.save(there_and_back(at.keeper.state_dict()), file)
    file.seek(0)
    other.keeper.load_state_dict(torch.load(file, weights_only=True))
    assert other.keeper.choice == at.keeper.choice
    assert other.keeper.bytes() == at.keeper.bytes()
    assert at.offer(2.2, 9) == other.offer(2.2, 9)
    for each in (at, other):
        each.go(77.0)
    assert at.keeper.hand_over_(standing=False) == other.keeper.hand_over_(standing=False)
    assert at.place == other.place
