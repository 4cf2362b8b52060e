"""What the cycle tells who calls it, in words: why a call is refused, and what it leaves undone."""

from __future__ import annotations

__all__ = ["beyond_the_end", "detached_apart", "saved_apart", "saved_between", "without_loss"]


def without_loss(caller: str) -> ValueError:
    """Somebody decides by the training loss."""
    return ValueError(
        f"{caller}.step: the controller (enable_auto_lr) judges replicas by their loss, and got loss=None; "
        "call step(loss)"
    )


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
