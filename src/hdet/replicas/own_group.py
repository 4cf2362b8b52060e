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

__all__ = ["VARIABLE", "forget", "how_long", "meet", "own_group", "who_gave_up"]

logger = logging.getLogger("hdet")

#: How long a rank waits for the others, unless the environment says otherwise.
PATIENCE = timedelta(minutes=10)
VARIABLE = "HDET_PATIENCE"
#: Once one rank gives up the others soon fail, too: so many seconds they wait for one another's word, and
#: never longer than half the patience.
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
        ranks: who is in it, where all ranks of the default group are making groups of their own at once.
    """
    world = dist.group.WORLD
    like = world if like is None else like
    if ranks is None and type(like) is not dist.ProcessGroup:
        return like
    at_once = ranks is not None
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
    everybody = ranks == dist.get_process_group_ranks(world)
    if not everybody and (obstacle := _obstacle(like, ranks, device, patience, at_once=at_once)):
        logger.warning("ranks %s meet in the process group that was given: %s", ranks, obstacle)
        return like
    group = _made(None if everybody else ranks, backend, patience)
    _own[key] = weakref.ref(group)
    return group


def forget(group: Any) -> None:
    """A collective of it has failed: whoever begins anew needs another one."""
    for key, known in list(_own.items()):
        if known() is group:
            del _own[key]


def who_gave_up(group: Any, rank: int, size: int, doing: str, patience: timedelta) -> str:
    """Where those are who have given up waiting as well, and who is silent; "" where that cannot be known.

    By way of the store through which the ranks met, in a thread: the one who keeps it may be the one who is
    stuck.
    """
    told: dict[int, str] = {}
    seconds = min(_LAST_WORDS, patience.total_seconds() / 2)
    about = told, group, rank, size, doing, seconds
    asking = threading.Thread(target=_exchange_last_words, args=about, daemon=True)
    asking.start()
    asking.join(1.5 * seconds)
    if rank not in told:
        return ""
    missing = [str(r) for r in range(size) if r not in told]
    seen = [f"rank {r} is at {what}" for r, what in sorted(told.items())]
    if missing:
        seen.append(f"no word from rank{'s' if len(missing) > 1 else ''} {', '.join(missing)}")
    return "; ".join(seen)


def _exchange_last_words(
    told: dict[int, str], group: Any, rank: int, size: int, doing: str, seconds: float
) -> None:
    try:
        # No public name, torch 2.6 to 2.13.
        store = torch.distributed.distributed_c10d._get_default_store()
        key = f"hdet/gave up/{group.group_name}"
        store.set(f"{key}/{rank}", doing)
        told[rank] = doing
        deadline = time.monotonic() + seconds
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


def _made(ranks: list[int] | None, backend: str, patience: timedelta) -> Any:
    began = time.monotonic()
    try:
        # Of a few, only the members take part in making it: no rank waits for one that has no part in it.
        group = dist.new_group(
            ranks, backend=backend, timeout=patience, use_local_synchronization=ranks is not None
        )
        if "gloo" in backend:
            meet(group, patience)
        return group
    except RuntimeError as error:
        whom, waited = f"ranks {ranks}" if ranks else "all ranks", time.monotonic() - began
        if waited < 0.9 * patience.total_seconds():  # nobody was late: they do not reach one another
            raise RuntimeError(
                f"hdet: {whom} could not meet in a process group of their own ({error}); one of them has "
                "died, or the network between them failed: look at the first error of the others"
            ) from error
        raise RuntimeError(
            f"hdet waited {waited:.0f} s in vain for {whom}: every rank must construct the same things in "
            f"the same order; or give {VARIABLE} more seconds ({error})"
        ) from error


def meet(group: Any, patience: timedelta) -> None:
    """Returns once all ranks of a gloo group have reached one another. Before that, one that leaves at once
    (it has nothing more to do, or refuses something) would cut off another that is still connecting."""
    work = dist.all_reduce(torch.zeros(1), group=group, async_op=True)
    assert work is not None
    work.wait(patience)


def _obstacle(
    like: Any, ranks: Sequence[int], device: torch.device, patience: timedelta, *, at_once: bool
) -> str:
    """Why a few ranks cannot make a group without the others, if so."""
    if dist.get_process_group_ranks(like) != list(ranks):
        return ""  # there is nobody to ask; every rank of a mesh is in as many groups
    # A communicator that is bound to its device is split from that of all ranks, by all of them. This and the
    # next have no public name, torch 2.6 to 2.13.
    if not at_once and getattr(dist.group.WORLD, "bound_device_id", None) is not None:
        return "init_process_group was given device_id, and the other ranks would have to help"
    mine = torch.tensor([len(dist.distributed_c10d._world.pg_names)], device=device)
    every = [torch.empty_like(mine) for _ in ranks]
    work = dist.all_gather(every, mine, like, async_op=True)
    assert work is not None
    work.wait(patience)
    if len({int(count) for count in every}) > 1:  # torch names a group by it
        return "its ranks have made different numbers of groups before"
    return ""
