"""Taking batches out of a training loader for good: what :meth:`hdet.Probe.set_aside` does.

Where the dataset has numbered samples, some are chosen and the loader is rebuilt over the others with all its
settings; of any other iterable the first batches are kept, and skipped in every later pass. What was taken
once stays taken: splitting what is left gives the same two parts.
"""

from __future__ import annotations

import logging
import random
from array import array
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from itertools import chain, islice
from typing import Any, TypeGuard

from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

from hdet.probes.batch_contents import fingerprint

__all__ = [
    "batches_to_keep",
    "is_map_style",
    "samples_to_keep",
    "split_iterable",
    "split_loader",
    "warn_of_share",
]

logger = logging.getLogger("hdet")

#: A tenth is taken at most; but so many samples or batches, half of which decide, or a quarter where that is
#: less. By 16 samples that decide runs end a little worse than by many, by 4 a good deal (docs/probe.md).
_SHARE, _LEAST_SAMPLES, _LEAST_BATCHES, _LARGEST_SHARE = 10, 32, 4, 4

_SETTINGS = (
    *("batch_size", "collate_fn", "drop_last", "generator", "in_order", "multiprocessing_context"),
    *("num_workers", "persistent_workers", "pin_memory", "prefetch_factor", "timeout", "worker_init_fn"),
)


def is_map_style(loader: object) -> TypeGuard[DataLoader[Any]]:
    """Whether it is a DataLoader whose samples have numbers."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def split_loader(loader: DataLoader[Any], batches: int, seed: int) -> tuple[list[Any], DataLoader[Any]]:
    """Batches of samples chosen by ``seed``, and the loader over all others; of a loader that was split
    before, what was chosen then."""
    before = loader.dataset if isinstance(loader.dataset, _Others) else None
    if before is None:
        _refuse_custom(loader)
    sampler: Any = loader.sampler
    distributed = isinstance(sampler, DistributedSampler)
    ranks, rank = (sampler.num_replicas, sampler.rank) if distributed else (1, 0)
    if before is not None:
        return _batches_of(loader, before.dataset, before.aside[rank::ranks], before.size), loader
    total = len(sampler.dataset) if distributed else len(sampler.data_source)
    if loader.batch_size is None:  # the dataset's items are batches
        count, size = batches_to_keep(total // ranks, batches), None
        taken = count * ranks
    else:
        count, size = samples_to_keep(total, batches, loader.batch_size, ranks)
        taken = count * size * ranks
    if rank == 0:
        warn_of_share("Probe.set_aside", taken, total, "samples" if size else "batches")
    chosen = random.Random(seed).sample(range(total), taken)
    left_out = set(chosen)
    # An array, not a list: 8 bytes for each sample.
    others = _Others(loader.dataset, array("q", (i for i in range(total) if i not in left_out)))
    others.aside, others.size = chosen, size
    rest = DataLoader(others, sampler=_sampler_over(others, sampler), **_settings_of(loader))
    return _batches_of(loader, loader.dataset, chosen[rank::ranks], size), rest


class _Others(Subset[Any]):
    """What is left of a dataset; it remembers what was taken out, so that a loader over it that is split
    again has the same probe and loses nothing more."""

    aside: Sequence[int]
    #: Samples in a batch of the probe; None where the dataset's items are batches.
    size: int | None


def _settings_of(loader: DataLoader[Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {name: getattr(loader, name) for name in _SETTINGS}
    if loader.pin_memory_device:  # deprecated, so not passed on unless it is used
        settings["pin_memory_device"] = loader.pin_memory_device
    return settings


def _batches_of(
    loader: DataLoader[Any], dataset: Dataset[Any], chosen: Sequence[int], size: int | None
) -> list[Any]:
    once = {"generator": None, "persistent_workers": False, "batch_size": size}
    return list(DataLoader(Subset(dataset, chosen), **{**_settings_of(loader), **once}))


def samples_to_keep(total: int, batches: int, size: int, ranks: int = 1) -> tuple[int, int]:
    """How many batches of how many samples each rank takes out of ``total``: those that are asked for, or
    smaller ones, so that all take a tenth at most; but :data:`_LEAST_SAMPLES`, or a quarter if that is less.

    >>> samples_to_keep(2000, 8, 16), samples_to_keep(320, 8, 16), samples_to_keep(64, 8, 16)
    ((8, 16), (8, 4), (8, 2))
    """
    smallest = min(2, size)  # batch norm cannot take one sample
    most = _most(total, _LEAST_SAMPLES, 2 * smallest * ranks, "samples") // ranks
    if batches * size <= most:
        return batches, size
    count = min(batches, most // smallest)
    return count, most // count


def batches_to_keep(total: int, batches: int) -> int:
    """The same of whole batches: a tenth at most, but :data:`_LEAST_BATCHES`, or a quarter.

    >>> batches_to_keep(100, 8), batches_to_keep(50, 8), batches_to_keep(20, 8), batches_to_keep(8, 8)
    (8, 5, 4, 2)
    """
    return min(batches, _most(total, _LEAST_BATCHES, 2, "batches"))


def _most(total: int, least: int, two_batches: int, what: str) -> int:
    """How many may be taken. One batch to choose by and one to estimate by are always taken."""
    if total < 2 * two_batches:
        raise ValueError(
            f"Probe.set_aside: the loader must have at least {2 * two_batches} {what}, twice as many as two "
            f"batches of a probe, got {total}; give Probe batches of a held-out set"
        )
    return max(total // _SHARE, min(least, total // _LARGEST_SHARE), two_batches)


def warn_of_share(caller: str, taken: int, total: int, what: str) -> None:
    """Warn where more than a tenth was taken."""
    if taken * _SHARE > total:
        logger.warning(
            "%s: %d of %d %s (%.0f %%) are set aside for the probe, more than a tenth: fewer say too little; "
            "to train on all of them, give the probe held-out data",
            *(caller, taken, total, what, 100 * taken / total),
        )


def _refuse_custom(loader: DataLoader[Any]) -> None:
    """A loader with parts that are not torch's own cannot be rebuilt over fewer samples from outside."""
    odd: list[object] = []
    if type(loader) is not DataLoader:
        odd.append(loader)
    if loader.batch_size is None and loader.batch_sampler is not None:
        odd.append(loader.batch_sampler)
    if type(loader.sampler) not in (RandomSampler, SequentialSampler, DistributedSampler):
        odd.append(loader.sampler)
    if odd:
        prepared = (
            "call set_aside before prepare (Accelerate's) or prepare_data_loader (Ray's), and prepare what "
            "it returns; or "
        )
        raise TypeError(
            "Probe.set_aside: loader must be a torch DataLoader with batch_size= and a RandomSampler, "
            f"SequentialSampler or DistributedSampler, got {' with '.join(type(o).__name__ for o in odd)}; "
            f"{'' if type(loader) is DataLoader else prepared}split the dataset yourself and give the "
            "held-out part to Probe(loss_fn, batches, model=model)"
        )


def _sampler_over(dataset: Dataset[Any], sampler: Any) -> Any:
    if isinstance(sampler, DistributedSampler):
        return _SameEpochs(dataset, sampler)
    if isinstance(sampler, RandomSampler):
        asked = sampler.num_samples if sampler.num_samples != len(sampler.data_source) else None
        return RandomSampler(dataset, sampler.replacement, asked, sampler.generator)  # type: ignore[arg-type]
    return SequentialSampler(dataset)  # type: ignore[arg-type]


class _SameEpochs(DistributedSampler[Any]):
    """In the epoch of the sampler it replaces, on which the user's loop may still call ``set_epoch``."""

    def __init__(self, dataset: Dataset[Any], replaced: DistributedSampler[Any]) -> None:
        kept = ("num_replicas", "rank", "shuffle", "seed", "drop_last")
        super().__init__(dataset, **{name: getattr(replaced, name) for name in kept})
        self._replaced = replaced

    def __iter__(self) -> Iterator[Any]:
        self.epoch = self._replaced.epoch
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        self._replaced.set_epoch(epoch)
        super().set_epoch(epoch)


def split_iterable(loader: Iterable[Any], batches: int) -> tuple[list[Any], Remaining]:
    """The first batches, and the iterable without them; of one that was split before, the same."""
    if isinstance(loader, Remaining):
        return loader.kept, loader
    iterator = iter(loader)
    first = list(islice(iterator, 2 * batches))
    total = len(first) if len(first) < 2 * batches else _length_of(loader)
    count = batches if total is None else batches_to_keep(total, batches)
    if total is not None:
        warn_of_share("Probe.set_aside", count, total, "batches")
    begun = chain(first[count:], iterator) if iterator is loader else None
    return first[:count], Remaining(loader, first[:count], begun, counted=total is not None)


def _length_of(loader: object) -> int | None:
    """How many batches there are; None of a stream."""
    if isinstance(loader, Sized):
        with suppress(TypeError):  # a DataLoader over a stream has a length that it cannot tell
            return len(loader)
    return None


class Remaining:
    """An iterable without its first batches, in every pass."""

    def __init__(
        self, loader: Iterable[Any], kept: list[Any], begun: Iterator[Any] | None, *, counted: bool
    ) -> None:
        self._loader = loader
        #: The batches that are left out.
        self.kept = kept
        self._marks = [fingerprint(batch) for batch in kept]
        self._begun = begun  # of an iterator, which is past the batches that were kept
        self._warned = False
        self._counted = counted  # whether it is known how many batches there are

    def __len__(self) -> int:
        return len(self._loader) - len(self.kept)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if self._begun is not None:
            yield from self._count(self._begun)
            self._begun = None
            return
        iterator = iter(self._loader)
        skipped = [fingerprint(batch) for batch in islice(iterator, len(self.kept))]
        if skipped and skipped != self._marks and not self._warned:
            self._warned = True
            logger.warning(
                "Probe.set_aside: this pass does not begin with the batches that were set aside; if it is "
                "shuffled, they are trained on: give Probe batches of a held-out set"
            )
        yield from self._count(iterator)

    def _count(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches; the end of the first pass tells how large a share of a stream was kept."""
        total = len(self.kept)
        for batch in batches:
            total += 1
            yield batch
        if not self._counted:
            warn_of_share("Probe.set_aside", len(self.kept), total, "batches")
        self._counted = True
