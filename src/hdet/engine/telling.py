"""What the cycle tells who calls it, in words: why a call is refused, and what it leaves undone."""

from __future__ import annotations

__all__ = ["beyond_the_end", "detached_apart", "without_loss"]


def without_loss(caller: str) -> ValueError:
    """Somebody decides by the training loss."""
    return ValueError(
        f"{caller}.step: the controller (enable_auto_lr) judges replicas by their loss, and got loss=None; "
        "call step(loss)"
    )


def beyond_the_end(caller: str, step: int, total_steps: int) -> ValueError:
    """The run is over."""
    return ValueError(
        f"{caller}.step: step {step} is beyond total_steps={total_steps}; raise total_steps or stop training"
    )


def detached_apart(steps: int) -> str:
    """The replicas are not one model."""
    return f"detached {steps} steps after the last sync: the replicas' weights differ; call converge() first"
