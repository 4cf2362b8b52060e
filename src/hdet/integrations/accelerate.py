"""Accelerate: ``prepare(accelerator, door)``, in place of ``accelerator.prepare(scheduler)``.

Accelerate would step a scheduler once for each process. Here the door steps once for every optimizer step,
``save_state`` and ``load_state`` save and load it, and replicas are averaged before they are saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, SupportsFloat

from torch import Tensor

from hdet.history import SyncRecord
from hdet.integrations import require
from hdet.integrations.checkpointing import WrappedScheduler

require("accelerate", "1.1.0")

from accelerate import Accelerator, DistributedType  # noqa: E402 — require names a version that is too old
from accelerate.scheduler import AcceleratedScheduler  # noqa: E402

__all__ = ["Prepared", "prepare"]

_CALLER = "hdet.integrations.accelerate.prepare"


class Prepared(WrappedScheduler):
    """A door in an Accelerator's loop: call :meth:`step` wherever the loop calls ``optimizer.step()``.

    Every other attribute is the door's: ``finished``, ``finish_()``, ``get_last_lr()``.
    """

    def __init__(self, accelerator: Accelerator, door: Any) -> None:
        super().__init__(_CALLER, door)
        self._accelerator = accelerator
        self._losses: list[Any] = []

    def step(self, loss: Tensor | SupportsFloat | None = None) -> SyncRecord | None:
        """Once for every backward pass, with its loss as it was before ``accelerator.backward``.

        While gradients accumulate, losses are only kept: the door gets their mean when the optimizer steps.
        Those of a step that was skipped for an overflow are dropped.
        """
        if loss is not None:
            self._losses.append(loss.detach() if isinstance(loss, Tensor) else float(loss))
        if not self._accelerator.sync_gradients:
            return None
        losses, self._losses = self._losses, []
        if self._accelerator.optimizer_step_was_skipped:
            return None
        return super().step(sum(losses[1:], losses[0]) / len(losses) if losses else None)

    def before_save(self, _models: object, _weights: object, folder: str) -> None:
        """Accelerate's hook, on every rank. The weights it has collected share the model's memory, so they
        become the mean too; those of a sharded model are already on disk."""
        if self._accelerator.distributed_type == DistributedType.FSDP and self.door.apart:
            raise RuntimeError(
                "accelerator.save_state: Accelerate has already written this sharded model's weights, and "
                "its replicas differ; first call converge() of what prepare returned, on every rank"
            )
        self.converge()
        self.save_rank(folder)

    def before_load(self, _models: object, folder: str) -> None:
        """Accelerate's hook, on every rank."""
        self.folder = Path(folder)


def prepare(accelerator: Accelerator, door: Any) -> Prepared:
    """Put a door into an Accelerator's loop; its ``total_steps`` are optimizer steps.

    Build it after ``Accelerator()``, which makes the process group, and after ``accelerator.prepare(model,
    optimizer)``; do not give it to ``accelerator.prepare``. Where replicas diverge, call ``converge()``
    before an evaluation between two syncs; before ``save_state`` it is called for you.

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
    kind = accelerator.distributed_type
    if kind in (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        raise TypeError(
            f"{_CALLER}: the optimizer must be torch's own, and {kind.value} steps flat partitions; use "
            "MULTI_GPU (DDP) or FSDP of version 2"
        )
    inside = [scheduler.scheduler for scheduler in accelerator._schedulers]
    if isinstance(door, AcceleratedScheduler) or any(door is scheduler for scheduler in inside):
        raise TypeError(
            f"{_CALLER}: the door must not have been given to accelerator.prepare, which steps it "
            f"{accelerator.num_processes} times for each optimizer step; leave it out there"
        )
    prepared = Prepared(accelerator, door)
    if accelerator.num_processes > 1 and door.replicas.world_size == 1 and door.replicas.local_count == 1:
        raise ValueError(
            f"{_CALLER}: {type(door).__name__} must know all {accelerator.num_processes} processes, and was "
            "built for one; build it after Accelerator()"
        )
    accelerator.register_for_checkpointing(prepared)
    accelerator.register_save_state_pre_hook(prepared.before_save)
    accelerator.register_load_state_pre_hook(prepared.before_load)
    return prepared
