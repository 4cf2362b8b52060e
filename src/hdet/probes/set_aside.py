"""Taking batches out of a training loader, for good: what :meth:`hdet.Probe.set_aside` rests on.

Samples are chosen by number where the dataset has numbers, and the loader is rebuilt over the others with all
its settings; of any other iterable the first batches are kept and skipped.
"""

from __future__ import annotations

import logging
import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

__all__ = [
    "announced_size",
    "count_samples",
    "fingerprint",
    "first_tensor",
    "is_map_style",
    "split_iterable",
    "split_loader",
]

logger = logging.getLogger("hdet")

_SETTINGS = (
    "batch_size",
    "collate_fn",
    "drop_last",
    "generator",
    "in_order",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
)


def is_map_style(loader: object) -> TypeGuard[DataLoader[Any]]:
    """Whether its samples have numbers."""
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
    others = Subset(loader.dataset, _AllBut(total, chosen))
    return list(aside), DataLoader(others, sampler=_sampler_over(others, sampler), **settings)


#: Frameworks hand back loaders of a kind of their own.
_PREPARED = (
    "call set_aside before prepare (Accelerate's) or prepare_data_loader (Ray's), and prepare what it "
    "returns; or "
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
        raise TypeError(
            "Probe.set_aside: loader must be a torch DataLoader with batch_size= and a RandomSampler, "
            f"SequentialSampler or DistributedSampler, got {' with '.join(type(o).__name__ for o in odd)}; "
            f"{'' if type(loader) is DataLoader else _PREPARED}split the dataset yourself and give the "
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
    """In the epoch of the sampler it replaces, on which the user's loop may go on calling ``set_epoch``."""

    def __init__(self, dataset: Dataset[Any], replaced: DistributedSampler[Any]) -> None:
        settings = {
            name: getattr(replaced, name) for name in ("num_replicas", "rank", "shuffle", "seed", "drop_last")
        }
        super().__init__(dataset, **settings)
        self._replaced = replaced

    def __iter__(self) -> Iterator[Any]:
        self.epoch = self._replaced.epoch
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        self._replaced.set_epoch(epoch)
        super().set_epoch(epoch)


class _AllBut(Sequence[int]):
    """The numbers below ``total`` without those left out, in order, never written down.

    >>> list(_AllBut(6, [4, 1, 2]))
    [0, 3, 5]
    """

    def __init__(self, total: int, left_out: Iterable[int]) -> None:
        # The i-th that remains is i plus as many as are left out before it.
        self._jumps = [number - k for k, number in enumerate(sorted(left_out))]
        self._length = total - len(self._jumps)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: Any) -> Any:
        if not 0 <= i < self._length:
            raise IndexError(i)
        return i + bisect_right(self._jumps, i)


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
        self._begun = begun  # of an iterator, which stands behind what was kept
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


# ---------------------------------------------------------------------- what a batch is made of


def first_tensor(batch: object) -> Tensor | None:
    """The first tensor of a nested batch that has a dimension."""
    if isinstance(batch, Tensor):
        return batch if batch.dim() else None
    parts: Iterable[object] = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, (list, tuple)):
        parts = batch
    found = (first_tensor(part) for part in parts)
    return next((tensor for tensor in found if tensor is not None), None)


def count_samples(batch: object) -> int | None:
    """The length of the first tensor; None where there is none."""
    tensor = first_tensor(batch)
    return None if tensor is None else tensor.shape[0]


def announced_size(batches: object) -> int | None:
    """The batch size, as far as it can be known before anything is drawn."""
    if isinstance(batches, Sequence) and batches:
        return count_samples(batches[0])
    size = getattr(batches, "batch_size", None)
    return size if isinstance(size, int) else None


def fingerprint(batch: object) -> tuple[tuple[int, ...], str] | None:
    """Cheap, and different for batches that differ in their first tensor, but for rare coincidences."""
    tensor = first_tensor(batch)
    if tensor is None:
        return None
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    total = real.sum(dtype=torch.float32 if real.device.type == "mps" else torch.float64)
    return tuple(tensor.shape), float(total).hex()  # as text NaN equals NaN


def not_among(batches: Sequence[object], known: Sequence[object]) -> list[Any]:
    """Those that hold something else than each of the ``known``."""
    kept = [(fingerprint(batch), batch) for batch in known]

    def is_known(batch: object) -> bool:
        mark = fingerprint(batch)
        return any(mark == other and _same(batch, before) for other, before in kept)

    return [batch for batch in batches if not is_known(batch)]


def _same(batch: object, other: object) -> bool:
    """Whether two batches hold the same numbers. What nobody can compare is taken to differ, and so is None:
    who is given nothing draws for himself."""
    if batch is other:
        return batch is not None
    if isinstance(batch, Tensor) and isinstance(other, Tensor):
        return batch.shape == other.shape and batch.dtype == other.dtype and torch.equal(batch, other)
    if type(batch) is not type(other):
        return False
    if isinstance(batch, Mapping) and isinstance(other, Mapping):
        return batch.keys() == other.keys() and all(_same(batch[key], other[key]) for key in batch)
    if isinstance(batch, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(batch) == len(other) and all(map(_same, batch, other))
    return isinstance(batch, (int, float, str, bytes)) and batch == other
