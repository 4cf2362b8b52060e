"""A process group of hdet's own: its collectives pair with nobody else's, and end when patience does.

In a group that DistributedDataParallel uses as well, the gradient of a rank that forgot a sync would meet the
others' weights. And an operation lasts as long as its group's timeout, whoever has given up on it: the thread
that carries it out keeps a process from ending. So the group's timeout is the patience.

One group serves all doors of a process that ask for the same ranks. torch destroys it with the default group.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["VARIABLE", "forget", "how_long", "own_group", "who_gave_up"]

logger = logging.getLogger("hdet")

#: How long a rank waits for the others, unless the environment says otherwise.
PATIENCE = timedelta(minutes=10)
VARIABLE = "HDET_PATIENCE"
#: Those who wait in vain do so at about the same time; this long they wait for one another's word.
_LAST_WORDS = 2.0

#: By ranks, backend and patience. Weak: who destroys the default group destroys these, and they are to go.
_own: dict[tuple[Any, ...], weakref.ref[Any]] = {}


def how_long() -> timedelta:
    """The patience: ten minutes, or the seconds that HDET_PATIENCE says."""
    said = os.environ.get(VARIABLE)
    if said is None:
        return PATIENCE
    try:
        seconds = float(said)
    except ValueError:
        seconds = -1.0
    if not 1 <= seconds < 1e9:
        raise ValueError(f"{VARIABLE} must be a number of seconds of at least 1, got {said!r}")
    return timedelta(seconds=seconds)


def own_group(
    like: Any, device: torch.device, patience: timedelta, ranks: Sequence[int] | None = None
) -> Any:
    """A group of hdet's own with the ranks of another one, or with ``ranks``. All of them call it.

    Args:
        like: has the backend, and the ranks; None for the default group. What is no plain group of torch's
            (one whose members change, say) cannot be had twice, and is returned as it is.
        device: from where its backend can send.
        patience: its timeout.
        ranks: who is in it, if not those of ``like``.
    """
    world = dist.group.WORLD
    like = world if like is None else like
    if type(like) is not dist.ProcessGroup or type(world) is not dist.ProcessGroup:
        return like
    ranks = dist.get_process_group_ranks(like) if ranks is None else list(ranks)
    backend = dist.get_backend(like)
    for key, known in list(_own.items()):
        if not _alive(known()):
            del _own[key]
    key = (*ranks, backend, patience)
    if key in _own:
        return _own[key]()
    if like in [known() for known in _own.values()] and dist.get_process_group_ranks(like) == ranks:
        return like
    group = _made(like, ranks, device, backend, patience)
    _own[key] = weakref.ref(group)
    return group


def forget(group: Any) -> None:
    """A collective of it has failed: whoever begins anew needs another one."""
    for key, known in list(_own.items()):
        if known() is group:
            del _own[key]


def who_gave_up(group: Any, rank: int, size: int, doing: str) -> str:
    """Where those are who have given up waiting as well, and who never came; "" where that cannot be known.

    By way of the store through which the ranks met, in a thread: the one who keeps it may be the one who is
    stuck.
    """
    told: dict[int, str] = {}
    asking = threading.Thread(target=_exchange_last_words, args=(told, group, rank, size, doing), daemon=True)
    asking.start()
    asking.join(2 * _LAST_WORDS)
    if rank not in told:
        return ""
    missing = [str(r) for r in range(size) if r not in told]
    seen = [f"rank {r} is at {what}" for r, what in sorted(told.items())]
    if missing:
        several = len(missing) > 1
        seen.append(f"rank{'s' if several else ''} {', '.join(missing)} did not come")
    return "; ".join(seen)


def _exchange_last_words(told: dict[int, str], group: Any, rank: int, size: int, doing: str) -> None:
    try:
        # No public name, torch 2.6 to 2.13.
        store = torch.distributed.distributed_c10d._get_default_store()
        key = f"hdet/gave up/{group.group_name}"
        store.set(f"{key}/{rank}", doing)
        told[rank] = doing
        deadline = time.monotonic() + _LAST_WORDS
        while len(told) < size and time.monotonic() < deadline:
            for other in range(size):
                if other not in told and store.check([f"{key}/{other}"]):
                    told[other] = store.get(f"{key}/{other}").decode()
            time.sleep(0.05)
    except Exception:  # it only makes an error's words better
        logger.debug("the ranks' store cannot be reached", exc_info=True)


def _alive(group: Any) -> bool:
    try:
        return group is not None and bool(dist.get_process_group_ranks(group))
    except (KeyError, ValueError, RuntimeError):  # destroyed
        return False


def _made(like: Any, ranks: Sequence[int], device: torch.device, backend: str, patience: timedelta) -> Any:
    everybody = list(ranks) == dist.get_process_group_ranks(dist.group.WORLD)
    if not everybody and not _named_alike(like, ranks, device, patience):
        logger.warning(
            "ranks %s have made different numbers of process groups, so that they cannot make another one by "
            "themselves: hdet's collectives travel in the group that was given",
            list(ranks),
        )
        return like
    try:
        if everybody:
            return dist.new_group(backend=backend, timeout=patience)
        # Only the members take part in making it, so that no rank waits for one that has no part in it.
        return dist.new_group(list(ranks), backend=backend, timeout=patience, use_local_synchronization=True)
    except RuntimeError as error:
        raise RuntimeError(
            f"hdet waited {patience.total_seconds():g} s in vain for all of the ranks {list(ranks)}: every "
            f"rank must construct the same things in the same order; or give {VARIABLE} more seconds "
            f"({error})"
        ) from error


def _named_alike(like: Any, ranks: Sequence[int], device: torch.device, patience: timedelta) -> bool:
    """Whether all members would give a group of theirs the same name: torch counts the groups of a rank."""
    if dist.get_process_group_ranks(like) != list(ranks):
        return True  # there is nobody to ask; every rank of a mesh is in as many groups
    # No public name, torch 2.6 to 2.13.
    mine = torch.tensor([len(dist.distributed_c10d._world.pg_names)], device=device)
    every = [torch.empty_like(mine) for _ in ranks]
    work = dist.all_gather(every, mine, like, async_op=True)
    assert work is not None
    work.wait(patience)
    return len({int(count) for count in every}) == 1
