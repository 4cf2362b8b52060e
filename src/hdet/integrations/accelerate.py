"""Accelerate: ``prepare(accelerator, optimizer)``, in place of ``accelerator.prepare(scheduler)``.

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
from hdet.integrations.methods import (
    Method,
    begin_own_gradients,
    build,
    builder_of,
    ddp_of,
    in_ddp,
    needs,
    wants,
)
from hdet.loop.cycle import Door
from hdet.probes import Probe
from hdet.removed import explains_calls

require("accelerate", "1.1.0")

from accelerate import Accelerator, DistributedType  # noqa: E402 — require names a version that is too old

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
        if self._accelerator.distributed_type == DistributedType.FSDP and self.auto.apart:
            raise RuntimeError(
                "accelerator.save_state: Accelerate has already written this sharded model's weights, and "
                "its replicas differ; first call converge() of what prepare returned, on every rank"
            )
        self.converge()
        self.save_rank(folder)

    def before_load(self, _models: object, folder: str) -> None:
        """Accelerate's hook, on every rank."""
        self.folder = Path(folder)


@explains_calls
def prepare(
    accelerator: Accelerator,
    optimizer: Any,
    method: Method = "autolr",
    *,
    total_steps: int | None = None,
    probe: Probe | None = None,
) -> Prepared:
    """Build a door, and put it into an Accelerator's loop.

    Call it after ``Accelerator()``, which makes the process group, and after ``accelerator.prepare(model,
    optimizer)``. Where replicas diverge, call ``converge()`` before an evaluation between two syncs; before
    ``save_state`` it is called for you.

    Args:
        accelerator: that of the loop.
        optimizer: as ``accelerator.prepare`` returned it.
        method: ``"autolr"`` finds the learning rate. ``"autotune"`` finds weight decay, dropout and label
            smoothing as well, where the model has them; in DDP each process trains on its own once the loss
            stands, and the probe's model must be what ``accelerator.prepare`` returned. ``"published"`` is
            the paper's method, :class:`hdet.OneCycleAutoLR` with the optimizer's ``lr`` as its peak, the
            paper's spread, and auto-LR after a third of the run. Or a callable that builds the door from the
            optimizer and, by name, whichever of ``total_steps``, ``model`` and ``probe`` it takes.
        total_steps: optimizer steps, not batches.
        probe: for whatever needs one: ``"autolr"`` and ``"autotune"`` do.

    Example::

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        auto = prepare(accelerator, optimizer, total_steps=1000, probe=probe)
        for batch in loader:
            with accelerator.accumulate(model):
                loss = loss_of(batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                auto.step(loss)
    """
    make = builder_of(_CALLER, method)
    kind = accelerator.distributed_type
    if kind in (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        raise TypeError(
            f"{_CALLER}: the optimizer must be torch's own, and {kind.value} steps flat partitions; use "
            "MULTI_GPU (DDP) or FSDP of version 2"
        )
    if isinstance(optimizer, Door):
        raise TypeError(
            f"{_CALLER}: optimizer must be an optimizer, got {type(optimizer).__name__}, which is built here "
            "since 0.3.0; give its settings by method=functools.partial(...)"
        )
    if needs(make, "probe") if probe is None else not wants(make, "probe"):
        raise ValueError(
            f"{_CALLER}: probe goes with what takes it, as 'autolr' and 'autotune' do, got method={method!r} "
            f"and probe={probe!r}; hdet.Probe.set_aside makes one of a training loader"
        )
    models = accelerator._models  # no public name
    if needs(make, "model") and not models:
        raise ValueError(
            f"{_CALLER}: method={method!r} takes the model, and none was prepared; call "
            "accelerator.prepare(model, optimizer) first"
        )
    given: dict[str, Any] = {"total_steps": total_steps}
    given |= {"model": getattr(models[-1], "_orig_mod", models[-1])} if models else {}
    given |= {} if probe is None else {"probe": probe}
    door = build(make, optimizer, **given)
    if in_ddp(accelerator):
        own = getattr(door, "trains_alone", False) or getattr(door, "switches", False)
        if own and probe is not None and ddp_of(probe.model) is None:
            raise ValueError(
                f"{_CALLER}: where processes train on gradients of their own, the probe's model must be the "
                f"one that accelerator.prepare returned, in DDP, got {type(probe.model).__name__}; prepare "
                "the model first, then make the probe"
            )
        who = accelerator.process_index, accelerator.num_processes
        begin_own_gradients(_CALLER, door, *who, accelerator.scaler)
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
