"""A scheduler that behaves as docs/paper.md says of the authors' code, written from that description alone.

The spread scales a list that nobody reads; with auto-LR off nothing is averaged; with it on the learning rate
is frozen between syncs from S_w on, and Eq. 8's logarithm of f_div/f_final lets it grow at each.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR


class OneCycleAutoLR(OneCycleLR):
    """OneCycleLR until step S_w, then Eq. 8 alone: no vote, which the comparison does not need."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int,
        *,
        ensemble_lr_spread_ratio: float,
        model_sync_interval: int,
        auto_lr_warmup_steps: int,
        enable_auto_lr: bool,
        rank: int,
        world_size: int,
    ) -> None:
        self.on, self.every, self.from_step = enable_auto_lr, model_sync_interval, auto_lr_warmup_steps
        self.done, self.world_size = -1, world_size
        super().__init__(optimizer, max_lr, total_steps)
        self.scaled = [lr * (1 + ensemble_lr_spread_ratio * (2 * rank - 1)) for lr in self.base_lrs]
        self.growth = (1e4 / 25) ** (model_sync_interval / (total_steps - auto_lr_warmup_steps))

    def step(self, loss: Any = None) -> None:
        self.done += 1
        if not self.on or self.done < self.from_step:
            super().step()
        elif self.done % self.every == 0:
            for group in self.optimizer.param_groups:
                group["lr"] *= self.growth
                for parameter in group["params"]:
                    self._average(parameter.data)

    def _average(self, values: Tensor) -> None:
        dist.all_reduce(values)
        values.div_(self.world_size)
