"""Accelerate: ``prepare(accelerator, door)``, in place of ``accelerator.prepare(scheduler)``.

Accelerate steps a scheduler once for each process, as if steps were counted in batches, and saves what it
knows. Here the door is stepped once for every optimizer step, whatever the number of processes; it is saved
and loaded by ``save_state`` and ``load_state``; and replicas converge before they are saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, SupportsFloat

from torch import Tensor

from hdet.history import SyncRecord
from hdet.integrations import require
from hdet.integrations.carried import Carried

FLOOR = "1.1.0"
require("accelerate", FLOOR)

from accelerate import Accelerator, DistributedType  # noqa: E402 — a version that is too old is named first
from accelerate.scheduler import AcceleratedScheduler  # noqa: E402

__all__ = ["Prepared", "prepare"]


class Prepared(Carried):
    """A door in an Accelerator's loop: call :meth:`step` wherever the loop calls ``optimizer.step()``.

    Everything else is the door's: ``finished``, ``finish_()``, ``get_last_lr()``.
    """

    def __init__(self, accelerator: Accelerator, door: Any) -> None:
        super().__init__("hdet.integrations.accelerate.prepare", door)
        self._accelerator = accelerator
        self._sum: Any = None
        self._count = 0

    def step(self, loss: Tensor | SupportsFloat | None = None) -> SyncRecord | None:
        """Once for every backward pass, with its loss as it was before ``accelerator.backward``.

        While gradients accumulate, losses are only kept: the door is given their mean, however many they are,
        when the optimizer steps. Those of a step that was skipped for an overflow are dropped.
        """
        if loss is not None:
            own = loss.detach() if isinstance(loss, Tensor) else float(loss)
            self._sum = own if self._sum is None else self._sum + own
            self._count += 1
        if not self._accelerator.sync_gradients:
            return None
        whole = None if self._sum is None else self._sum / self._count
        self._sum, self._count = None, 0
        if self._accelerator.optimizer_step_was_skipped:
            return None
        return super().step(whole)

    def before_save(self, _models: object, _weights: object, folder: str) -> None:
        """Accelerate's hook, on every rank. Weights that it has collected are the model's own storage, and
        become the mean with it; those of a sharded model are on disk by then."""
        if self._accelerator.distributed_type == DistributedType.FSDP and self.door.apart:
            raise RuntimeError(
                "accelerator.save_state: replicas of a sharded model must be together, for Accelerate writes "
                "its weights before it calls anybody, and they are apart; call converge() of what prepare "
                "returned first, on every rank"
            )
        self.converge()
        self.save_own(folder)

    def before_load(self, _models: object, folder: str) -> None:
        """Accelerate's hook, on every rank."""
        self.folder = Path(folder)


def prepare(accelerator: Accelerator, door: Any) -> Prepared:
    """Hand a door over to an Accelerator's loop; its ``total_steps`` are optimizer steps.

    Build it after ``Accelerator()``, which makes the process group, and after ``accelerator.prepare(model,
    optimizer)``; do not give it to ``accelerator.prepare``. Where replicas diverge, call
    ``converge()`` before an evaluation within a round; before ``save_state`` it is called for you.

    Example::

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        auto = prepare(accelerator, hdet.AutoLR(optimizer, total_steps=1000, probe=probe))
        for batch in loader:
            with accelerator.accumulate(model):
                loss = loss_of(batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                auto.step(loss)
    """
    caller = "hdet.integrations.accelerate.prepare"
    kind = accelerator.distributed_type
    if kind in (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        raise TypeError(
            f"{caller}: the optimizer must be torch's own, whose steps can be followed, and {kind.value} "
            "steps flat partitions of its own; use MULTI_GPU (DDP) or FSDP of version 2"
        )
    inside = [scheduler.scheduler for scheduler in accelerator._schedulers]
    if isinstance(door, AcceleratedScheduler) or any(door is scheduler for scheduler in inside):
        raise TypeError(
            f"{caller}: the door must not have been given to accelerator.prepare, which steps it "
            f"{accelerator.num_processes} times for each optimizer step; leave it out there"
        )
    prepared = Prepared(accelerator, door)
    if accelerator.num_processes > 1 and door.replicas.ranks == 1 and door.replicas.here == 1:
        raise ValueError(
            f"{caller}: {type(door).__name__} must know all {accelerator.num_processes} processes, and was "
            "built for one alone, so that each would decide by itself; build it after Accelerator()"
        )
    accelerator.register_for_checkpointing(prepared)
    accelerator.register_save_state_pre_hook(prepared.before_save)
    accelerator.register_load_state_pre_hook(prepared.before_load)
    return prepared
