"""What the cycle tells who calls it, in words: why a call is refused, and what it leaves undone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hdet.policies.base import Policy
from hdet.replicas import Replicas

__all__ = [
    "beyond_the_end",
    "detached_apart",
    "ended",
    "introduced",
    "saved_apart",
    "saved_between",
    "without_loss",
]


def without_loss(caller: str) -> ValueError:
    """Somebody decides by the training loss."""
    return ValueError(
        f"{caller}.step: the controller (enable_auto_lr) judges replicas by their loss, and got loss=None; "
        "call step(loss)"
    )


def introduced(replicas: Replicas, policies: Sequence[Policy], total_steps: int | None) -> str:
    """Who trains, how long, and what it takes: whoever was not found is missed at once."""
    several = "s" if replicas.size > 1 else ""
    where = " in this process" if replicas.here > 1 else ""
    if replicas.parts > 1:
        where = f" on {replicas.parts} ranks each"
    elif replicas.size > 1 and replicas.here == 1:
        where = ", one a process"
    steps = "an open number of" if total_steps is None else f"{total_steps}"
    described = [said for policy in policies if (said := policy.describe())]
    return "; ".join([f"{replicas.size} replica{several}{where}; {steps} steps", *described])


def ended(steps: int, values: Mapping[str, float], syncs: int) -> str:
    """The last step was taken, and this was found."""
    found = ", ".join(f"{name} is {value:.4g}" for name, value in values.items())
    many = "" if syncs == 1 else "s"
    return f"all {steps} steps were counted, with {syncs} sync{many}; {found or 'nothing was explored'}"


def beyond_the_end(steps: int, lr: float, *, apart: bool) -> str:
    """The run is over, and somebody trains on: to raise would be to lose a run in its last step."""
    said = (
        f"step: the run has ended at step {steps} (total_steps), and the optimizer steps on: the learning "
        f"rate stays at {lr:.4g}, and no further step is counted; stop training there, or raise total_steps"
    )
    own = "; replicas on gradients of their own are not averaged any more: call converge() when you stop"
    return said + own * apart


def saved_apart(steps: int) -> str:
    """A state is saved whose weights are one replica's."""
    return (
        f"state_dict: called {steps} steps after the last sync: the replicas' weights differ, and what is "
        "saved beside it is one replica's; call converge() on every rank first, or save every rank's own"
    )


def saved_between(steps: int) -> str:
    """A state is saved before a step was counted."""
    return (
        f"state_dict: called after optimizer.step() and before step(): the state is of step {steps}, and "
        "what is saved of the optimizer now is of the next one: a run that goes on from both is one step "
        "behind; call step() first"
    )


def detached_apart(steps: int) -> str:
    """The replicas are not one model."""
    return f"detached {steps} steps after the last sync: the replicas' weights differ; call converge() first"
