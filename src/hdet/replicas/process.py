"""Replicas as processes of a ``torch.distributed`` group, one replica per rank."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from hdet.replicas.averaging import BucketedMean, Work
from hdet.replicas.base import Mean, Replicas
from hdet.replicas.integers import maximum_
from hdet.replicas.own_group import VARIABLE, forget, how_long, own_group, who_gave_up

__all__ = ["ProcessReplicas", "agree_among"]


class ProcessReplicas(Replicas):
    """The ranks of a process group. They meet in a group of their own, which every one of them makes here.

    Args:
        group: the process group; None for the default group.
        device: where the parameters live; used for messages where the backend cannot send from the CPU.
        patience: the longest wait for another rank before an error; by default what
            :func:`~hdet.replicas.own_group.how_long` says.
        ranks: who they are, where every rank of the default group now finds its own.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        device: torch.device,
        *,
        patience: timedelta | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        if ranks is None and dist.get_rank(group) < 0:
            raise ValueError(
                f"process_group: this process (global rank {dist.get_rank()}) is not in the group; "
                "construct hdet only on the group's own ranks"
            )
        sends_from_cpu = "gloo" in str(dist.get_backend(group)) or device.type == "cpu"
        self._device = torch.device("cpu") if sends_from_cpu else device
        self._patience = how_long() if patience is None else patience
        alone = dist.get_world_size(group) == 1 if ranks is None else len(ranks) == 1
        met = (dist.group.WORLD if group is None else group) if alone else None
        if met is None:
            met = own_group(group, self._device, self._patience, ranks)
        # Weak, so that a group which its user destroys is gone.
        plain = type(met) is dist.ProcessGroup
        self._meets: Callable[[], dist.ProcessGroup | None] = weakref.ref(met) if plain else lambda: met
        self._doing = ""

    @property
    def _group(self) -> dist.ProcessGroup:
        group = self._meets()
        if group is None:
            raise RuntimeError(
                "hdet: the process group in which the ranks met is destroyed; after init_process_group "
                "construct hdet anew"
            )
        return group

    # Asked for at every sync, never kept: a group that others carry may change its members in between.
    @property
    def rank(self) -> int:  # type: ignore[override]
        """Of this process within the group."""
        return dist.get_rank(self._group)

    @property
    def size(self) -> int:  # type: ignore[override]
        """How many processes the group has now."""
        return dist.get_world_size(self._group)

    def about_to(self, doing: str) -> None:
        self._doing = doing

    def gather(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        rows = self.all_gather(torch.tensor(row, dtype=torch.float64, device=self._device))
        return [cast("list[float]", gathered.tolist()) for gathered in rows]

    def agree(self, caller: str, facts: Mapping[str, str]) -> None:
        agree_among(caller, facts, self.all_gather)

    def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Mean:
        integer = [b for b in buffers if not (b.is_floating_point() or b.is_complex())]
        floating = [b for b in buffers if b.is_floating_point() or b.is_complex()]
        mean = BucketedMean(tensors, size=self._count, all_reduce=self.all_reduce)
        # Buffers are often constants (a mask's least float, a table of angles): in float64 equal ones stay
        # as they are, bit for bit.
        exact = torch.float32 if any(b.device.type == "mps" for b in floating) else torch.float64
        mean_of_buffers = BucketedMean(floating, size=self._count, all_reduce=self.all_reduce, wire=exact)

        def converge() -> tuple[str, ...]:
            mean()
            mean_of_buffers()
            return maximum_(integer, self._device, self._maximum) if integer else ()

        return converge

    def _maximum(self, message: Tensor) -> None:
        self._count_sum(message)
        self._await(dist.all_reduce(message, dist.ReduceOp.MAX, self._group, async_op=True), message.is_cpu)

    def _count(self) -> int:
        return self.size

    def all_reduce(self, tensor: Tensor) -> Work:
        """Start the sum of a tensor over the replicas, in place."""
        self._count_sum(tensor)
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        return _Patient(self, cast("dist.Work", work), tensor.is_cpu)

    def sum_of(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over the ranks."""
        total = tensor.to(self._device, copy=True)
        self.all_reduce(total).wait()
        return total.to(tensor.device)

    def scatter_bytes(self, rows: Tensor) -> Tensor:
        """Row r goes to rank r; what comes back has a row from each of them."""
        leaving = rows.to(self._device)
        arrived = torch.empty_like(leaving)
        self.sent_bytes += leaving.numel() * (self.size - 1) // self.size
        self._await(
            dist.all_to_all_single(arrived, leaving, group=self._group, async_op=True), arrived.is_cpu
        )
        return arrived.to(rows.device)

    def gather_bytes(self, row: Tensor) -> Tensor:
        """Everybody's row, in order of rank."""
        leaving = row.to(self._device)
        arrived = torch.empty(self.size, row.numel(), dtype=row.dtype, device=self._device)
        self.sent_bytes += leaving.numel() * (self.size - 1)
        work = dist.all_gather(list(arrived.unbind(0)), leaving, self._group, async_op=True)
        self._await(work, arrived.is_cpu)
        return arrived.to(row.device)

    def _count_sum(self, tensor: Tensor) -> None:
        """A ring sends every value 2·(N−1)/N times: once to be summed, once as the sum."""
        self.sent_bytes += 2 * tensor.numel() * tensor.element_size() * (self.size - 1) // self.size

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have one shape, on the host."""
        tensor = tensor.to(self._device)
        rows = [torch.empty_like(tensor) for _ in range(self.size)]
        self.sent_bytes += tensor.numel() * tensor.element_size() * (self.size - 1)
        self._await(dist.all_gather(rows, tensor, self._group, async_op=True), tensor.is_cpu)
        return [row.cpu() for row in rows]

    def _await(self, work: dist.Work | None, on_cpu: bool) -> None:
        assert work is not None
        try:
            if on_cpu:
                work.wait(self._patience)
            else:  # only orders the device's streams; with a timeout it would hold up the host
                work.wait()
        except RuntimeError as error:
            group, rank, size, doing = self._group, self.rank, self.size, self._doing or "a sync"
            forget(group)
            where = who_gave_up(group, rank, size, doing, self._patience)
            raise RuntimeError(
                f"rank {rank} waited in vain for the other {size - 1} at {doing}{where and ': '}{where}: a "
                "rank has failed, takes different steps, or needs more time than the "
                f"{self._patience.total_seconds():g} s of {VARIABLE} ({error})"
            ) from error


class _Patient:
    """A collective whose ``wait`` ends: with the result, or with an error that says who waited."""

    def __init__(self, replicas: ProcessReplicas, work: dist.Work, on_cpu: bool) -> None:
        self._replicas = replicas
        self._work = work
        self._on_cpu = on_cpu

    def wait(self) -> None:
        self._replicas._await(self._work, self._on_cpu)


def agree_among(
    caller: str,
    facts: Mapping[str, str],
    all_gather: Callable[[Tensor], list[Tensor]],
) -> None:
    """Raise RuntimeError on every rank of ``all_gather``, unless all of them hold the same facts."""
    text = json.dumps(dict(facts)).encode()
    digest = hashlib.sha256(text).digest()
    # Fixed in length, so that ranks which disagree about everything can still exchange it.
    header = [*digest[:24], len(text) >> 16, len(text) & 0xFFFF]
    headers = all_gather(torch.tensor(header, dtype=torch.int64))
    if all(torch.equal(other, headers[0]) for other in headers):
        return
    longest = max(int(other[-2]) << 16 | int(other[-1]) for other in headers)
    padded = torch.tensor(list(text.ljust(longest)), dtype=torch.uint8)
    beliefs = [json.loads(bytes(row.tolist())) for row in all_gather(padded)]
    raise RuntimeError(f"{caller}: the ranks disagree. {_first_difference(beliefs)}")


def _first_difference(beliefs: Sequence[Mapping[str, str]]) -> str:
    for key in dict.fromkeys(key for belief in beliefs for key in belief):
        seen: dict[str | None, list[int]] = {}
        for rank, belief in enumerate(beliefs):
            seen.setdefault(belief.get(key), []).append(rank)
        if len(seen) > 1:
            sides = "; ".join(
                f"rank {ranks[0]} has {'none' if value is None else value}" for value, ranks in seen.items()
            )
            return f"{key} must be the same on all: {sides}"
    return "They name the same settings in another order: check that all run one version of hdet"
