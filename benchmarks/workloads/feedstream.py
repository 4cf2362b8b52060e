"""A synthetic news feed that never repeats: newsfeed's batches, model and loss, from a law that is known.

Users have interests that turn with time, items have topics, and how often an item is answered follows from
the two. A sample is a pure function of (seed, position): any position is drawn without those before it, by
integers alone, so that it is the same bit for bit in any batch, from any reader and on any device. The
answers are drawn from known chances, so an oracle's loss is known too: :meth:`FeedStream.bayes_loss`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.workloads.base import Batch, Workload, at_scale, generator, in_parts, seeded
from benchmarks.workloads.newsfeed import BUCKETS, HISTORY, NO_ITEM, TASKS, FeedModel, loss

__all__ = [
    "BASE_RATES",
    "BASE_RATE_LOSS",
    "CAVEAT",
    "FeedStream",
    "Reader",
    "bayes_loss",
    "held_out_positions",
    "make",
    "mixed",
    "probe_positions",
    "stream",
    "train_positions",
]

CAVEAT = "The feed is synthetic: items are shown at random, and answers follow a law made up for the test."
#: How often an impression is answered by each of :data:`benchmarks.workloads.newsfeed.TASKS`, over all time.
BASE_RATES = (0.05, 0.15, 0.40)
#: The loss of who knows the base rates and nothing else, Σ H(rate) over the tasks, in nats.
BASE_RATE_LOSS = -sum(rate * math.log(rate) + (1 - rate) * math.log1p(-rate) for rate in BASE_RATES)

# A prime: whatever the batch and the number of ranks, each rank meets every user.
_USERS = 1021
# An interest is a point on each of two circles, which go round once in so many of the user's impressions.
_CIRCLES = 2
_PERIOD = (100, 400)
_ANGLES = 256
# Interests and topics are whole numbers, 127 and 32 for 1: their products and sums are exact in float32, in
# any order, where cosines are not the same in every lane of a processor. A level is 1/64 of a logit, about.
_INTEREST, _TOPIC, _LARGEST = 127, 32, 127
_LEVEL_SHIFT = 6
_MIDDLE = (_INTEREST * _LARGEST * (1 + 2 * _CIRCLES) >> _LEVEL_SHIFT) + 1
# Deviation of an item's logits in what all users like alike and in what hangs on the user's interest, of a
# task's topic from the item's, and a bent of all items to one side, where users answer more than elsewhere.
_COMMON, _OWN, _TASK, _BENT = 0.8, 1.2, 0.5, 1.5
# Chances are in units of 2⁻¹⁶: a sample's 64 random bits are 16 for its item, and 16 for each answer.
_BITS = 16
_CHANCES = 1 << _BITS

# Of every 16 rounds, in each of which all users are shown one item, the last is the probe's.
_ROUNDS = 16
_SEGMENT, _SEGMENTS = 1 << 16, 1 << 20
_HELD_OUT_CYCLE = 2 * _SEGMENT * _SEGMENTS
_PROBE_BATCH = 256
# So many samples are made at once: the cost of a call is spread over many steps.
_CHUNK = 2048


def _signed(number: int) -> int:
    """The same 64 bits as torch writes them, and its wrap-around arithmetic reads them."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


_GOLDEN, *_MULTIPLIERS = map(_signed, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def mixed(counters: Tensor, key: int) -> Tensor:
    """64 random bits for each counter: SplitMix64, whose state is a counter and which needs no other.

    >>> mixed(torch.tensor([1, 2]), key=0)
    tensor([-2152535657050944081,  7960286522194355700])
    """
    z = counters * _GOLDEN + key
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        # torch shifts the sign in: it is masked away.
        z = (z ^ (z >> shift & (1 << 64 - shift) - 1)) * multiplier
    return z ^ (z >> 31 & (1 << 33) - 1)


@dataclass(frozen=True)
class _Law:
    """What does not change: each item's topics, and the chance of an answer at each level of interest."""

    #: Items × tasks × (1 + 2 · circles): what all users like, then what lies in the direction of a circle's.
    topics: Tensor
    #: Tasks × levels, in units of 2⁻¹⁶.
    chances: Tensor
    #: The oracle's loss, over all items and all interests.
    bayes: float


class FeedStream:
    """Impressions without end: sample ``n`` is the ``n // users``-th of user ``n % users``.

    The logit of an answer is bias + (1, interest) · topic. A user's interest is a point on each of two
    circles, which it goes round at a speed of its own; an item has a topic for each task, in part the same
    for all; the bias of a task is such that its mean chance is the one in :data:`BASE_RATES`. All items are
    shown equally often. A history is what the same user was shown and answered before: so the interest can
    be guessed from it, and the better the more of it is recent.

    Args:
        seed: of users, items and answers.
        items: in the catalogue, a power of two up to the rows of the model's table.
        users: who take turns.
        device: where batches are made, and stay.

    >>> feed = FeedStream(seed=0, items=64)
    >>> items, actions, candidate, targets = feed.batch(torch.arange(10**15, 10**15 + 32))
    >>> items.shape, actions.shape, candidate.shape, targets.shape
    (torch.Size([32, 16]), torch.Size([32, 16]), torch.Size([32]), torch.Size([32, 3]))
    """

    def __init__(
        self, seed: int = 0, *, items: int = BUCKETS, users: int = _USERS, device: str = "cpu"
    ) -> None:
        if not 1 <= items <= BUCKETS or items & (items - 1):
            raise ValueError(
                f"items must be a power of two in 1…{BUCKETS}, got {items}: take 32 or {BUCKETS}"
            )
        if users < 1:
            raise ValueError(f"users must be at least 1, got {users}: leave it out for {_USERS}")
        self.seed, self.items, self.users, self.device = seed, items, users, device
        digest = hashlib.blake2b(f"feedstream/{seed}".encode(), digest_size=8).digest()
        self._key = int.from_bytes(digest, "big", signed=True)
        law = _law(seed, items)
        #: The oracle's loss in the mean over all positions; :meth:`bayes_loss` has it for some.
        self.bayes = law.bayes
        self._topics, self._chances = law.topics.to(device), law.chances.to(device)
        self._circle = _circle().to(device)
        draw = generator(seed, "feedstream users")
        shape = (users, _CIRCLES)
        # An angle is 64 bits that wrap around as a circle does: exact at any time, near or far.
        self._angle = torch.randint(-(1 << 63), (1 << 63) - 1, shape, generator=draw).to(device)
        periods = torch.randint(*_PERIOD, shape, generator=draw, dtype=torch.float64)
        turns = torch.randint(0, 2, shape, generator=draw) * 2 - 1
        self._speed = (turns * (2.0**64 / periods).long()).to(device)

    def batch(self, positions: Tensor) -> Batch:
        """History (the latest last) of items and of actions, candidate, targets, as newsfeed's are."""
        return self._drawn(self._checked(positions))

    def probabilities(self, positions: Tensor) -> Tensor:
        """The chances from which the targets at these positions are drawn, a column for each task."""
        now = torch.zeros(1, dtype=torch.long, device=self.device)
        _, chances, _ = self._impressions(self._checked(positions), now)
        return chances[:, 0].double() / _CHANCES

    def bayes_loss(self, positions: Tensor) -> float:
        """The expected loss of an oracle who knows each user's interest: the mean of Σ H(p) over the tasks.

        A model sees the history alone, has to guess the interest from it, and cannot get below this in
        expectation, nor, in general, reach it. On drawn targets the oracle's own loss scatters around it.
        """
        return float(_entropy(self.probabilities(positions)).sum(-1).mean())

    def _checked(self, positions: Tensor) -> Tensor:
        if len(positions) and int(positions.min()) < 0:
            raise ValueError(
                f"positions must be 0 or more, got {int(positions.min())}: the stream begins at 0"
            )
        return positions.to(self.device)

    def _drawn(self, positions: Tensor) -> Batch:
        ago = torch.arange(HISTORY, -1, -1, device=self.device)
        items, chances, bits = self._impressions(positions, ago)
        answers = bits < chances
        actions = 1 + (answers << torch.arange(len(TASKS), device=self.device)).sum(-1)
        missing = positions[:, None] < ago * self.users
        items, actions = items.masked_fill(missing, NO_ITEM), actions.masked_fill(missing, 0)
        return items[:, :-1], actions[:, :-1], items[:, -1], answers[:, -1].float()

    def _impressions(self, positions: Tensor, ago: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each position's user, so many impressions ago: item, chances, and the bits to compare."""
        user, time = positions % self.users, positions // self.users
        bits = mixed(positions[:, None] - ago * self.users, self._key)
        items = 1 + ((bits & _CHANCES - 1) * self.items >> _BITS)
        angles = self._angle[user][:, None] + self._speed[user][:, None] * (time[:, None] - ago)[..., None]
        interest = self._circle[angles >> 56 & _ANGLES - 1].flatten(2)
        chances = _chances_at(self._chances, _levels(self._topics[items - 1], interest[:, :, None]))
        places = torch.arange(1, len(TASKS) + 1, device=self.device) * _BITS
        return items, chances, bits[..., None] >> places & _CHANCES - 1


class Reader(Iterator[Batch]):
    """Batches of one rank: of each ``world · size`` samples in turn, the ``rank``-th ``size`` are its own.

    Ranks that start together share no sample, and all of them leave none out. :attr:`position` is all that a
    checkpoint needs: a reader that starts there goes on with the batch that this one would give next.

    Args:
        feed: the stream.
        size: samples in a batch.
        start: the first sample of rank 0; any will do.
        rank: of this reader.
        world: how many ranks read together.
        part: sample → position in the stream; by default every position is read.

    >>> feed = FeedStream(items=64)
    >>> reader = Reader(feed, 8)
    >>> taken = next(reader)
    >>> resumed = Reader(feed, 8, start=reader.position)
    >>> all(torch.equal(a, b) for a, b in zip(next(reader), next(resumed)))
    True
    """

    def __init__(
        self,
        feed: FeedStream,
        size: int,
        *,
        start: int = 0,
        rank: int = 0,
        world: int = 1,
        part: Callable[[Tensor, int], Tensor] | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}: it is the samples in a batch")
        if world < 1:
            raise ValueError(f"world must be at least 1, got {world}: it counts the ranks that read together")
        if not 0 <= rank < world:
            raise ValueError(f"rank must be in 0…{world - 1} with world={world}, got {rank}: count from 0")
        if start < 0:
            raise ValueError(f"start must be 0 or more, got {start}: pass a reader's position, or nothing")
        self._feed, self._size, self._part = feed, size, part
        self._rank, self._world = rank, world
        self._made: list[Batch] = []
        #: Where the next batches of all ranks begin.
        self.position = start

    def __next__(self) -> Batch:
        if not self._made:
            self._made = self._make()[::-1]
        self.position += self._size * self._world
        return self._made.pop()

    def _make(self) -> list[Batch]:
        count = max(1, _CHUNK // self._size)
        device = self._feed.device
        firsts = self.position + self._size * (self._rank + self._world * torch.arange(count, device=device))
        samples = (firsts[:, None] + torch.arange(self._size, device=device)).flatten()
        positions = samples if self._part is None else self._part(samples, self._feed.users)
        # Not batch(): its check would wait for the device, and there is nothing to find.
        return list(in_parts(self._feed._drawn(positions), self._size))


def train_positions(samples: Tensor, users: int = _USERS) -> Tensor:
    """Where the training samples stand: in the first 15 of every 16 rounds.

    >>> train_positions(torch.tensor([0, 29, 30]), users=2)
    tensor([ 0, 29, 32])
    """
    return samples + samples // ((_ROUNDS - 1) * users) * users


def probe_positions(samples: Tensor, users: int = _USERS) -> Tensor:
    """Where the probe's samples stand: in the last of every 16 rounds, which training leaves out.

    >>> probe_positions(torch.tensor([0, 1, 2]), users=2)
    tensor([30, 31, 62])
    """
    return samples + (samples // users + 1) * (_ROUNDS - 1) * users


def held_out_positions(count: int, users: int = _USERS) -> Tensor:
    """Held out are samples of a time that no run gets to."""
    return torch.arange(count) + _HELD_OUT_CYCLE * _ROUNDS * users


@dataclass(frozen=True)
class _Size:
    steps: int
    batch: int
    width: int
    heads: int
    items: int
    held_out: int


_SIZES = {
    "cpu": _Size(steps=600, batch=32, width=16, heads=2, items=32, held_out=4096),
    "gpu": _Size(steps=3000, batch=256, width=64, heads=4, items=1024, held_out=16384),
}


def stream(scale: str = "cpu", device: str = "cpu") -> FeedStream:
    """The stream that :func:`make` reads at this scale."""
    return FeedStream(items=at_scale(_SIZES, scale).items, device=device)


def bayes_loss(scale: str = "cpu") -> float:
    """The oracle's expected loss on what :func:`make` holds out; see :meth:`FeedStream.bayes_loss`."""
    return stream(scale).bayes_loss(held_out_positions(at_scale(_SIZES, scale).held_out))


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The task; ``folder`` is not read.

    There is one stream, and a run's seed says where in it the run begins: two seeds that differ by less than
    2²⁰ share no sample for their first billion, so they also serve as the seeds of two ranks.
    """
    del folder
    size, feed = at_scale(_SIZES, scale), stream(scale, device)

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            return FeedModel(size.width, size.heads).to(device)

    def first_round(seed: int) -> int:
        # Not at 0: there, users have no history yet.
        return (1 + seed % _SEGMENTS) * _SEGMENT * feed.users

    return Workload(
        name="newsfeed-stream",
        steps=size.steps,
        build=build,
        loss=loss,
        batches=lambda seed: Reader(
            feed, size.batch, start=first_round(seed) * (_ROUNDS - 1), part=train_positions
        ),
        probe=lambda seed: Reader(feed, _PROBE_BATCH, start=first_round(seed), part=probe_positions),
        held_out=in_parts(feed.batch(held_out_positions(size.held_out)), 512),
        caveat=CAVEAT,
    )


def _circle() -> Tensor:
    """Points at even distances on a circle, in whole numbers."""
    angles = torch.arange(_ANGLES, dtype=torch.float64) * (2 * math.pi / _ANGLES)
    return (torch.stack([angles.cos(), angles.sin()], -1) * _INTEREST).round().float()


def _levels(topics: Tensor, interest: Tensor) -> Tensor:
    """(1, interest) · topic, counted from the lowest there can be. No matmul: a GPU may round in it."""
    score = _INTEREST * topics[..., 0] + (topics[..., 1:] * interest).sum(-1)
    return (score.long() >> _LEVEL_SHIFT) + _MIDDLE


def _chances_at(chances: Tensor, levels: Tensor) -> Tensor:
    """The chance of each task, the last dimension of ``levels``, at its level."""
    return chances[torch.arange(len(TASKS), device=levels.device), levels]


def _entropy(p: Tensor) -> Tensor:
    return -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))


def _law(seed: int, items: int) -> _Law:
    """Topics from the seed, and chances whose mean over all items and interests is the base rate."""
    topics = _topics(seed, items)
    # All angles of the one circle, each with 16 of the other that are others each time: the mean over these
    # pairs is that over all to 1e-5 (tests), for a sixteenth of the work.
    one = torch.arange(_ANGLES).repeat_interleave(16)
    other = (5 * one + (_ANGLES // 16) * torch.arange(len(one))) % _ANGLES
    interests = _circle()[torch.stack([one, other], 1)].flatten(1)
    levels = torch.cat([_levels(some[:, None], interests[None, :, None]) for some in torch.split(topics, 64)])
    count = 2 * _MIDDLE + 1
    shares = torch.stack([task.flatten().bincount(minlength=count) for task in levels.unbind(-1)]).double()
    shares /= shares.sum(1, keepdim=True)
    middles = (torch.arange(count) - _MIDDLE + 0.5) * (1 << _LEVEL_SHIFT)
    logits = middles.double() / (_INTEREST * _TOPIC)
    bias = _biases(shares, logits)[:, None]
    # Neither never nor always: the oracle's loss stays finite.
    chances = (torch.sigmoid(logits + bias) * _CHANCES).round().clamp(1, _CHANCES - 1)
    return _Law(topics, chances.long(), float((shares * _entropy(chances / _CHANCES)).sum()))


def _topics(seed: int, items: int) -> Tensor:
    draw = generator(seed, "feedstream items")
    shared = torch.randn(items, 1, 1 + 2 * _CIRCLES, generator=draw)
    own = torch.randn(items, len(TASKS), 1 + 2 * _CIRCLES, generator=draw)
    topics = (shared + _TASK * own) / math.sqrt(1 + _TASK**2)
    topics *= torch.tensor([_COMMON] + [_OWN] * 2 * _CIRCLES)
    topics[..., 1] += _BENT
    return (_TOPIC * topics).round().clamp(-_LARGEST, _LARGEST)


def _biases(shares: Tensor, logits: Tensor) -> Tensor:
    """Of each task, by bisection: what to add to the logits, which it meets so often, for its base rate."""
    rates = torch.tensor(BASE_RATES, dtype=torch.float64)
    low, high = torch.full_like(rates, -40), torch.full_like(rates, 40)
    for _ in range(60):
        bias = (low + high) / 2
        above = (shares * torch.sigmoid(logits + bias[:, None])).sum(1) > rates
        low, high = torch.where(above, low, bias), torch.where(above, bias, high)
    return (low + high) / 2
