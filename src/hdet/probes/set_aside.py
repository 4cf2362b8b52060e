"""Taking batches out of a training loader for good: what :meth:`hdet.Probe.set_aside` does.

Where the dataset has numbered samples, some are chosen and the loader is rebuilt over the others with all its
settings; of any other iterable the first batches are kept, and skipped in every later pass.
"""

from __future__ import annotations

import logging
import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
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

__all__ = ["is_map_style", "split_iterable", "split_loader"]

logger = logging.getLogger("hdet")

_SETTINGS = (
    *("batch_size", "collate_fn", "drop_last", "generator", "in_order", "multiprocessing_context"),
    *("num_workers", "persistent_workers", "pin_memory", "prefetch_factor", "timeout", "worker_init_fn"),
)


def is_map_style(loader: object) -> TypeGuard[DataLoader[Any]]:
    """Whether it is a DataLoader whose samples have numbers."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def split_loader(loader: DataLoader[Any], batches: int, seed: int) -> tuple[list[Any], DataLoader[Any]]:
    """Batches of samples chosen by ``seed``, and the loader over all others."""
    _refuse_custom(loader)
    sampler: Any = loader.sampler
    if isinstance(sampler, DistributedSampler):
        total, ranks, rank = len(sampler.dataset), sampler.num_replicas, sampler.rank  # type: ignore[arg-type]
    else:
        total, ranks, rank = len(sampler.data_source), 1, 0
    size = loader.batch_size or 1
    of = f" of {size:,} samples" + (f" on each of {ranks} ranks" if ranks > 1 else "")
    _check_enough(total // (size * ranks), batches, of)
    chosen = random.Random(seed).sample(range(total), batches * size * ranks)
    settings: dict[str, Any] = {name: getattr(loader, name) for name in _SETTINGS}
    if loader.pin_memory_device:  # deprecated, so not passed on unless it is used
        settings["pin_memory_device"] = loader.pin_memory_device
    once = {"generator": None, "persistent_workers": False}
    aside = DataLoader(Subset(loader.dataset, chosen[rank::ranks]), **{**settings, **once})
    left_out = set(chosen)
    # An array, not a list: 8 bytes for each sample.
    others = Subset(loader.dataset, array("q", (i for i in range(total) if i not in left_out)))
    return list(aside), DataLoader(others, sampler=_sampler_over(others, sampler), **settings)


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


def split_iterable(loader: Iterable[Any], batches: int) -> tuple[list[Any], _Remaining]:
    """The first batches, and the iterable without them."""
    iterator = iter(loader)
    first = list(islice(iterator, 2 * batches))
    _check_enough(len(first), batches, "")
    begun = chain(first[batches:], iterator) if iterator is loader else None
    return first[:batches], _Remaining(loader, first[:batches], begun)


class _Remaining:
    """An iterable without its first batches, in every pass."""

    def __init__(self, loader: Iterable[Any], kept: Sequence[Any], begun: Iterator[Any] | None) -> None:
        self._loader = loader
        self._kept = [fingerprint(batch) for batch in kept]
        self._begun = begun  # of an iterator, which is past the batches that were kept
        self._warned = False

    def __len__(self) -> int:
        return len(self._loader) - len(self._kept)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if self._begun is not None:
            yield from self._begun
            self._begun = None
            return
        iterator = iter(self._loader)
        skipped = [fingerprint(batch) for batch in islice(iterator, len(self._kept))]
        if skipped and skipped != self._kept and not self._warned:
            self._warned = True
            logger.warning(
                "Probe.set_aside: this pass does not begin with the batches that were set aside; if it is "
                "shuffled, they are trained on: give Probe batches of a held-out set"
            )
        yield from iterator


def _check_enough(has: int, batches: int, of: str) -> None:
    if has < 2 * batches:
        raise ValueError(
            f"Probe.set_aside: to set {batches} batches aside the loader must have at least {2 * batches}"
            f"{of}, got {has}; lower batches= and per_sync=, or give Probe batches of a held-out set"
        )
