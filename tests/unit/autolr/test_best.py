"""The best weights: chosen, copied, loaded; and when training returns to them."""

from __future__ import annotations

import io
import logging
import math
import statistics
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hdet.autolr.best import Best, BestWeights, Incumbent
from hdet.autolr.choice import Candidate, Kind
from hdet.probes import Probe
from hdet.replicas import Replicas, SoloReplica
from tests.fakes import Alike
from tests.states import there_and_back
from tests.unit.training import Overfitting


class Point(nn.Module):
    """One weight; the loss on a batch is its distance from the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(()))


class Recorded:
    """A keeper of a point, and which batches were looked at."""

    def __init__(
        self, batches: Sequence[float], *, replicas: Replicas | None = None, per_sync: int = 4
    ) -> None:
        self.model = Point()
        self.looked_at: list[float] = []
        self.probe = Probe(self.loss, list(batches), model=self.model, per_sync=per_sync)
        weights = list(self.model.parameters())
        self.weights = BestWeights(self.probe, self.model, weights, replicas or SoloReplica(), offload=False)

    def loss(self, batch: float) -> Tensor:
        self.looked_at.append(batch)
        return (self.model.place - batch).abs()

    def go(self, place: float) -> None:
        with torch.no_grad():
            self.model.place.fill_(place)

    def offer(self, place: float, step: int, kind: Kind = "mean") -> bool:
        self.go(place)
        losses = tuple(self.weights.measure())
        self.weights.offer(Candidate(step, kind, losses), {0: self.model.place})
        best = self.weights.best
        return best is not None and best.step == step

    @property
    def place(self) -> float:
        return self.model.place.item()


BATCHES = (1.0, 2.0, 3.0, 4.0, 10.0, 20.0)


def test_the_best_that_was_offered_is_loaded() -> None:
    at = Recorded(BATCHES)
    assert at.weights.best is None
    assert at.offer(6.0, 1)
    assert at.offer(2.0, 2)
    assert not at.offer(9.0, 3)
    assert at.weights.best == Best(2, "mean", 2 / 3)
    assert math.isnan(at.weights.best.estimate)
    best = at.weights.finish_()
    assert best is not None
    assert (best.step, best.kind, best.loss) == (2, "mean", 2 / 3)
    assert at.place == 2.0


def test_one_half_chooses_and_the_other_alone_estimates() -> None:
    at = Recorded(BATCHES)
    at.offer(2.0, 1)
    assert at.looked_at == [1.0, 2.0, 3.0]
    at.looked_at.clear()
    at.go(50.0)
    best = at.weights.finish_()
    assert at.looked_at == [1.0, 2.0, 3.0, 4.0, 10.0, 20.0]  # what chose is compared with the choice
    losses = [2.0, 8.0, 18.0]
    assert best is not None
    assert best.estimate == pytest.approx(statistics.fmean(losses))
    assert best.error == pytest.approx(statistics.stdev(losses) / math.sqrt(3))


def test_the_first_few_batches_alone_can_be_measured() -> None:
    at = Recorded(BATCHES)
    assert at.weights.measure(2) == [1.0, 2.0]
    assert at.weights.measure() == [1.0, 2.0, 3.0]
    assert at.weights.measure_deployed(refresh=True) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("batches", [[1.0], [1.0, math.nan], [1.0, math.inf]])
def test_without_other_batches_there_is_no_estimate(batches: list[float]) -> None:
    at = Recorded(batches)
    at.offer(2.0, 1)
    best = at.weights.finish_()
    assert best is not None
    assert best.loss == 1.0
    assert math.isnan(best.estimate)
    assert math.isnan(best.error)


def test_an_empty_batch_has_no_part_in_the_estimate(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 1)
    batches = [torch.ones(4, 2), torch.ones(3, 2), torch.zeros(0, 2), torch.full((4, 2), 2.0)]
    for batch, known in ((torch.zeros(0, 2), True), (torch.full((1, 2), math.nan), False)):
        probe = Probe(lambda x: model(x).square().mean(), [*batches[:2], batch, batches[3]], model=model)
        keeper = BestWeights(probe, model, list(model.parameters()), SoloReplica(), offload=False)
        keeper.offer(Candidate(1, "mean", tuple(keeper.measure())), dict(enumerate(model.parameters())))
        best = keeper.finish_()
        assert best is not None
        assert math.isfinite(best.estimate) == known
        assert ("there is no estimate: the loss" in caplog.text) != known


def test_of_one_batch_the_estimate_has_no_error() -> None:
    at = Recorded([1.0, 4.0])
    at.offer(2.0, 1)
    best = at.weights.finish_()
    assert best is not None
    assert best.estimate == 2.0
    assert math.isnan(best.error)


@pytest.mark.parametrize(("scale", "warned"), [(1.0, False), (1.2, False), (3.0, True), (math.nan, True)])
def test_weights_that_are_not_what_was_chosen_are_told(
    scale: float, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    at = Recorded(BATCHES)
    at.offer(4.0, 1)
    at.offer(2.0, 2)
    at.probe.loss_fn = lambda batch: scale * at.loss(batch)
    with caplog.at_level(logging.WARNING, "hdet"):
        at.weights.finish_()
    assert ("was 0.6667 when they were chosen" in caplog.text) == warned


def test_the_end_is_loaded_although_training_went_on() -> None:
    at = Recorded(BATCHES)
    at.offer(2.0, 99, "end")
    at.go(50.0)
    at.weights.finish_()
    assert at.place == 2.0


def test_nothing_offered_loads_nothing() -> None:
    at = Recorded(BATCHES)
    assert at.weights.finish_() is None
    assert at.weights.bytes() == 0


def test_weights_that_are_not_finite_are_not_loaded() -> None:
    at = Recorded(BATCHES)
    at.offer(2.0, 1)
    assert not at.offer(math.nan, 2, "end")
    at.weights.finish_()
    assert at.place == 2.0


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
    best = at.weights.finish_()
    pooled = [2.0, 8.0, 18.0, *others]
    assert best is not None
    assert best.estimate == pytest.approx(statistics.fmean(pooled))
    assert best.error == pytest.approx(statistics.stdev(pooled) / math.sqrt(len(pooled)))


def test_a_rank_without_an_estimate_takes_that_of_the_others() -> None:
    at = Recorded([1.0], replicas=Beside(4.0, 6.0))
    at.offer(2.0, 1)
    best = at.weights.finish_()
    assert best is not None
    assert (best.estimate, best.error) == pytest.approx((5.0, 1.0))


def test_a_loss_that_is_lost_on_one_rank_is_known_to_all() -> None:
    at = Recorded(BATCHES, replicas=Beside(math.nan))
    at.offer(2.0, 1)
    best = at.weights.finish_()
    assert best is not None
    assert math.isnan(best.estimate)


def test_ranks_that_are_alike_estimate_alike() -> None:
    best = []
    for replicas in (SoloReplica(), Alike(size=3)):
        at = Recorded(BATCHES, replicas=replicas)
        at.offer(2.0, 1)
        best.append(at.weights.finish_())
    assert best[0] is not None
    assert best[1] is not None
    assert best[0].estimate == pytest.approx(best[1].estimate)
    assert best[1].error < best[0].error


# ---------------------------------------------------------------------- batch norm


def normed() -> tuple[nn.Sequential, BestWeights, list[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    batches = list(torch.randn(6, 16, 4) + 5)
    probe = Probe(lambda x: model(x).square().mean(), batches, model=model)
    return model, BestWeights(probe, model, list(model.parameters()), SoloReplica(), offload=False), batches


@pytest.mark.parametrize("kind", ["mean", "iterate", "end"])
def test_statistics_of_a_mean_are_recomputed_and_those_of_an_iterate_kept(kind: Kind) -> None:
    model, keeper, batches = normed()
    model(torch.randn(16, 4))
    stood = model[1].running_mean.clone()  # type: ignore[union-attr, operator]
    losses = tuple(keeper.measure_deployed(refresh=kind == "mean"))
    keeper.offer(Candidate(1, kind, losses), dict(enumerate(model.parameters())))
    with torch.no_grad():
        inputs = torch.stack([model[0](x).mean(0) for x in batches[:3]]).mean(0)
        model[0].weight.add_(1)  # type: ignore[operator]
        model[1].running_mean.fill_(100.0)  # type: ignore[union-attr, operator]
    best = keeper.finish_()
    torch.testing.assert_close(model[1].running_mean, inputs if kind == "mean" else stood)
    model.eval()
    with torch.no_grad():
        assert tuple(model(x).square().mean().item() for x in batches[:3]) == losses
        assert best is not None
        assert best.estimate == pytest.approx(
            statistics.fmean(model(x).square().mean().item() for x in batches[3:])
        )


def test_a_mean_is_loaded_with_its_statistics_to_a_model_in_eval_mode() -> None:
    model, keeper, batches = normed()
    losses = tuple(keeper.measure_deployed(refresh=True))
    keeper.offer(Candidate(1, "mean", losses), dict(enumerate(model.parameters())))
    model.eval()
    keeper.finish_()
    with torch.no_grad():
        assert tuple(model(x).square().mean().item() for x in batches[:3]) == pytest.approx(losses)


@pytest.mark.parametrize("saved", [False, True])
def test_statistics_that_were_frozen_before_the_choice_are_not_recomputed(saved: bool) -> None:
    model, keeper, batches = normed()
    losses = tuple(keeper.measure_deployed(refresh=True))
    keeper.offer(Candidate(1, "mean", losses), dict(enumerate(model.parameters())))
    model[1].eval()
    with torch.no_grad():
        model[1].running_mean.fill_(5.0)  # type: ignore[union-attr, operator]
        model[0].weight.zero_()
        model[0].bias.fill_(5.0)
    losses = tuple(keeper.measure_deployed(refresh=True))
    keeper.offer(Candidate(2, "mean", losses), dict(enumerate(model.parameters())))
    if saved:
        state = there_and_back(keeper.state_dict())
        keeper = BestWeights(keeper.probe, model, list(model.parameters()), SoloReplica(), offload=False)
        keeper.load_state_dict(state)
    model.train()
    best = keeper.finish_()
    model.eval()
    with torch.no_grad():
        assert best is not None
        assert best.step == 2
        assert tuple(model(x).square().mean().item() for x in batches[:3]) == losses


# ---------------------------------------------------------------------- other batches


def test_losses_of_other_batches_are_forgotten() -> None:
    torch.manual_seed(0)
    model, held = nn.Linear(2, 1), list(torch.randn(8, 4, 2))
    labelled = [{"x": x, "y": x.sum(1)} for x in held]
    other = [{"x": x, "y": -x.sum(1)} for x in held]

    def keeper_of(batches: list[Any]) -> BestWeights:
        probe = Probe(lambda b: (model(b["x"]).squeeze(1) - b["y"]).square().mean(), batches, model=model)
        return BestWeights(probe, model, list(model.parameters()), SoloReplica(), offload=False)

    first = keeper_of(labelled)
    assert not first.batches_changed([first.mark()])
    first.offer(Candidate(1, "mean", tuple(first.measure())), dict(enumerate(model.parameters())))
    state = there_and_back(first.state_dict())
    for batches, changed in ((deepcopy(labelled), False), (other, True)):
        resumed = keeper_of(batches)
        resumed.load_state_dict(state)
        assert resumed.best is not None
        assert resumed.batches_changed([resumed.mark()]) == changed
        assert (resumed.best is None) == changed
        assert not resumed.batches_changed([resumed.mark()])


# ---------------------------------------------------------------------- saving


@pytest.mark.parametrize("offered", [0, 1, 2])
def test_a_saved_keeper_goes_on(offered: int) -> None:
    at, other = Recorded(BATCHES), Recorded(BATCHES)
    for step, place in enumerate([2.0, 3.5][:offered]):
        at.offer(place, step)
    file = io.BytesIO()
    torch.save(there_and_back(at.weights.state_dict()), file)
    file.seek(0)
    other.weights.load_state_dict(torch.load(file, weights_only=True))
    assert other.weights.choice == at.weights.choice
    assert other.weights.bytes() == at.weights.bytes()
    assert at.offer(2.2, 9) == other.offer(2.2, 9)
    for each in (at, other):
        each.go(77.0)
    assert at.weights.finish_() == other.weights.finish_()
    assert at.place == other.place


# ---------------------------------------------------------------------- kept


def kept_of(model: nn.Module, parameters: list[nn.Parameter], *, offload: bool) -> BestWeights:
    probe = Probe(lambda _: 0.0, [1, 2], model=model)
    return BestWeights(probe, model, parameters, SoloReplica(), offload=offload)


def take(kept: BestWeights, weights: dict[int, Tensor]) -> None:
    """No worse than any before, so it is kept."""
    kept.offer(Candidate(1, "iterate", (1.0,)), weights)


def model_with_buffers() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model(torch.randn(8, 3))
    return model


def standing(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def weights_of(model: nn.Module) -> dict[int, Tensor]:
    return dict(enumerate(model.parameters()))


@torch.no_grad()
def move(model: nn.Module) -> None:
    for tensor in model.state_dict().values():
        tensor += 1


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("offload", [False, True])
def test_weights_and_buffers_come_back_bit_for_bit(offload: bool) -> None:
    model = model_with_buffers()
    kept = kept_of(model, list(model.parameters()), offload=offload)
    before, places = standing(model), [p.data_ptr() for p in model.parameters()]
    take(kept, weights_of(model))
    for _ in range(2):
        move(model)
        kept.load_()
        assert_equal(standing(model), before)
    assert [p.data_ptr() for p in model.parameters()] == places


def test_the_latest_copy_counts_and_takes_no_more_memory() -> None:
    model = model_with_buffers()
    kept = kept_of(model, list(model.parameters()), offload=False)
    take(kept, weights_of(model))
    size = kept.bytes()
    move(model)
    take(kept, weights_of(model))
    latest = standing(model)
    move(model)
    kept.load_()
    assert_equal(standing(model), latest)
    assert kept.bytes() == size == sum(t.numel() * t.element_size() for t in latest.values())


def test_weights_that_stand_elsewhere_are_written_into_the_model() -> None:
    """A window's mean, which may be wider than the weights."""
    model = nn.Linear(2, 2, dtype=torch.bfloat16)
    kept = kept_of(model, list(model.parameters()), offload=False)
    take(kept, {0: torch.full((2, 2), 1.5), 1: torch.zeros(2)})
    assert kept.bytes() == 12
    kept.load_()
    assert torch.equal(model.weight, torch.full((2, 2), 1.5, dtype=torch.bfloat16))
    assert torch.equal(model.bias, torch.zeros(2, dtype=torch.bfloat16))


def test_what_is_never_trained_is_not_copied() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    kept = kept_of(model, list(model.parameters()), offload=False)
    take(kept, {i: p for i, p in weights_of(model).items() if i >= 2})
    taken = standing(model)
    assert kept.bytes() == 4 * (4 * 2 + 2)
    move(model)
    moved = standing(model)
    kept.load_()
    assert torch.equal(model[0].weight, moved["0.weight"])
    assert torch.equal(model[1].weight, taken["1.weight"])


def test_a_layer_freed_after_the_copy_comes_back_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    kept = kept_of(model, list(model.parameters()), offload=False)
    before = standing(model)
    take(kept, {i: p for i, p in weights_of(model).items() if i >= 2})
    kept.follow(weights_of(model))
    move(model)
    kept.follow(weights_of(model))
    kept.load_()
    assert_equal(standing(model), before)


def test_a_layer_frozen_between_two_copies_is_kept_as_it_was_frozen() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    kept = kept_of(model, list(model.parameters()), offload=False)
    take(kept, weights_of(model))
    move(model)
    frozen_at = standing(model)
    take(kept, {i: p for i, p in weights_of(model).items() if i >= 2})
    move(model)
    kept.load_()
    assert_equal(standing(model), frozen_at)


def test_a_buffer_that_has_another_shape_by_now_is_left_alone() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))
            self.register_buffer("gone", torch.zeros(1))

    model = Cache()
    kept = kept_of(model, [], offload=False)
    take(kept, {})
    model.seen = torch.ones(3)
    del model.gone
    kept.load_()
    assert torch.equal(model.get_buffer("seen"), torch.ones(3))


@pytest.mark.parametrize("offload", [False, True])
def test_a_saved_copy_comes_back(offload: bool) -> None:
    model = model_with_buffers()
    kept = kept_of(model, list(model.parameters()), offload=False)
    take(kept, weights_of(model))
    best = standing(model)
    file = io.BytesIO()
    torch.save(there_and_back(kept.state_dict()), file)
    file.seek(0)
    state: dict[str, Any] = torch.load(file, weights_only=True)

    other = model_with_buffers()
    move(other)
    resumed = kept_of(other, list(other.parameters()), offload=offload)
    resumed.load_state_dict(state)
    assert resumed.bytes() == kept.bytes()
    resumed.load_()
    assert_equal(standing(other), best)


def test_a_loaded_copy_is_not_the_saved_one() -> None:
    model = model_with_buffers()
    kept = kept_of(model, list(model.parameters()), offload=False)
    take(kept, weights_of(model))
    best = standing(model)
    resumed = kept_of(model, list(model.parameters()), offload=False)
    resumed.load_state_dict(there_and_back(kept.state_dict()))
    move(model)
    take(kept, weights_of(model))
    resumed.load_()
    assert_equal(standing(model), best)


def test_a_state_is_the_copy_itself() -> None:
    """As torch's own states are: to keep it in memory while training goes on, it is copied."""
    model = model_with_buffers()
    kept = kept_of(model, list(model.parameters()), offload=False)
    take(kept, weights_of(model))
    best = standing(model)
    state = there_and_back(kept.state_dict())
    held = deepcopy(state)
    move(model)
    take(kept, weights_of(model))
    assert all(torch.equal(state["kept"]["weights"][i], p) for i, p in enumerate(model.parameters()))
    resumed = kept_of(model, list(model.parameters()), offload=False)
    resumed.load_state_dict(held)
    resumed.load_()
    assert_equal(standing(model), best)


# ---------------------------------------------------------------------- incumbent


def searched_through(means: Sequence[float], *, patience: int | None = 3) -> tuple[Incumbent, list[bool]]:
    """One that was offered windows of these losses, and whether it was behind after each."""
    kept = Recorded([0.0] * 8)
    incumbent = Incumbent(kept.weights, patience, 0.1)
    behind = []
    for step, mean in enumerate(means):
        losses = [mean + 1e-3 * k for k in range(4)]
        incumbent.offer(Candidate(step, "mean", tuple(losses)), losses, {0: kept.model.place})
        incumbent.count(step, [1.0], rises=False)
        behind.append(incumbent.behind)
    return incumbent, behind


@pytest.mark.parametrize(
    ("means", "expected"),
    [
        ([3.0, 2.0, 1.0, 1.3, 1.3, 1.3], [False] * 4 + [True] * 2),
        ([3.0, 2.0, 1.0, 1.3, 0.9, 1.3], [False] * 6),
        ([3.0, 2.0, 1.0, 1.3, math.nan], [False] * 4 + [True]),
        ([3.0, 2.0, 1.0] + [1.19] * 9, [False] * 12),
        ([3.0, 2.0] + [1.0] * 9, [False] * 11),
        ([1.0, 2.0, 3.0, 4.0], [False] * 4),
        ([1.0] * 9, [False] * 9),
    ],
    ids=["twice", "once", "lost", "a tenth", "stands", "rises from the first step on", "nothing learnt"],
)
def test_behind_is_who_lost_much_of_what_was_gained_twice(means: list[float], expected: list[bool]) -> None:
    """More than a tenth; a loss that stands still, or never fell, is none that older weights would mend."""
    incumbent, behind = searched_through(means)
    assert behind == expected
    again, _ = searched_through([])
    again.load_state_dict(there_and_back(incumbent.state_dict()))
    assert (again.behind, again.improves) == (incumbent.behind, incumbent.improves)


def test_without_patience_nobody_is_behind() -> None:
    _, behind = searched_through([3.0, 1.0, 3.0, 3.0, 3.0], patience=None)
    assert not any(behind)


def offered(*windows: Sequence[float], batches: int = 4, replicas: Replicas | None = None) -> Incumbent:
    """One that was offered what training began with, and windows, by their losses on so many batches."""
    kept = Recorded([0.0] * 2 * batches, replicas=replicas, per_sync=batches)
    incumbent = Incumbent(kept.weights, 3, 0.1)
    for step, losses in enumerate(windows):
        candidate = Candidate(step, "mean" if step else "start", tuple(losses))
        incumbent.offer(candidate, list(losses), {0: kept.model.place})
    return incumbent


START = [3.0, 3.1, 3.4, 3.3]


@pytest.mark.parametrize(
    ("gains", "agrees"),
    [
        ([1.0, 1.0, 1.0, 1.0], True),
        ([1.0, 1.02, 0.98, 1.01], True),
        ([1.0, 1.1, 0.9, 1.0], False),
        ([0.0, 0.0, 0.0, 0.0], False),
        ([-1.0, -1.0, -1.0, -1.0], False),
        ([1.0, math.nan, 1.0, 1.0], False),
    ],
    ids=["alike", "to a hundredth", "not to a tenth", "nothing gained", "lost", "not finite"],
)
def test_batches_agree_that_tell_what_was_gained(gains: list[float], agrees: bool) -> None:
    incumbent = offered(START, [loss - gain for loss, gain in zip(START, gains, strict=True)])
    assert incumbent.agree() == agrees


def test_two_batches_of_a_replica_are_the_fewest() -> None:
    assert not offered([3.0, 3.1], [2.0, 2.1], batches=2).agree()
    assert not offered(START, [2.0, 2.1, 2.4, 2.3], batches=2, replicas=Alike()).agree()
    assert not offered(START).agree(), "nothing but the start was seen"


@pytest.mark.parametrize("size", [1, 2])
def test_half_of_the_batches_are_as_if_the_others_had_never_been(size: int) -> None:
    """The first half of each replica."""
    windows = [START, [1.5, 1.6, 1.9, 1.8], [2.0, 2.1, 2.4, 2.3]]
    ranks: dict[str, Any] = {"replicas": Alike(size=size)} if size > 1 else {}
    whole = offered(*[size * losses for losses in windows], **ranks)
    half = offered(*[size * losses[:2] for losses in windows], batches=2, **ranks)
    assert whole.agree()
    assert whole.halve() == pytest.approx(2.05 - 2.2)
    assert len(whole.weights.measure()) == len(whole.weights.measure_deployed(refresh=False)) == 2
    assert (whole.previous, whole.best) == (half.previous, half.best)
    assert whole.weights.choice == half.weights.choice
    assert (whole.best_at, whole.behind) == (half.best_at, half.behind)
    losses = tuple(size * [1.0, 1.1])
    for incumbent in (whole, half):
        incumbent.offer(Candidate(3, "mean", losses), list(losses), {})
    assert whole.state_dict()["search"] == half.state_dict()["search"]
    again = offered(batches=4, **ranks)
    again.load_state_dict(there_and_back(whole.state_dict()))
    assert len(again.weights.measure()) == 2
    assert again.previous == whole.previous
    assert again.weights.choice == whole.weights.choice


def test_a_state_of_before_there_was_a_count_has_all_batches() -> None:
    incumbent = offered(START, [2.0, 2.1, 2.4, 2.3])
    state = there_and_back(incumbent.state_dict())
    del state["counts"][2:]
    again = offered()
    again.load_state_dict(state)
    assert len(again.weights.measure()) == 4
    assert again.previous == incumbent.previous


STEPS = 1500


def test_with_time_left_a_slower_search_restarts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hdet"):
        run = Overfitting(total_steps=STEPS)
        start = [p.detach().clone() for p in run.model.parameters()]
        while not run.restarts and run.auto.steps < STEPS:
            run.run(run.auto.steps + 1)
        assert all(map(torch.equal, run.model.parameters(), start)), "the weights it began with"
        assert not any(run.optimizer.state.values()), "and no state"
        restarted = run.auto.steps
        run.run(STEPS)
    assert "from the beginning, below a third of the learning rate" in caplog.text
    peak = max(r.hyperparameters[0].base_after for r in run.records if r.step < restarted)
    assert max(r.hyperparameters[0].base_after for r in run.records if r.step > restarted) < peak / 2
    once = Overfitting(total_steps=STEPS, patience=None).run(STEPS)
    run.auto.finish_()
    once.auto.finish_()
    assert run.truly() < once.truly()


@pytest.mark.slow
def test_it_restarts_twice_at_most() -> None:
    run = Overfitting(patience=2).run(16_000)
    assert run.auto.finished
    assert len(run.restarts) == 2


def test_not_without_time() -> None:
    run = Overfitting(total_steps=120).run(120)
    assert not run.restarts
    assert any("back to those weights" in event for r in run.records for event in r.events)


def test_a_run_that_is_resumed_after_a_restart_is_the_same() -> None:
    whole = Overfitting(total_steps=STEPS).run(1200)
    broken = Overfitting(total_steps=STEPS).run(whole.restarts[0].step + 45)
    state = deepcopy((broken.model.state_dict(), broken.optimizer.state_dict(), broken.auto.state_dict()))
    again = Overfitting(total_steps=STEPS)
    again.model.load_state_dict(state[0])
    again.optimizer.load_state_dict(state[1])
    again.auto.load_state_dict(state[2])
    again.run(1200)
    assert all(map(torch.equal, again.model.parameters(), whole.model.parameters()))
    assert again.records[-1].step == whole.records[-1].step
    assert len(again.restarts) == len(whole.restarts) - 1
