"""Arms: groups of ranks that share their gradients, so that what acts through a gradient can be compared.

One arm is plain data parallelism, as many arms as ranks is training on local gradients; in between,
gradients are all-reduced inside an arm and weights are averaged over all ranks.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hdet.removed import explains_calls
from hdet.replicas.processes import patience

__all__ = ["Arms"]


class Arms:
    """Divide the ranks into arms of equal size, consecutive ranks together.

    Args:
        count: how many arms. It must divide the number of ranks. By default an arm is the ranks of one
            machine, by the launcher's ``LOCAL_WORLD_SIZE``.
        process_group: the ranks to divide; all of them by default.

    Example::

        arms = hdet.Arms(4)                        # 8 ranks: four arms of two
        model = arms.wrap(model)                   # DistributedDataParallel inside this rank's arm
        ensemble = hdet.Ensemble(optimizer, [hdet.Dropout(model)], gradients=arms, probe=probe, model=model)
    """

    @explains_calls
    def __init__(self, count: int | None = None, *, process_group: dist.ProcessGroup | None = None) -> None:
        distributed = dist.is_available() and dist.is_initialized()
        ranks = dist.get_world_size(process_group) if distributed else 1
        if ranks < 1:
            raise ValueError(
                f"Arms: this process (global rank {dist.get_rank()}) is not in process_group; make arms only "
                "on the group's own ranks"
            )
        count = _machines(ranks, process_group) if count is None else count
        if isinstance(count, bool) or not isinstance(count, int) or count < 1 or ranks % count:
            dividers = [n for n in range(1, ranks + 1) if ranks % n == 0]
            raise ValueError(
                f"Arms: count must divide the {ranks} rank{'s' if ranks > 1 else ''}, got {count!r}; use one "
                f"of {', '.join(map(str, dividers))}"
            )
        rank = dist.get_rank(process_group) if distributed else 0
        self.count = count
        self.ranks = ranks
        self._all_ranks = process_group
        #: The arm of this rank.
        self.index = rank // self.size
        all_ranks = dist.get_process_group_ranks(process_group or dist.group.WORLD) if distributed else [0]
        #: The global ranks of this rank's arm.
        self.members = all_ranks[self.index * self.size : (self.index + 1) * self.size]
        self._source = all_ranks[0]
        #: Those who share their gradients with this rank; that of all ranks where there is one arm.
        self.process_group = process_group
        if count > 1:
            # Only the members take part in making a group, so that no rank waits for another arm's.
            self.process_group = dist.new_group(
                self.members, timeout=patience(), use_local_synchronization=True
            )

    @property
    def size(self) -> int:
        """Ranks in each arm."""
        return self.ranks // self.count

    def __repr__(self) -> str:
        return f"Arms({self.count} of {self.size})"

    def wrap(self, model: nn.Module, **options: Any) -> nn.Module:
        """Start from rank 0's weights everywhere, and share gradients inside this rank's arm.

        A collective: every rank calls it. Where a rank has its gradients to itself it gets the model back as
        it is.

        Args:
            model: on its device already.
            **options: for ``DistributedDataParallel``.
        """
        if self.ranks == 1:
            return model
        self._broadcast([*model.parameters(), *model.buffers()])
        if self.size == 1:
            return model
        return nn.parallel.DistributedDataParallel(model, process_group=self.process_group, **options)

    @torch.no_grad()
    def _broadcast(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            if 0 in tensor.stride() and tensor.numel() > 1:
                continue  # an expanded buffer repeats its elements and cannot be written
            values = tensor.detach().contiguous()
            dist.broadcast(values, self._source, self._all_ranks)
            tensor.detach().copy_(values)


def _machines(ranks: int, process_group: dist.ProcessGroup | None) -> int:
    """How many machines there are, whose ranks are numbered one after the other."""
    each = os.environ.get("LOCAL_WORLD_SIZE", "")
    if process_group is None and ranks == 1:
        return 1
    if process_group is not None or not each.isdigit() or int(each) < 1 or ranks % int(each):
        raise ValueError(
            f"Arms: without count an arm is the ranks of one machine, and LOCAL_WORLD_SIZE={each!r} does not "
            f"divide the {ranks} ranks{'' if process_group is None else ' of process_group'} into such; give "
            "the number of arms: Arms(count)"
        )
    return ranks // int(each)
