"""One half chooses and the other one judges: no batch in both, and the same ones for the whole run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from hdet.probes.probe import Probe
from tests.unit.probes.batches import nothing, numbered, numbers, shuffled_loader


class Stream(IterableDataset[int]):
    """Without a length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def probe_of(batches: Any, per_sync: int = 4) -> Probe:
    return Probe(nothing, batches, model=nn.Linear(1, 1), per_sync=per_sync)


# ---------------------------------------------------------------------- which batches


def test_a_list_is_halved_and_no_batch_is_in_both() -> None:
    for held, per_sync, choosing, judging in ((1, 4, 1, 0), (3, 4, 2, 1), (7, 4, 4, 3), (50, 4, 4, 4)):
        probe = probe_of(list(range(held)), per_sync)
        chosen, others = probe.halves()
        assert probe.choosing == len(chosen) == choosing
        assert len(others) == judging
        assert [*chosen, *others] == list(range(choosing + judging))


def test_a_callable_gets_the_numbers_of_the_first_draws() -> None:
    assert probe_of(lambda k: k, 3).halves() == ([0, 1, 2], [3, 4, 5])


def test_a_loader() -> None:
    loader = DataLoader(numbered(14), batch_size=2)
    chosen, others = probe_of(loader, 3).halves()
    assert (numbers(chosen), numbers(others)) == ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11])


def test_a_shuffled_loader_gives_a_resumed_process_the_same_batches() -> None:
    found = []
    for between in (0, 3):
        torch.manual_seed(5)
        probe = probe_of(shuffled_loader())
        torch.randn(between)  # training, or none
        found.append([numbers(half) for half in probe.halves()])
    assert found[0] == found[1]
    assert sorted(found[0][0] + found[0][1]) == list(range(14))
    torch.manual_seed(6)
    assert [numbers(half) for half in probe_of(shuffled_loader()).halves()] != found[0]


@pytest.mark.parametrize(("held", "judging"), [(100, 4), (5, 1)])
def test_a_stream_without_a_length(held: int, judging: int) -> None:
    probe = probe_of(DataLoader(Stream(2 * held), batch_size=2))
    chosen, others = probe.halves()
    assert probe.choosing == 4
    assert [int(x[0]) for x in [*chosen, *others]] == [2 * k for k in range(4 + judging)]


@pytest.mark.parametrize("kind", ["pair", "mapping", "the object itself"])
@pytest.mark.parametrize(("different", "left"), [(8, 4), (6, 2), (2, 0)])
def test_batches_that_choose_estimate_nothing(
    kind: str, different: int, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A callable that begins again: what it repeats would flatter the weights that were chosen by it."""
    same = [object() for _ in range(different)]

    def batches(number: int) -> Any:
        k = number % different
        values = torch.full((3,), float(k))
        alike = torch.ones(3)  # a mask, say: by their first tensor all batches are one
        made = {"pair": (alike, [values, "a", k]), "mapping": {"mask": alike, "x": values}}
        return {**made, "the object itself": same[k]}[kind]

    probe = probe_of(batches)
    chosen, others = probe.halves()
    assert (len(chosen), len(others)) == (4, left)
    words = f"{4 - left} of 4 batches by which chosen weights are to be estimated are among those that choose"
    assert (words in caplog.text) == (left < 4)
    assert len(caplog.records) == (left < 4)
    assert probe.halves() == (chosen, others)
    assert len(caplog.records) == (left < 4), "warned once"


def test_nothing_is_no_batch_that_repeats(caplog: pytest.LogCaptureFixture) -> None:
    """A loss that draws for itself, or knows no samples."""
    assert probe_of(lambda _: None).halves() == ([None] * 4, [None] * 4)
    assert not caplog.records


def test_what_ends_early_chooses_by_as_many_batches_as_other_ranks_do() -> None:
    probe = probe_of(DataLoader(Stream(3), batch_size=None))
    assert probe.halves() == ([0, 1, 2, 0], [])
    assert probe.choosing == 4


def test_nothing_to_choose_by_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"Probe.halves: batches must hold one at least, got an empty list"):
        probe_of([]).halves()


@pytest.mark.parametrize("make", [lambda: lambda k: k, shuffled_loader])
def test_they_are_the_same_at_any_time_and_leave_the_draws_alone(make: Callable[[], Any]) -> None:
    torch.manual_seed(3)
    first, later = probe_of(make()), probe_of(make())
    state = torch.get_rng_state()
    halves = first.halves()
    assert torch.equal(torch.get_rng_state(), state)
    drawn = [later.draw() for _ in range(3)]
    assert str(later.halves()) == str(halves)
    assert first.halves() is first.halves()
    assert str([first.draw() for _ in range(3)]) == str(drawn)
    assert first.state_dict() == later.state_dict()


def test_their_size_is_known_afterwards() -> None:
    probe = probe_of(lambda k: torch.full((6, 2), float(k)))
    probe.halves()
    assert probe.describe() == "4 batches of 6 samples a sync"


# ---------------------------------------------------------------------- what is the same at any time


def test_kept_batches_meet_the_same_random_state_at_any_time() -> None:
    probe = Probe(lambda _: torch.rand(()), lambda k: k, model=nn.Linear(1, 1), per_sync=2)
    kept, _ = probe.halves()
    named, unnamed = probe.losses(kept, of="choice"), probe.losses(kept)
    probe.draw()
    torch.randn(5)
    assert probe.losses(kept, of="choice") == named
    assert probe.losses(kept) != unnamed
    assert not set(named) & set(probe.losses(kept, of="estimate"))
    assert probe.losses(kept, refresh=False, of="choice") == named


# ---------------------------------------------------------------------- as deployed


def batch(k: int) -> Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(k)) + 3


class Stateful(nn.Module):
    """Counts its calls, whatever its mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.get_buffer("count").add_(1)
        return x


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


def test_whether_running_statistics_are_deployed() -> None:
    model = normed()
    probe = Probe(nothing, batch, model=model)
    assert probe.has_norms
    model[1].eval()
    assert not probe.has_norms
    assert not probe_of([1]).has_norms
    assert not Probe(nothing, batch, model=nn.BatchNorm1d(4, track_running_stats=False)).has_norms


@pytest.mark.parametrize("refresh", [False, True])
def test_deployed_losses_are_those_in_evaluation_mode(refresh: bool) -> None:
    model = normed()
    probe = Probe(lambda x: model(x).square().mean(), batch, model=model)
    batches, _ = probe.halves()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = probe.losses(batches, refresh=refresh, of="choice")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(module.training for module in model.modules())
    if refresh:
        probe.refresh_norms_(batches)
    model.eval()
    with torch.no_grad():
        assert found == [model(x).square().mean().item() for x in batches]


@pytest.mark.parametrize("fails_at", [0, 5])
def test_a_loss_that_raises_leaves_statistics_and_flags_alone(fails_at: int) -> None:
    model, calls = normed(), iter(range(99))

    def loss_fn(x: Tensor) -> Tensor:
        loss: Tensor = model(x).mean()
        if next(calls) == fails_at:  # while statistics are made, or while losses are
            raise KeyError("the user's")
        return loss

    probe = Probe(loss_fn, batch, model=model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(KeyError, match="the user's"):
        probe.losses(probe.halves()[0], refresh=True, of="choice")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(module.training for module in model.modules())


def test_deployed_losses_leave_the_random_state_alone_and_repeat() -> None:
    model = normed()
    probe = Probe(lambda x: model(x + torch.randn_like(x)).square().mean(), batch, model=model)
    batches, _ = probe.halves()
    state = torch.get_rng_state()
    found = probe.losses(batches, refresh=True, of="choice")
    probe.draw()
    assert probe.losses(batches, refresh=True, of="choice") == found
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(math.isfinite, found))


def test_buffers_that_are_no_statistics_are_restored() -> None:
    model = nn.Sequential(Stateful(), nn.BatchNorm1d(4))
    probe = Probe(lambda x: model(x).mean(), batch, model=model)
    probe.losses(probe.halves()[0], refresh=True, of="choice")
    assert model[0].count == 0
