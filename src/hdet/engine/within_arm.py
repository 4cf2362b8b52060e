"""A hierarchy of means: between two syncs of all ranks, those of an arm become their arm's mean.

Nothing is decided there. The ranks of an arm have all values in common, so whatever is compared is an arm
against an arm, each at its own mean, where all of them meet. Models of different arms differ until then.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from hdet.engine.converge import Converge
from hdet.engine.fan_out import FanOut
from hdet.engine.gradients import Gradients
from hdet.engine.health import Health
from hdet.policies.base import Policy
from hdet.replicas import Arms, Replicas

__all__ = ["WithinArm", "within_arm"]


class WithinArm:
    """The means of one arm.

    Args:
        caller: begins the errors.
        every: steps between two of them; there is one at each sync of all, too, before anything is measured.
        replicas: the ranks of the arm.
        optimizer: its parameters, and what it keeps for them, are averaged.
        model: its buffers are averaged too.
    """

    def __init__(
        self, caller: str, every: int, replicas: Replicas, optimizer: Optimizer, model: nn.Module | None
    ) -> None:
        self._every = every
        self.replicas = replicas
        self._converge = Converge(replicas, optimizer, model, with_state=True)
        self._health = Health(caller, replicas, self._converge)

    def after_step(self, steps: int, fan_out: FanOut) -> tuple[str, ...]:
        """Meet if it is time; what was odd. A collective of the arm: steps are counted alike on all ranks."""
        self.replicas.about_to(f"its arm's mean after step {steps}")
        return self.meet(fan_out) if steps % self._every == 0 else ()

    def meet(self, fan_out: FanOut) -> tuple[str, ...]:
        """Become the arm's mean, without those that are lost, who take the others'."""
        rows = self.replicas.gather_ranks(self._health.row())
        lost = self._health.lost(rows)
        with fan_out.at_base():
            _, odd = self._converge([*lost] if len(lost) < len(rows) else (), ends_round=False)
        out = [f"rank {rank} of an arm left out of its mean: {why}" for rank, why in lost.items()]
        return (*odd, *out)


def within_arm(
    caller: str,
    gradients: Gradients,
    optimizer: Optimizer,
    model: nn.Module | None,
    policies: Sequence[Policy],
) -> WithinArm | None:
    """The means of this rank's arm, where its ranks share weights instead of gradients."""
    if not isinstance(gradients, Arms) or gradients.average_every is None:
        return None
    if any(policy.follows_weights for policy in policies):
        raise ValueError(
            f"{caller}: gradients={gradients!r}, and a horizon follows each rank's own path from sync to "
            "sync, which means in between would cut; use hdet.Arms without average_every, or hdet.Ensemble"
        )
    if gradients.size == 1:
        return None
    first = next((p for group in optimizer.param_groups for p in group["params"]), None)
    device = torch.device("cpu") if first is None else torch.device(first.device)
    return WithinArm(caller, gradients.average_every, gradients.replicas(device), optimizer, model)
