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
from hdet.tuning.discover import criteria_of
from tests.unit.probes.batches import nothing, numbered, numbers, shuffled_loader


@pytest.mark.parametrize(("shuffle", "drop_last"), [(False, True), (True, False)])
def test_no_sample_is_both_probed_and_trained_on(shuffle: bool, drop_last: bool) -> None:
    loader = DataLoader(numbered(703), batch_size=8, shuffle=shuffle, drop_last=drop_last)
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
        assert all(probed | set(trained) == set(range(703)) for trained in passes)
    assert (passes[0] == sorted(passes[0])) is not shuffle
    assert max(probed) > 500  # chosen from all of the dataset, not from its head


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
    data = numbered(600)
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
        assert sorted(seen) == sorted(set(range(600)) - set.union(*probed))
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
        return iter(torch.arange(80.0))


@pytest.mark.parametrize(
    "make",
    [lambda: [torch.arange(k, k + 2) for k in range(0, 80, 2)], lambda: DataLoader(Stream(), batch_size=2)],
)
def test_the_first_batches_of_any_other_iterable(make: Callable[[], Any]) -> None:
    probe, rest = Probe.set_aside(nothing, make(), model=nn.Linear(1, 1), batches=4, per_sync=2)
    assert probe.describe() == "2 batches of 2 samples a sync; 8 set aside"
    drawn = torch.cat(probe.draw() + probe.draw() + probe.draw())
    assert drawn.tolist() == [*range(8), *range(4)]
    for _ in range(2):
        assert torch.cat(list(rest)).tolist() == list(range(8, 80))


def test_a_list_still_has_a_length() -> None:
    _, rest = Probe.set_aside(nothing, list(range(80)), model=nn.Linear(1, 1))
    assert len(rest) == 72  # type: ignore[arg-type]


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
                torch.randperm(80, generator=torch.Generator().manual_seed(self.passes)).reshape(40, 2)
            )

    _, rest = Probe.set_aside(nothing, Shuffling(), model=nn.Linear(1, 1), batches=4)
    _, steady = Probe.set_aside(
        nothing, list(torch.arange(80).reshape(40, 2)), model=nn.Linear(1, 1), batches=4
    )
    with caplog.at_level(logging.WARNING, logger="hdet"):
        list(steady)
        assert not caplog.records
        list(rest)
        list(rest)
    assert len(caplog.records) == 1
    assert "held-out set" in caplog.text


def loader_of(samples: int, size: int, ranks: int = 1, rank: int = 0) -> DataLoader[Any]:
    data = numbered(samples)
    sampler = DistributedSampler(data, num_replicas=ranks, rank=rank) if ranks > 1 else None
    return DataLoader(data, batch_size=size, shuffle=sampler is None, sampler=sampler)


def streams(count: int) -> list[Any]:
    """The same batches, as a list, as a stream, and as an iterator that ends."""

    class Counting(IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            return iter(torch.arange(2.0 * count))

    batches = list(torch.arange(2.0 * count).reshape(count, 2))
    return [batches, DataLoader(Counting(), batch_size=2), iter(batches)]


@pytest.mark.parametrize(
    ("samples", "size", "taken", "batch"),
    [
        (2000, 16, 128, 16),
        (1280, 16, 128, 16),
        (1279, 16, 120, 15),
        (320, 16, 32, 4),
        (10_000, 512, 1000, 125),
    ],
)
def test_a_tenth_of_the_samples_is_the_most(
    samples: int, size: int, taken: int, batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    probe, rest = Probe.set_aside(nothing, loader_of(samples, size), model=nn.Linear(1, 1))
    held = [b for half in probe.halves() for b in half]
    assert [len(b[0]) for b in held] == [batch] * 8
    assert 10 * taken <= samples
    assert sorted(numbers(held) + numbers(list(rest))) == list(range(samples))
    assert len(numbers(held)) == taken
    assert not caplog.records


@pytest.mark.parametrize(
    ("samples", "size", "shape"), [(200, 16, (8, 4)), (64, 16, (8, 2)), (16, 4, (2, 2)), (8, 1, (2, 1))]
)
def test_of_very_few_samples_the_least_is_taken_with_a_warning(
    samples: int, size: int, shape: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    loader = loader_of(samples, size)
    probe, rest = Probe.set_aside(nothing, loader, model=nn.Linear(1, 1))
    held = [b for half in probe.halves() for b in half]
    assert [len(b[0]) for b in held] == [shape[1]] * shape[0]
    assert sorted(numbers(held) + numbers(list(rest))) == list(range(samples))
    taken = shape[0] * shape[1]
    share = f"{taken} of {samples} samples ({100 * taken / samples:.0f} %) are set aside"
    assert [share in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_ranks_share_the_tenth_and_one_warns(ranks: int, caplog: pytest.LogCaptureFixture) -> None:
    probed: list[int] = []
    sizes = set()
    for rank in range(ranks):
        probe, _ = Probe.set_aside(nothing, loader_of(1000, 32, ranks, rank), model=nn.Linear(1, 1))
        held = [b for half in probe.halves() for b in half]
        sizes.add(tuple(len(b[0]) for b in held))
        probed += numbers(held)
    assert len(sizes) == 1, "every rank measures as many batches"
    assert len(set(probed)) == len(probed) <= 100
    assert not caplog.records
    Probe.set_aside(nothing, loader_of(128, 4, ranks, rank=1), model=nn.Linear(1, 1))
    assert not caplog.records, "rank 0 warns for all"
    Probe.set_aside(nothing, loader_of(128, 4, ranks, rank=0), model=nn.Linear(1, 1))
    assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize(("count", "kept"), [(15, 3), (8, 2), (4, 2)])
def test_of_few_batches_four_or_a_quarter(
    kind: int, count: int, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    probe, rest = Probe.set_aside(nothing, streams(count)[kind], model=nn.Linear(1, 1))
    assert len([b for half in probe.halves() for b in half]) == kept
    assert probe.describe().startswith(f"{(kept + 1) // 2} batch"), "what it looks at, not what was asked for"
    assert torch.cat(list(rest)).tolist() == list(range(2 * kept, 2 * count))
    assert [f"{kept} of {count} batches" in record.getMessage() for record in caplog.records] == [True]


def test_the_share_of_a_stream_is_told_after_its_first_pass(caplog: pytest.LogCaptureFixture) -> None:
    _, stream, iterator = (
        Probe.set_aside(nothing, source, model=nn.Linear(1, 1))[1] for source in streams(30)
    )
    assert [record.getMessage().split(":")[1][:10] for record in caplog.records] == [" 4 of 30 b"]  # the list
    for rest in (stream, iterator):
        caplog.clear()
        list(rest)
        list(rest)
        (record,) = caplog.records
        assert "8 of 30 batches (27 %) are set aside" in record.getMessage()
    caplog.clear()
    list(Probe.set_aside(nothing, streams(80)[1], model=nn.Linear(1, 1))[1])
    assert not caplog.records


@pytest.mark.parametrize(
    "make",
    [
        lambda: loader_of(44 * 16, 16),
        lambda: loader_of(64, 16),
        lambda: loader_of(400, 8, ranks=2, rank=1),
        lambda: DataLoader(TensorDataset(torch.arange(200).reshape(100, 2)), batch_size=None),
        lambda: streams(44)[0],
        lambda: streams(44)[1],
    ],
    ids=["loader", "few samples", "ranks", "batches", "list", "stream"],
)
def test_what_was_taken_stays_taken(make: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    """As where a notebook's cell is run again: the second probe must not hold what was trained on."""

    def parts(loader: Any) -> tuple[list[list[float]], list[float], Any]:
        probe, rest = Probe.set_aside(nothing, loader, model=nn.Linear(1, 1))
        held = [torch.as_tensor(b[0] if isinstance(b, list) else b) for half in probe.halves() for b in half]
        left = [torch.as_tensor(b[0] if isinstance(b, list) else b).flatten() for b in rest]
        return [b.flatten().tolist() for b in held], sorted(torch.cat(left).tolist()), rest

    loader = make()
    first, trained, rest = parts(loader)
    warned = len(caplog.records)
    assert parts(rest)[:2] == (first, trained), "the loader that it returned"
    assert parts(parts(rest)[2])[:2] == (first, trained), "and once more"
    assert len(caplog.records) == warned, "nothing to tell again"
    assert parts(loader)[:2] == (first, trained), "the same loader"


def test_a_loader_too_small() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"Probe.set_aside: .* at least 8 samples, .* got 7; give Probe"):
        Probe.set_aside(nothing, loader_of(7, 4), model=model)
    with pytest.raises(ValueError, match=r"at least 16 samples, .* got 15; give Probe"):
        Probe.set_aside(nothing, loader_of(15, 4, ranks=2), model=model)
    with pytest.raises(ValueError, match=r"at least 4 batches, .* got 3; give Probe"):
        Probe.set_aside(nothing, range(3), model=model)
    with pytest.raises(ValueError, match=r"Probe.set_aside: batches must .* at least per_sync=4, got 3"):
        Probe.set_aside(nothing, range(99), model=model, batches=3)


# ---------------------------------------------------------------------- a criterion for a loss function


def pairs(count: int = 1600) -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 3, generator=draw), torch.randint(2, (count,), generator=draw))


def test_a_criterion_stands_for_the_loss_function() -> None:
    model = nn.Linear(3, 2)
    loader = DataLoader(pairs(), batch_size=16, shuffle=True)
    probe, rest = Probe.set_aside(loader, model=model, criterion=nn.functional.cross_entropy)
    by_hand, same = Probe.set_aside(
        lambda batch: nn.functional.cross_entropy(model(batch[0]), batch[1]), loader, model=model
    )
    held = by_hand.halves()[0]
    assert probe.losses(held, of="x") == by_hand.losses(held, of="x")
    assert len(rest) == len(same) == 92  # type: ignore[arg-type]
    named, _ = Probe.set_aside(loader=loader, model=model, criterion=nn.functional.cross_entropy)  # type: ignore[call-overload]
    assert named.losses(held, of="x") == probe.losses(held, of="x")


def test_a_batch_goes_to_the_device_of_the_model() -> None:
    model = nn.Linear(3, 2, device="meta")
    seen: list[Any] = []

    def criterion(outputs: Tensor, targets: Tensor) -> float:
        seen.append((outputs.device.type, targets.device.type))
        return 0.0

    probe, _ = Probe.set_aside(DataLoader(pairs(), batch_size=16), model=model, criterion=criterion)  # type: ignore[arg-type]
    probe.losses(probe.draw())
    assert seen == [("meta", "meta")] * 4


def test_the_criterion_is_found_by_auto_tune() -> None:
    model, criterion = nn.Linear(3, 2), nn.CrossEntropyLoss(label_smoothing=0.1)
    probe, _ = Probe.set_aside(DataLoader(pairs(), batch_size=16), model=model, criterion=criterion)
    assert criteria_of(model, probe.loss_fn) == [criterion]


def test_batches_that_are_no_pairs_and_calls_that_are_neither_form() -> None:
    model, entropy = nn.Linear(3, 2), nn.functional.cross_entropy
    triples = DataLoader(TensorDataset(*[torch.zeros(200)] * 3), batch_size=2)
    with pytest.raises(TypeError, match=r"a pair of inputs and targets, got a list of 3; give a function"):
        Probe.set_aside(triples, model=model, criterion=entropy)
    with pytest.raises(TypeError, match=r"inputs and targets, got a dict; give a function"):
        Probe.set_aside([{"x": 1}] * 100, model=model, criterion=entropy)
    loader = DataLoader(pairs(), batch_size=16)
    for given, named in (
        ((loader,), {}),
        ((nothing, loader), {"criterion": entropy}),
        ((), {"criterion": entropy}),
        ((loader,), {"criterion": 3}),
    ):
        with pytest.raises(TypeError, match=r"Probe.set_aside: give either a loss function and a loader"):
            Probe.set_aside(*given, model=model, **named)
