"""Batches set aside for a probe: never trained on, whatever loader they come from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from hdet.probes.probe import Probe
from tests.unit.probes.batches import nothing, numbered, numbers, shuffled_loader


@pytest.mark.parametrize(("shuffle", "drop_last"), [(False, True), (True, False)])
def test_no_sample_is_both_probed_and_trained_on(shuffle: bool, drop_last: bool) -> None:
    loader = DataLoader(numbered(203), batch_size=8, shuffle=shuffle, drop_last=drop_last)
    model = nn.Linear(1, 1)
    state = torch.get_rng_state()
    probe, rest = Probe.set_aside(nothing, loader, model=model)
    assert torch.equal(torch.get_rng_state(), state)
    assert probe.describe() == "4 batches of 8 samples a sync; 64 set aside"
    assert probe.draw()[0][0].shape == (8,)
    probed = set(numbers([b for _ in range(6) for b in probe.draw()]))
    passes = [numbers(list(rest)) for _ in range(2)]
    assert len(probed) == 64
    assert all(not probed & set(trained) for trained in passes)
    if not drop_last:
        assert all(probed | set(trained) == set(range(203)) for trained in passes)
    assert (passes[0] == sorted(passes[0])) is not shuffle
    assert max(probed) > 150  # chosen from all of the dataset, not from its head


def test_the_choice_follows_from_the_seed() -> None:
    def chosen(seed: int) -> set[int]:
        probe, _ = Probe.set_aside(
            nothing, shuffled_loader(), model=nn.Linear(1, 1), batches=3, per_sync=3, seed=seed
        )
        return set(numbers(probe.draw()))

    torch.manual_seed(1)
    first = chosen(0)
    torch.manual_seed(2)
    assert chosen(0) == first
    assert chosen(1) != first


def collate(items: list[Any]) -> list[Tensor]:
    return [torch.stack([item[0] for item in items])]


def begin_worker(_: int) -> None: ...


def test_the_settings_of_the_loader_are_carried_over() -> None:
    generator = torch.Generator()
    settings: dict[str, Any] = {
        "batch_size": 2,
        "num_workers": 1,
        "collate_fn": collate,
        "drop_last": True,
        "timeout": 60,
        "worker_init_fn": begin_worker,
        "generator": generator,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "in_order": False,
    }
    sampler = RandomSampler(numbered(40), replacement=True, num_samples=11, generator=generator)
    loader = DataLoader(numbered(40), sampler=sampler, **settings)
    state = generator.get_state()
    _, rest = Probe.set_aside(nothing, loader, model=nn.Linear(1, 1), batches=2, per_sync=1)
    assert isinstance(rest, DataLoader)
    assert {name: getattr(rest, name) for name in settings} == settings
    assert isinstance(rest.sampler, RandomSampler)
    assert rest.sampler.generator is generator
    assert torch.equal(generator.get_state(), state)
    assert (rest.sampler.replacement, rest.sampler.num_samples) == (True, 11)
    assert len(rest) == 5
    in_order = DataLoader(numbered(40), batch_size=2)
    _, rest = Probe.set_aside(nothing, in_order, model=nn.Linear(1, 1))
    assert isinstance(rest, DataLoader)
    assert isinstance(rest.sampler, SequentialSampler)


def test_without_automatic_batching() -> None:
    loader = DataLoader(TensorDataset(torch.arange(40).reshape(20, 2)), batch_size=None)
    probe, rest = Probe.set_aside(nothing, loader, model=nn.Linear(1, 1), batches=4)
    probed = set(numbers(probe.draw()))
    assert len(probed) == 8
    assert set(numbers(list(rest))) == set(range(40)) - probed


def test_every_rank_keeps_a_part_of_its_own() -> None:
    data = numbered(200)
    probed: list[set[int]] = []
    trained: list[list[list[int]]] = []
    for rank in range(4):
        sampler = DistributedSampler(data, num_replicas=4, rank=rank, seed=5)
        loader = DataLoader(data, batch_size=5, sampler=sampler)
        probe, rest = Probe.set_aside(nothing, loader, model=nn.Linear(1, 1), batches=3, per_sync=3)
        probed.append(set(numbers(probe.draw())))
        epochs = []
        for epoch in range(2):
            sampler.set_epoch(epoch)  # the user's loop holds the old sampler
            epochs.append(numbers(list(rest)))
        rest.sampler.set_epoch(0)  # type: ignore[attr-defined]
        assert numbers(list(rest)) == epochs[0]
        trained.append(epochs)
    assert [len(part) for part in probed] == [15] * 4
    assert len(set.union(*probed)) == 60
    for epoch in range(2):
        seen = [n for rank in range(4) for n in trained[rank][epoch]]
        assert sorted(seen) == sorted(set(range(200)) - set.union(*probed))
    assert trained[0][0] != trained[0][1]


class Odd(DataLoader[Any]):
    pass


def test_a_loader_that_cannot_be_rebuilt() -> None:
    data: Dataset[Any] = numbered(100)
    for loader, culprit in (
        (DataLoader(data, sampler=SubsetRandomSampler(range(100))), "SubsetRandomSampler"),
        (DataLoader(data, batch_sampler=[[0, 1], [2, 3]]), "list"),
        (
            Odd(data),
            r"Odd; call set_aside before prepare \(Accelerate's\).*prepare what it returns; or split",
        ),
    ):
        culprit += "" if "split" in culprit else "; split the dataset"
        with pytest.raises(TypeError, match=f"Probe.set_aside: loader must.*got {culprit}"):
            Probe.set_aside(nothing, loader, model=nn.Linear(1, 1))


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(20.0))


@pytest.mark.parametrize(
    "make",
    [lambda: [torch.arange(k, k + 2) for k in range(0, 20, 2)], lambda: DataLoader(Stream(), batch_size=2)],
)
def test_the_first_batches_of_any_other_iterable(make: Callable[[], Any]) -> None:
    probe, rest = Probe.set_aside(nothing, make(), model=nn.Linear(1, 1), batches=4, per_sync=2)
    assert probe.describe() == "2 batches of 2 samples a sync; 8 set aside"
    drawn = torch.cat(probe.draw() + probe.draw() + probe.draw())
    assert drawn.tolist() == [*range(8), *range(4)]
    for _ in range(2):
        assert torch.cat(list(rest)).tolist() == list(range(8, 20))


def test_a_list_still_has_a_length() -> None:
    _, rest = Probe.set_aside(nothing, list(range(20)), model=nn.Linear(1, 1))
    assert len(rest) == 12  # type: ignore[arg-type]


def test_an_endless_iterator_goes_on_behind_what_was_kept() -> None:
    def endless() -> Iterator[int]:
        k = 0
        while True:
            yield k
            k += 1

    probe, rest = Probe.set_aside(nothing, endless(), model=nn.Linear(1, 1), batches=4)
    assert probe.draw() == [0, 1, 2, 3]
    assert [k for k, _ in zip(rest, range(6), strict=False)][:6] == [4, 5, 6, 7, 8, 9]
    assert next(iter(rest)) > 9  # a loop that was left goes on, it does not begin again


def test_an_iterable_that_shuffles_is_said_to_hand_them_out_again(caplog: pytest.LogCaptureFixture) -> None:
    class Shuffling:
        passes = 0

        def __iter__(self) -> Iterator[Tensor]:
            Shuffling.passes += 1
            return iter(
                torch.randperm(20, generator=torch.Generator().manual_seed(self.passes)).reshape(10, 2)
            )

    _, rest = Probe.set_aside(nothing, Shuffling(), model=nn.Linear(1, 1), batches=4)
    _, steady = Probe.set_aside(
        nothing, list(torch.arange(20).reshape(10, 2)), model=nn.Linear(1, 1), batches=4
    )
    with caplog.at_level(logging.WARNING, logger="hdet"):
        list(steady)
        assert not caplog.records
        list(rest)
        list(rest)
    assert len(caplog.records) == 1
    assert "held-out set" in caplog.text


def test_a_loader_too_small() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"set 8 batches aside .* at least 16 of 10 samples, got 15; lower"):
        Probe.set_aside(nothing, DataLoader(numbered(159), batch_size=10), model=model)
    sampler = DistributedSampler(numbered(159), num_replicas=2, rank=0)
    with pytest.raises(ValueError, match="at least 16 of 5 samples on each of 2 ranks, got 15"):
        Probe.set_aside(nothing, DataLoader(numbered(159), batch_size=5, sampler=sampler), model=model)
    with pytest.raises(ValueError, match="at least 16, got 15"):
        Probe.set_aside(nothing, range(15), model=model)
    Probe.set_aside(nothing, DataLoader(numbered(160), batch_size=10), model=model)
    Probe.set_aside(nothing, range(16), model=model)
    with pytest.raises(ValueError, match=r"Probe.set_aside: batches must .* at least per_sync=4, got 3"):
        Probe.set_aside(nothing, range(99), model=model, batches=3)
