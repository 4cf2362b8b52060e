"""Ranks compare what they believe before one of them objects, so that all raise together and none is left
waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn
from torch.optim import Optimizer

from hdet.engine.fan_out import bind
from hdet.engine.lasting import code_facts
from hdet.hyperparameters import Axis, LearningRate
from hdet.policies.base import Policy
from hdet.replicas import Replicas
from hdet.weights.parameters import describe

__all__ = ["agree_on_run", "bind_together", "check_sync_every", "check_together"]


def check_together(
    caller: str, replicas: Replicas, check: Callable[[], object], facts: Mapping[str, str]
) -> None:
    """Let every rank check its own arguments; raise on all of them unless all have the same to say."""
    objection: Exception | None = None
    try:
        check()
    except (TypeError, ValueError) as error:
        objection = error
    replicas.agree(caller, {"arguments": str(objection or "usable"), **facts})
    if objection is not None:
        raise objection


def agree_on_run(
    caller: str,
    replicas: Replicas,
    optimizer: Optimizer,
    model: nn.Module | None,
    policies: Sequence[Policy],
    obstacle: Exception | None,
    settings: Mapping[str, object],
) -> dict[str, str]:
    """All ranks run the same thing, on the same layout; none trains where the history cannot be written. What
    they agree on, in words."""
    facts = {k: v for policy in policies for k, v in policy.facts().items()}
    facts |= {"explore": repr([policy.explore for policy in policies])}
    facts |= {name: repr(value) for name, value in settings.items()}
    facts |= {"history": "writable" if obstacle is None else f"{type(obstacle).__name__}: {obstacle}"}
    replicas.agree(caller, {**facts, **code_facts(), **describe(optimizer, model)})
    if obstacle is not None:
        raise type(obstacle)(
            f"{caller}: history must be a file that can be written, a callable that is told every line, or a "
            f"list of them, got {obstacle}"
        )
    return facts


def bind_together(
    caller: str, replicas: Replicas, optimizer: Optimizer, policies: Sequence[Policy]
) -> list[list[Axis]]:
    """The hyperparameters of every policy in their places.

    What is not to be found on one rank is refused on all; all begin at the same values.
    """
    explore = [policy.explore for policy in policies]
    # Ranks have compared their groups already: learning rates are no news.
    if all(isinstance(item, LearningRate) for items in explore for item in items):
        return bind(caller, explore, optimizer)
    axes: list[list[Axis]] = []

    def bind_here() -> list[float]:
        axes.extend(bind(caller, explore, optimizer))
        return []

    try:
        replicas.together(f"{caller}: binding what is explored", bind_here)
        replicas.agree(caller, {f"{a.name} to begin with": repr(a.base) for own in axes for a in own})
    except BaseException:
        for axis in (axis for own in axes for axis in own):
            axis.close()
        raise
    return axes


def check_sync_every(caller: str, sync_every: int) -> None:
    """T is a whole number of steps."""
    if not isinstance(sync_every, int) or sync_every < 1:
        raise ValueError(
            f"{caller}: sync_every (model_sync_interval, T) must be an integer of at least 1, "
            f"got {sync_every!r}"
        )
