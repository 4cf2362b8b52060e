"""Replicas that may fail and come back: a torchft ``Manager`` says who is alive, and carries the sums.

torchft is not imported: what is used of its Manager is the protocol below, as its documentation has it. A
meeting is one of the manager's steps, as a sync of torchft's own ``LocalSGD`` is:

    start_quorum     who is alive; one that is behind, or new, loads the state of one that is not
    allreduce, …     the mean of the weights, and the numbers that decisions follow from
    should_commit    False if anything failed: all that the meeting changed is put back

A replica that could not commit while others could is behind them, and the next quorum brings it their state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor

from hdet.replicas.averaging import BucketedMean, Work
from hdet.replicas.base import Mean, Replicas, Undone
from hdet.replicas.integers import maximum_

__all__ = ["FaultTolerantReplicas", "Manager"]


class Manager(Protocol):
    """What is asked of a ``torchft.Manager``. Its allreduce never raises: :meth:`errored` tells."""

    def start_quorum(self) -> None: ...

    def num_participants(self) -> int: ...

    def participating_rank(self) -> int | None: ...

    def is_participating(self) -> bool: ...

    def allreduce(self, tensor: Tensor, *, reduce_op: Any = ...) -> Work: ...

    def errored(self) -> object | None: ...

    def report_error(self, e: Exception) -> None: ...

    def should_commit(self) -> bool: ...

    def register_state_dict_fn(
        self, key: str, load_state_dict: Callable[[Any], None], state_dict: Callable[[], Any]
    ) -> None: ...


class FaultTolerantReplicas(Replicas):
    """Replica groups of torchft, one process each, that meet at syncs and train by themselves in between.

    Args:
        manager: with ``use_async_quorum=False``, so that one who recovers has its state before a meeting
            goes on, and a quorum_timeout that is longer than a round. Its load_state_dict and state_dict are
            of model, optimizer and schedule; hdet's own state is registered with it.
        device: where the process group can send from; the CPU for gloo.

    A replica knows of no others until its first sync: in its first round it explores nothing. One that joins
    later loads the others' state there, drops what it has trained, and explores from then on.

    Example::

        manager = torchft.Manager(pg=torchft.ProcessGroupGloo(), min_replica_size=2, use_async_quorum=False,
                                  load_state_dict=load, state_dict=save)
        ensemble = hdet.Ensemble(optimizer, gradients="none", controller=hdet.SoftmaxController("auto"),
                                 sync_every=500, model=model, replicas=hdet.FaultTolerantReplicas(manager))
        while ensemble.steps < total_steps:    # one who joins leaps to the others' step
            ...
            ensemble.step(loss)
    """

    elastic = True
    rank = 0
    size = 1

    def __init__(self, manager: Manager, *, device: torch.device | str = "cpu") -> None:
        # Both names are torchft's own, and private; without them what is wrong shows at the first recovery.
        if getattr(manager, "_use_async_quorum", False):
            raise ValueError(
                "FaultTolerantReplicas: manager must be made with use_async_quorum=False: a replica that "
                "recovers needs its state before the sync, not after it"
            )
        ranks = getattr(manager, "_group_world_size", 1)
        if ranks != 1:
            raise ValueError(
                f"FaultTolerantReplicas: a replica must be one process, got a group of {ranks}: its ranks "
                "see different losses, and would decide differently"
            )
        self._manager = manager
        self._device = torch.device(device)
        self._facts: list[tuple[str, dict[str, str]]] = []
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._meets = self._has_met = False

    # ------------------------------------------------------------------ a meeting

    @contextmanager
    def meeting(self) -> Iterator[None]:
        voted = committed = False
        # Until it is over, the state that this replica would hand to others is that of before.
        self._manager.start_quorum()
        self._meets = True
        try:
            self._sit_down()
            yield
            voted = True
            if not self._manager.should_commit():
                raise _lost(self._manager.errored() or "the manager has too few of them")
            committed = self._has_met = True
        except Exception as error:
            if not voted:
                cause = self._manager.errored()
                self._manager.report_error(error)
                self._manager.should_commit()  # the manager learns that this replica did not
                if cause is not None and not isinstance(error, Undone):  # numbers that never arrived
                    raise _lost(cause) from error
            raise
        finally:
            self._meets = False
            if not committed:
                self._put_back()
            self._kept.clear()

    def _sit_down(self) -> None:
        rank = self._manager.participating_rank()
        if rank is None or not self._manager.is_participating():
            raise RuntimeError(
                "FaultTolerantReplicas: this replica has no part in the quorum, as a spare (WorldSizeMode) "
                "has none, or one that recovers while others go on: make the Manager with "
                "use_async_quorum=False and without spares"
            )
        self.rank, self.size = rank, self._manager.num_participants()
        text = json.dumps(self._facts).encode()
        # 48 bits are a whole number in a float64.
        digest = float(int.from_bytes(hashlib.sha256(text).digest()[:6], "big"))
        rows = self.gather([digest, float(self._has_met)])
        if any(row[0] != rows[0][0] for row in rows):
            if self._has_met or digest in {row[0] for row in rows if row[1]}:
                raise Undone("a replica with other arguments has come, and is told so")
            names = ", ".join(sorted({name for _, facts in self._facts for name in facts}))
            raise RuntimeError(
                f"{self._facts[0][0]}: the arguments, or the model, are not those of the other replicas; "
                f"start all with the same of: {names}"
            )

    def keep(self, tensors: Sequence[Tensor]) -> None:
        if self._meets:
            self._kept += [(tensor, tensor.detach().clone()) for tensor in tensors]

    @torch.no_grad()
    def _put_back(self) -> None:
        for tensor, before in reversed(self._kept):
            if 0 not in tensor.stride():
                tensor.copy_(before)

    def carry(
        self, name: str, load: Callable[[Mapping[str, Any]], None], save: Callable[[], dict[str, Any]]
    ) -> None:
        self._manager.register_state_dict_fn(f"hdet.{name}", load, save)

    # ------------------------------------------------------------------ what is done there

    def gather(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        """By a sum of rows that are zero but for one's own: the manager has no other way. NaN + 0 is NaN."""
        own = torch.tensor([float(value) for value in row], dtype=torch.float64)
        if not self._meets:
            return [own.tolist()]
        rows = torch.zeros(self.size, len(own), dtype=torch.float64, device=self._device)
        rows[self.rank] = own
        self._sum(rows, dist.ReduceOp.SUM).wait()
        return cast("list[list[float]]", rows.tolist())

    def agree(self, caller: str, facts: Mapping[str, str]) -> None:
        """Nobody may be there yet: facts are compared at every meeting."""
        self._facts.append((caller, dict(facts)))

    def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Mean:
        integer = [b for b in buffers if not (b.is_floating_point() or b.is_complex())]
        floating = [b for b in buffers if b.is_floating_point() or b.is_complex()]
        # The manager divides, by how many take part.
        mean = BucketedMean(tensors, size=1, all_reduce=self._average)
        mean_of_buffers = BucketedMean(floating, size=1, all_reduce=self._average, wire=torch.float64)

        def converge() -> tuple[str, ...]:
            if not self._meets:
                return ()
            mean()
            mean_of_buffers()
            return maximum_(integer, self._device, self._maximum) if integer else ()

        return converge

    def _average(self, tensor: Tensor) -> Work:
        return self._sum(tensor, dist.ReduceOp.AVG)

    def _maximum(self, message: Tensor) -> None:
        self._sum(message, dist.ReduceOp.MAX).wait()

    def _sum(self, tensor: Tensor, how: Any) -> Work:
        return _Watched(self, self._manager.allreduce(tensor, reduce_op=how))


class _Watched:
    """A sum that raises where the manager would go on with what is left of it."""

    def __init__(self, replicas: FaultTolerantReplicas, work: Work) -> None:
        self._replicas = replicas
        self._work = work

    def wait(self) -> None:
        self._work.wait()
        if (error := self._replicas._manager.errored()) is not None:
            raise _lost(error)


def _lost(cause: object) -> Undone:
    first, *_ = str(cause).splitlines() or [repr(cause)]  # torchft's errors have a traceback in their words
    return Undone(f"a replica was lost on the way ({first})")
