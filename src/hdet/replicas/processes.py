"""Replicas as processes of a ``torch.distributed`` group, one replica per rank; and how long they wait.

They communicate in a group of hdet's own. In the group of DistributedDataParallel, the gradients of a rank
that missed a sync would be summed with the others' weights. And an operation lasts as long as its group's
timeout, even if its caller has given up: its thread keeps the process from ending. So the group's timeout is
the longest wait. All objects in a process that need the same ranks share one group; torch destroys it with
the default group.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from hdet.replicas.averaging import BucketedMean, always, differing_values, floating_and_integer
from hdet.replicas.base import Mean, Replicas

__all__ = ["ProcessReplicas", "agree_among", "meet", "patience"]

logger = logging.getLogger("hdet")

#: Seconds that a rank waits for the others; ten minutes if the environment does not say.
VARIABLE = "HDET_PATIENCE"
#: Once one rank gives up the others soon fail, too: they exchange where they were for so many seconds, and
#: never longer than half the patience.
_EXCHANGE_SECONDS = 2.0

#: By ranks, backend and timeout. Weak: destroying the default group destroys these.
_own: dict[tuple[Any, ...], weakref.ref[Any]] = {}


class ProcessReplicas(Replicas):
    """The ranks of a process group. They communicate in a group of their own, which all of them make.

    Args:
        group: the process group; None for the default group.
        device: where the parameters live; used for messages where the backend cannot send from the CPU.
        ranks: other ranks than the group's, where every rank of the default group makes such a group now.
    """

    def __init__(
        self, group: dist.ProcessGroup | None, device: torch.device, *, ranks: Sequence[int] | None = None
    ) -> None:
        if ranks is None and dist.get_rank(group) < 0:
            raise ValueError(
                f"process_group: this process (global rank {dist.get_rank()}) is not in the group; "
                "construct hdet only on the group's own ranks"
            )
        sends_from_cpu = "gloo" in str(dist.get_backend(group)) or device.type == "cpu"
        self._device = torch.device("cpu") if sends_from_cpu else device
        self._patience = patience()
        self._doing = ""
        group = dist.group.WORLD if group is None else group
        members = dist.get_process_group_ranks(group) if ranks is None else list(ranks)
        if len(members) > 1:
            group = _own_group(group, members, self._device, self._patience, at_once=ranks is not None)
        assert group is not None
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        # Weak, so that a group which its user destroys is gone.
        self._weak_group = weakref.ref(group)

    @property
    def _group(self) -> dist.ProcessGroup:
        group = self._weak_group()
        if group is None:
            raise RuntimeError(
                "hdet: the process group of the replicas was destroyed; construct hdet again after "
                "init_process_group"
            )
        return group

    def about_to(self, doing: str) -> None:
        self._doing = doing

    def gather(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        rows = self.all_gather(torch.tensor(row, dtype=torch.float64, device=self._device))
        return [cast("list[float]", gathered.tolist()) for gathered in rows]

    def start_gather(self, row: Sequence[float | Tensor]) -> Callable[[], list[list[float]]]:
        wait = self._start_all_gather(torch.tensor(row, dtype=torch.float64, device=self._device))
        return lambda: [cast("list[float]", gathered.tolist()) for gathered in wait()]

    def agree(self, caller: str, facts: Mapping[str, str]) -> None:
        agree_among(caller, facts, self.all_gather)

    def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Mean:
        floating, integer = floating_and_integer(buffers)
        mean = BucketedMean(tensors, floating, size=self.size, all_reduce=self.all_reduce)

        def converge(sound: Callable[[], bool] = always) -> tuple[str, ...]:
            return self._maximum_(integer) if mean(sound) and integer else ()

        return converge

    @torch.no_grad()
    def _maximum_(self, tensors: Sequence[Tensor]) -> tuple[str, ...]:
        """Replace integer tensors by their maximum; max(x) + max(−x) = 0 tells whether all were equal."""
        values = torch.cat([t.reshape(-1).to(self._device, torch.int64) for t in tensors])
        both = torch.cat([values, -values])
        self._await(dist.all_reduce(both, dist.ReduceOp.MAX, self._group, async_op=True), both.is_cpu)
        maximum, negative = torch.split(both, values.numel())
        for tensor, new in zip(tensors, torch.split(maximum, [t.numel() for t in tensors]), strict=True):
            if 0 not in tensor.stride():  # an expanded buffer repeats its elements and cannot be written
                tensor.copy_(new.view(tensor.shape))
        return differing_values(int((maximum + negative).count_nonzero()))

    def all_reduce(self, tensor: Tensor) -> Callable[[], None]:
        """Start the in-place sum of a tensor over the replicas; returns a function that waits for it."""
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        return lambda: self._await(work, tensor.is_cpu)

    def sum_of(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over the ranks."""
        total = tensor.to(self._device, copy=True)
        self.all_reduce(total)()
        return total.to(tensor.device)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have one shape, on the host."""
        return self._start_all_gather(tensor)()

    def _start_all_gather(self, tensor: Tensor) -> Callable[[], list[Tensor]]:
        tensor = tensor.to(self._device)
        rows = [torch.empty_like(tensor) for _ in range(self.size)]
        work = dist.all_gather(rows, tensor, self._group, async_op=True)

        def gathered() -> list[Tensor]:
            self._await(work, tensor.is_cpu)
            return [row.cpu() for row in rows]

        return gathered

    def _await(self, work: dist.Work | None, on_cpu: bool) -> None:
        try:
            _wait(work, self._patience if on_cpu else None)
        except RuntimeError as error:
            group, doing = self._group, self._doing or "a sync"
            for key in [key for key, known in _own.items() if known() is group]:
                del _own[key]  # after this failure a new group is needed
            where = _where_they_are(group, self.rank, self.size, doing, self._patience)
            raise RuntimeError(
                f"rank {self.rank} gave up waiting for the other {self.size - 1} at {doing}"
                f"{where and ': '}{where}: a rank has failed, takes different steps, or needs more time than "
                f"the {self._patience.total_seconds():g} s of {VARIABLE} ({error})"
            ) from error


def patience() -> timedelta:
    """The longest wait for another rank: HDET_PATIENCE in seconds, ten minutes by default."""
    text = os.environ.get(VARIABLE, "600")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 1 <= seconds < 1e9:
        raise ValueError(f"{VARIABLE} must be a number of seconds of at least 1, got {text!r}")
    return timedelta(seconds=seconds)


def agree_among(caller: str, facts: Mapping[str, str], all_gather: Callable[[Tensor], list[Tensor]]) -> None:
    """Raise RuntimeError on every rank of ``all_gather``, unless all of them hold the same facts."""
    text = json.dumps(dict(facts)).encode()
    digest = hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).digest()
    # Fixed in length, so that ranks which disagree about everything can still exchange it.
    headers = all_gather(torch.tensor([*digest, len(text)], dtype=torch.int64))
    if all(torch.equal(other, headers[0]) for other in headers):
        return
    longest = max(int(other[-1]) for other in headers)
    padded = torch.tensor(list(text.ljust(longest)), dtype=torch.uint8)
    beliefs = [json.loads(bytes(row.tolist())) for row in all_gather(padded)]
    for key in dict.fromkeys(key for belief in beliefs for key in belief):
        seen: dict[str | None, int] = {}
        for rank, belief in enumerate(beliefs):
            seen.setdefault(belief.get(key), rank)
        if len(seen) > 1:
            sides = "; ".join(f"rank {r} has {'none' if v is None else v}" for v, r in seen.items())
            raise RuntimeError(f"{caller}: the ranks disagree. {key} must be the same on all: {sides}")


def meet(group: Any, timeout: timedelta) -> None:
    """Return once all ranks of a gloo group have reached one another. Before that, one that leaves at once
    (it has nothing more to do, or raises) would cut off another that is still connecting."""
    _wait(dist.all_reduce(torch.zeros(1), group=group, async_op=True), timeout)


def _wait(work: dist.Work | None, timeout: timedelta | None) -> None:
    assert work is not None
    if timeout is not None:
        work.wait(timeout)
    else:  # only orders the device's streams; with a timeout it would hold up the host
        work.wait()


def _own_group(
    like: Any, ranks: list[int], device: torch.device, timeout: timedelta, *, at_once: bool
) -> Any:
    """A group of hdet's own with these ranks and the backend of another group. All of them call it.

    Args:
        like: the group that was given, or the default group.
        ranks: who is in it.
        device: from where its backend can send.
        timeout: of its collectives.
        at_once: all ranks of the default group are making such groups now.
    """
    backend = dist.get_backend(like)
    for key, known in list(_own.items()):
        if not _alive(known()):
            del _own[key]
    key = (*ranks, backend, timeout)
    if key in _own:
        return _own[key]()
    all_ranks = ranks == dist.get_process_group_ranks(dist.group.WORLD)
    if not all_ranks and (obstacle := _obstacle(like, ranks, device, timeout, at_once=at_once)):
        logger.warning("ranks %s use the process group that was given: %s", ranks, obstacle)
        return like
    group = _new_group(None if all_ranks else ranks, backend, timeout)
    _own[key] = weakref.ref(group)
    return group


def _alive(group: Any) -> bool:
    try:
        return group is not None and bool(dist.get_process_group_ranks(group))
    except (KeyError, ValueError, RuntimeError):  # destroyed
        return False


def _obstacle(
    like: Any, ranks: Sequence[int], device: torch.device, timeout: timedelta, *, at_once: bool
) -> str:
    """Why a few ranks cannot make a group without the others; "" if they can."""
    if dist.get_process_group_ranks(like) != ranks:
        return ""  # there is no group to ask in; every rank of a mesh is in as many groups
    # A communicator that is bound to its device is split from that of all ranks, by all of them. This and the
    # next have no public name, torch 2.6 to 2.13.
    if not at_once and getattr(dist.group.WORLD, "bound_device_id", None) is not None:
        return "init_process_group was given device_id, and the other ranks would have to help"
    mine = torch.tensor([len(dist.distributed_c10d._world.pg_names)], device=device)
    every = [torch.empty_like(mine) for _ in ranks]
    _wait(dist.all_gather(every, mine, like, async_op=True), timeout)
    if len({int(count) for count in every}) > 1:  # torch names a group by it
        return "its ranks have made different numbers of groups before"
    return ""


def _new_group(ranks: list[int] | None, backend: str, timeout: timedelta) -> Any:
    began = time.monotonic()
    try:
        # Of a few, only the members take part in making it: no rank waits for one that is not in it.
        group = dist.new_group(
            ranks, backend=backend, timeout=timeout, use_local_synchronization=ranks is not None
        )
        if "gloo" in backend:
            meet(group, timeout)
        return group
    except RuntimeError as error:
        whom, waited = f"ranks {ranks}" if ranks else "all ranks", time.monotonic() - began
        if waited < 0.9 * timeout.total_seconds():  # no rank was late: they do not reach one another
            raise RuntimeError(
                f"hdet: {whom} could not meet in a process group of their own ({error}); one of them has "
                "died, or the network between them failed: look at the first error of the others"
            ) from error
        raise RuntimeError(
            f"hdet gave up waiting for {whom} after {waited:.0f} s: every rank must construct the same "
            f"things in the same order; or give {VARIABLE} more seconds ({error})"
        ) from error


def _where_they_are(group: Any, rank: int, size: int, doing: str, timeout: timedelta) -> str:
    """What the ranks that gave up, too, were doing, and which are silent; "" if that cannot be known.

    Through the store by which the ranks met, in a thread: the rank that keeps it may be the one that hangs.
    """
    known: dict[int, str] = {}
    seconds = min(_EXCHANGE_SECONDS, timeout.total_seconds() / 2)

    def exchange() -> None:
        try:
            # No public name, torch 2.6 to 2.13.
            store = torch.distributed.distributed_c10d._get_default_store()
            key = f"hdet/gave up/{group.group_name}"
            store.set(f"{key}/{rank}", doing)
            known[rank] = doing
            deadline = time.monotonic() + seconds
            while len(known) < size and time.monotonic() < deadline:
                for other in range(size):
                    if other not in known and store.check([f"{key}/{other}"]):
                        known[other] = store.get(f"{key}/{other}").decode()
                time.sleep(0.05)
        except Exception:  # this only adds to an error message
            logger.debug("the ranks' store cannot be reached", exc_info=True)

    asking = threading.Thread(target=exchange, daemon=True)
    asking.start()
    asking.join(1.5 * seconds)
    if rank not in known:
        return ""
    missing = [str(r) for r in range(size) if r not in known]
    seen = [f"rank {r} is at {what}" for r, what in sorted(known.items())]
    if missing:
        seen.append(f"no word from rank{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    return "; ".join(seen)
