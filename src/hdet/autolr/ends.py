"""Where a run that goes on is to end: where it was to end, or where it is to end now. Pure."""

from __future__ import annotations

from typing import NamedTuple

from hdet.autolr.shapes import WarmStableDecay

__all__ = ["End", "end_of"]


class End(NamedTuple):
    """What comes down; whether it is not what was planned, and whether the search for a size is over."""

    shape: WarmStableDecay
    new: bool = False
    over: bool = False


def end_of(
    caller: str, saved: WarmStableDecay, planned: int | None, total_steps: int | None, steps: int
) -> End:
    """Of a run that was planned for ``planned`` steps, has taken ``steps``, and is given ``total_steps`` now.

    The new end counts. Within the search the descent is moved to where such a run has it; beyond, what is
    left of it begins here. A cooldown that was asked for before stays, if it ends in time.

    >>> end_of("AutoLR", WarmStableDecay.of(400), 400, 800, 100)
    End(shape=WarmStableDecay(total_steps=800, decay_from=600, height=1.0), new=True, over=False)
    >>> end_of("AutoLR", WarmStableDecay.of(400), 400, 200, 170)
    End(shape=WarmStableDecay(total_steps=200, decay_from=170, height=1.0), new=True, over=True)
    """
    if total_steps == planned:
        return End(saved)
    cooled = saved != WarmStableDecay.of(planned)
    if cooled and saved.total_steps is not None and saved.total_steps <= (total_steps or saved.total_steps):
        return End(saved)
    if total_steps is None or steps >= total_steps:
        raise ValueError(
            f"{caller}.load_state_dict: total_steps must be above the {steps} steps taken so far, "
            f"got {total_steps}; the run was planned for {planned}: give as many, more, or so few that "
            "training can still come down"
        )
    new = WarmStableDecay.of(total_steps)
    assert new.decay_from is not None
    if not cooled and steps < min(new.decay_from, saved.decay_from or steps + 1):
        return End(new, new=True)
    return End(WarmStableDecay(total_steps, steps, saved(steps)), new=True, over=True)
