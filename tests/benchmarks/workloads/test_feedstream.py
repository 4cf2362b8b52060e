"""The synthetic feed: a sample hangs on seed and position alone, and its law is the one that is stated."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.workloads import Batch, Workload, newsfeed
from benchmarks.workloads.feedstream import (
    BASE_RATE_LOSS,
    BASE_RATES,
    FeedStream,
    Reader,
    held_out_positions,
    make,
    mixed,
    probe_positions,
    stream,
    train_positions,
)

FAR = 2**62


def equal(one: Batch, other: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def joined(batches: list[Batch]) -> Batch:
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


def anywhere(count: int, seed: int = 0) -> Tensor:
    """Positions far from one another: interests at two of them have nothing in common."""
    return torch.randint(0, FAR, (count,), generator=torch.Generator().manual_seed(seed))


def splitmix64(counter: int, key: int) -> int:
    """The published generator, in Python's whole numbers."""
    z = (counter * 0x9E3779B97F4A7C15 + key) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


@pytest.fixture(scope="module")
def feed() -> FeedStream:
    return stream("cpu")


@pytest.fixture(scope="module")
def workload() -> Workload:
    return make("cpu")


def test_the_bits_are_splitmix64() -> None:
    counters = [0, 1, 2, 12345, FAR, 2**63 - 1, -1, -(2**63)]
    for key in (0, 7, -(2**63), 2**63 - 1):
        drawn = mixed(torch.tensor(counters), key).tolist()
        assert [bits % 2**64 for bits in drawn] == [splitmix64(n, key) for n in counters]


# ------------------------------------------------------------------- a function of seed and position


def test_a_sample_does_not_hang_on_its_batch(feed: FeedStream) -> None:
    positions = torch.cat([torch.arange(40), anywhere(60)])
    whole = feed.batch(positions)
    order = torch.randperm(len(positions), generator=torch.Generator().manual_seed(1))
    assert equal(feed.batch(positions[order]), tuple(part[order] for part in whole))
    assert equal(joined([feed.batch(n[None]) for n in positions]), whole)


def test_history_is_what_the_user_did(feed: FeedStream) -> None:
    for start in (20 * feed.users, FAR):
        positions = torch.arange(start, start + 50)
        items, actions, _, _ = feed.batch(positions)
        for ago in (1, 2, newsfeed.HISTORY):
            _, _, shown, targets = feed.batch(positions - ago * feed.users)
            assert torch.equal(items[:, -ago], shown)
            assert torch.equal(actions[:, -ago], 1 + (targets.long() * torch.tensor([1, 2, 4])).sum(1))


def test_ranks_get_disjoint_samples_and_leave_none_out(feed: FeedStream) -> None:
    read: list[Tensor] = []

    def noted(samples: Tensor, users: int) -> Tensor:
        read.append(samples)
        return train_positions(samples, users)

    ranks = [Reader(feed, 8, start=77, rank=rank, world=3, part=noted) for rank in range(3)]
    taken = [list(islice(reader, 300)) for reader in ranks]
    samples = torch.cat(read)
    assert len(samples.unique()) == len(samples)
    together = Reader(feed, 24, start=77, part=train_positions)
    for turn in zip(*taken, strict=True):
        assert equal(joined(list(turn)), next(together))


def test_a_resumed_reader_continues(feed: FeedStream) -> None:
    for before in (0, 1, 63, 64, 65):
        unbroken = Reader(feed, 32, start=5, rank=1, world=2, part=probe_positions)
        for _ in islice(unbroken, before):
            pass
        resumed = Reader(feed, 32, start=unbroken.position, rank=1, world=2, part=probe_positions)
        for _ in range(3):
            assert equal(next(resumed), next(unbroken))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_draws_the_same_samples() -> None:
    positions = anywhere(100_000)
    made = stream("gpu", "cuda").batch(positions)
    assert equal(tuple(part.cpu() for part in made), stream("gpu").batch(positions))


# ----------------------------------------------------------------------------------------- the law


def test_base_rates_and_the_bayes_loss_are_as_stated() -> None:
    feed, positions = stream("cpu"), anywhere(60_000)
    targets, chances = feed.batch(positions)[3].double(), feed.probabilities(positions)
    rates = torch.tensor(BASE_RATES).double()
    errors = (rates * (1 - rates) / len(positions)).sqrt()
    assert ((targets.mean(0) - rates).abs() < 4 * errors).all()
    assert float(F.binary_cross_entropy(rates, rates, reduction="sum")) == pytest.approx(BASE_RATE_LOSS)

    losses = F.binary_cross_entropy(chances, targets, reduction="none").sum(1)
    stated = feed.bayes_loss(positions)
    assert float(losses.mean()) == pytest.approx(stated, abs=4 * float(losses.std()) / len(losses) ** 0.5)
    entropies = F.binary_cross_entropy(chances, chances, reduction="none").sum(1)
    assert stated == pytest.approx(float(entropies.mean()))
    assert stated == pytest.approx(feed.bayes, abs=4 * float(entropies.std()) / len(entropies) ** 0.5)
    # A chance is what it says it is: among samples of like chance, so many are answered.
    for low in (0.0, 0.1, 0.3, 0.6):
        within = (chances >= low) & (chances < low + 0.1)
        expected, count = float(chances[within].mean()), int(within.sum())
        error = (expected * (1 - expected) / count) ** 0.5
        assert float(targets[within].mean()) == pytest.approx(expected, abs=4 * error)


# ------------------------------------------------------------------------------------ the workload


def test_parts_share_no_position() -> None:
    train = train_positions(torch.arange(15 * 1021 * 4))
    probe = probe_positions(torch.arange(1021 * 4))
    both = torch.cat([train, probe])
    assert torch.equal(both.sort().values, torch.arange(16 * 1021 * 4)), "the two fill the stream, each once"


def test_runs_begin_apart_and_never_reach_what_is_held_out(workload: Workload) -> None:
    held_out = int(held_out_positions(1)[0])
    a_billion = torch.tensor([10**9])
    starts, ends = [], []
    for seed in (-1, 0, 1, 2, 2**20 - 2):
        reader, probe = workload.batches(seed), workload.probe(seed)
        assert isinstance(reader, Reader)
        assert isinstance(probe, Reader)
        starts.append(int(train_positions(torch.tensor([reader.position]))))
        ends.append(int(train_positions(reader.position + a_billion)))
        first_probe = int(probe_positions(torch.tensor([probe.position])))
        assert 0 < first_probe - starts[-1] < 16 * 1021, "a run's probe is of the run's time"
    for one in range(len(starts)):
        assert all(ends[one] <= start or start <= starts[one] for start in starts)
    assert max(ends) < held_out / 1.5


# ------------------------------------------------------------------------------------------ errors


def test_errors_name_the_rule_the_value_and_the_mend(feed: FeedStream) -> None:
    with pytest.raises(ValueError, match=r"rank must be in 0…1 with world=2, got 2: count from 0"):
        Reader(feed, 8, rank=2, world=2)
    with pytest.raises(ValueError, match="world must be at least 1, got 0"):
        Reader(feed, 8, world=0)
    with pytest.raises(ValueError, match="start must be 0 or more, got -1: pass a reader's position"):
        Reader(feed, 8, start=-1)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        Reader(feed, 0)
    for ask in (feed.batch, feed.probabilities, feed.bayes_loss):
        with pytest.raises(ValueError, match="positions must be 0 or more, got -3: the stream begins at 0"):
            ask(torch.tensor([4, -3]))
    with pytest.raises(ValueError, match=r"items must be a power of two in 1…1024, got 48: take 32 or 1024"):
        FeedStream(items=48)
    with pytest.raises(ValueError, match="users must be at least 1, got 0"):
        FeedStream(users=0)
    with pytest.raises(ValueError, match="scale must be one of 'cpu', 'gpu', got 'tpu'"):
        make("tpu")
