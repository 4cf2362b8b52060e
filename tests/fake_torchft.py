"""A stand-in for torchft's lighthouse and Manager, for replicas that are threads of one process.

Written from the documented behaviour of ``torchft.Manager`` with ``use_async_quorum=False``:

- ``start_quorum`` waits for all that are alive. Those whose step is behind the highest (at step 0 with
  ``init_sync``, all but one) load the state of one that is not, before it returns.
- ``allreduce`` never raises. After an error ``errored()`` tells it, later ones do nothing, and the tensor may
  hold anything: here NaN.
- ``should_commit`` is each replica's own verdict. Who commits is a step ahead of who does not.

What it leaves out: real networks and their timeouts, the lighthouse's own failure, quorums that form without
a slow replica, asynchronous quorums, replica groups of several ranks.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: All waits are bounded by it, in seconds.
PATIENCE = 30.0


class Killed(BaseException):
    """A process is gone: it runs no handler of its own."""


@dataclass
class Quorum:
    """Who takes part in a step; sums are numbered, and hold what each has brought."""

    members: list[FakeManager]
    source: FakeManager | None
    state: bytes
    step: int
    sums: dict[int, dict[str, Tensor]] = field(default_factory=dict)


class Lighthouse:
    """Knows who is alive."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.alive: dict[str, FakeManager] = {}
        self.quorum: Quorum | None = None

    def leave(self, name: str) -> None:
        with self.changed:
            del self.alive[name]
            self._form()
            self.changed.notify_all()

    def wait_for(self, what: Callable[[], bool]) -> None:
        if not self.changed.wait_for(what, PATIENCE):
            raise TimeoutError("fake torchft: nobody came")

    def _form(self) -> None:
        """Under the lock: make a quorum, once all that are alive have asked for one."""
        members = [self.alive[name] for name in sorted(self.alive)]
        if not members or not all(member.asks for member in members):
            return
        step = max(member.step for member in members)
        source = next(member for member in members if member.step == step)
        new = step == 0 and source.init_sync
        behind = [m for m in members if m.step < step or (new and m is not source)]
        state = io.BytesIO()
        if behind:
            user = {key: save() for key, (_, save) in source.states.items()}
            torch.save({"user": user, "step": source.step}, state)
        self.quorum = Quorum(members, source if behind else None, state.getvalue(), step)
        for member in members:
            member.asks, member.quorum, member.healing = False, self.quorum, member in behind


class FakeManager:
    """One replica's manager; ``sums`` counts the sums that it has begun in this quorum.

    ``before_sum`` may end its process. Of the sum ``loses`` it learns nothing, though others have its part.
    """

    _use_async_quorum = False
    _group_world_size = 1

    def __init__(
        self,
        lighthouse: Lighthouse,
        name: str,
        *,
        load_state_dict: Callable[[Any], None],
        state_dict: Callable[[], Any],
        min_replica_size: int = 1,
        init_sync: bool = False,
    ) -> None:
        self.lighthouse, self.name = lighthouse, name
        self.init_sync, self.min_replica_size = init_sync, min_replica_size
        self.states = {"default": (load_state_dict, state_dict)}
        self.step = 0
        self.asks = self.healing = False
        self.quorum: Quorum | None = None
        self.error: Exception | None = None
        self.sums = 0
        self.loses: int | None = None
        self.before_sum: Callable[[FakeManager], None] = lambda _: None
        with lighthouse.changed:
            lighthouse.alive[name] = self

    def register_state_dict_fn(
        self, key: str, load_state_dict: Callable[[Any], None], state_dict: Callable[[], Any]
    ) -> None:
        assert key not in self.states
        self.states[key] = (load_state_dict, state_dict)

    def start_quorum(self) -> None:
        self.error, self.sums = None, 0
        with self.lighthouse.changed:
            self.asks = True
            self.lighthouse._form()
            self.lighthouse.changed.notify_all()
            self.lighthouse.wait_for(lambda: not self.asks)
        assert self.quorum is not None
        if self.healing:
            loaded = torch.load(io.BytesIO(self.quorum.state), weights_only=True)
            for key, (load, _) in self.states.items():
                load(loaded["user"][key])
            self.step = loaded["step"]
            self.healing = False

    def num_participants(self) -> int:
        return len(self.quorum.members) if self.quorum else 0

    def participating_rank(self) -> int | None:
        return self.quorum.members.index(self) if self.quorum else None

    def is_participating(self) -> bool:
        return not self.healing

    def errored(self) -> Exception | None:
        return self.error

    def report_error(self, e: Exception) -> None:
        self.error = e

    def allreduce(self, tensor: Tensor, *, reduce_op: Any = dist.ReduceOp.AVG) -> Sum:
        if self.error is None:
            self.before_sum(self)
        if self.error is not None:
            return Sum(self, tensor, None, reduce_op)
        if reduce_op == dist.ReduceOp.AVG and not tensor.is_floating_point():
            raise ValueError("average reduce op is only supported for floating point tensors")
        number, self.sums = self.sums, self.sums + 1
        with self.lighthouse.changed:
            assert self.quorum is not None
            self.quorum.sums.setdefault(number, {})[self.name] = tensor.detach().clone()
            self.lighthouse.changed.notify_all()
        return Sum(self, tensor, number, reduce_op)

    def should_commit(self) -> bool:
        commits = self.error is None and self.num_participants() >= self.min_replica_size
        self.step += commits
        return commits


class Sum:
    """A sum under way."""

    def __init__(self, manager: FakeManager, tensor: Tensor, number: int | None, how: Any) -> None:
        self.manager, self.tensor, self.number, self.how = manager, tensor, number, how

    def wait(self) -> bool:
        manager, quorum = self.manager, self.manager.quorum
        if self.number is None or manager.error is not None:
            return True
        assert quorum is not None
        brought = quorum.sums[self.number]
        names = [member.name for member in quorum.members]
        alive = manager.lighthouse.alive

        def settled() -> bool:
            return all(name in brought or alive.get(name) not in quorum.members for name in names)

        with manager.lighthouse.changed:
            manager.lighthouse.wait_for(settled)
        terms = [brought[name] for name in names if name in brought]
        lost = self.number == manager.loses or len(terms) < len(names)
        if lost or len({term.shape for term in terms}) > 1:
            self.tensor.fill_(float("nan") if self.tensor.is_floating_point() else -1)
            manager.report_error(RuntimeError("connection closed by peer"))
            return True
        stacked = torch.stack(terms)
        self.tensor.copy_(stacked.amax(0) if self.how == dist.ReduceOp.MAX else stacked.sum(0))
        if self.how == dist.ReduceOp.AVG:
            self.tensor /= len(terms)
        return True
