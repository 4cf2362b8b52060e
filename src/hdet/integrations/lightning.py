"""Lightning: a callback that steps hdet once for every optimizer step, and keeps checkpoints whole.

::

    trainer = L.Trainer(max_epochs=10, callbacks=[HDETCallback(probe=probe)])  # AutoLR; no learning rate
    trainer.fit(module, loader)

Unlike a scheduler in ``configure_optimizers``, a callback passes on the training loss, averages replicas
before their weights are read, and stops training when a search has ended. An ``AutoLR`` in one process needs
none of this: it may be returned as ``{"scheduler": auto, "interval": "step"}``.

Inside ``training_step``, ``group["lr"]`` is this replica's own: Lightning runs it in the optimizer's step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler

from hdet.integrations import require

require("lightning", "2.4")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy  # noqa: E402

from hdet.autolr.search import Search  # noqa: E402
from hdet.integrations.checkpointing import WrappedScheduler  # noqa: E402
from hdet.integrations.methods import Method, begin_own_gradients, build, builder_of, sharing_of  # noqa: E402
from hdet.integrations.trackers import Tracker  # noqa: E402
from hdet.probes import Probe  # noqa: E402
from hdet.removed import refuse_removed  # noqa: E402

__all__ = ["HDETCallback"]

logger = logging.getLogger("hdet")

#: Under this name a checkpoint holds the door's state.
_KEY = "hdet"


class HDETCallback(Callback):
    """Steps a door (AutoLR, AutoTune, OneCycleAutoLR, Ensemble) in Lightning's training loop.

    It runs AutoLR unless ``method="published"`` asks for the paper's HDET.

    Every optimizer step is one step of the door, with this rank's own training loss, the mean over the
    batches it accumulated. Replicas are averaged before a validation, a checkpoint and the end. The state
    is in the checkpoint: a resumed run equals the unbroken one (of replicas that diverge, only from a
    window's end). A search that has ended stops training, and the module holds the best weights.

    Args:
        method: ``"autolr"`` finds the learning rate, of all optimizers. ``"autotune"`` finds weight decay,
            dropout and label smoothing as well, where the module has them; with the strategy ``ddp`` each
            process trains on its own once the loss stands. ``"published"`` is the paper's method,
            :class:`hdet.OneCycleAutoLR` with the optimizer's ``lr`` as its peak, the paper's spread, and
            auto-LR after a third of the run. All run for as many steps as the trainer expects, and are shown
            by Lightning's loggers. Or a callable from the module and its optimizers to the door, called when
            a fit begins, after the process group was made.
        probe: for ``"autolr"`` and ``"autotune"``: a :class:`hdet.Probe`, or a callable from the module to
            one. Its loss must move batches to the device, and cast.

    Attributes:
        door: what was built; None before the first fit.
    """

    @refuse_removed
    def __init__(
        self,
        method: Method = "autolr",
        *,
        probe: Probe | Callable[[LightningModule], Probe] | None = None,
    ) -> None:
        self._make = builder_of("HDETCallback", method)
        if (probe is not None) != (method in ("autolr", "autotune")):
            raise ValueError(
                "HDETCallback: probe goes with method='autolr' and 'autotune', and a callable brings its "
                f"own, got method={method!r} and probe={probe!r}; hdet.Probe.set_aside makes one of a "
                "training loader"
            )
        self.door: Any = None
        self._wrapped: WrappedScheduler | None = None
        self._method = method
        self._probe = probe
        self._saved: Mapping[str, Any] | None = None
        self._steps = 0
        self._losses: list[Tensor] = []
        #: Open while the model is at its base values.
        self._base = ExitStack()
        self._checked = self._failed = self._state_taken = self._warned_mid_window = False
        self._hook: Any = None

    # ------------------------------------------------------------------ a fit begins

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Build the door: optimizers and process group exist, and no optimizer state has been loaded."""
        optimizers = list(trainer.optimizers)
        in_ddp = isinstance(trainer.strategy.model, DistributedDataParallel)
        if callable(self._method):
            self.door = self._make(pl_module, optimizers)
        else:
            # Too few for a search, but the code should run.
            too_few = trainer.fast_dev_run and self._method != "published"
            self.door = build(
                self._make,
                optimizers[0] if len(optimizers) == 1 else optimizers,
                probe=self._probe(pl_module) if callable(self._probe) else self._probe,
                total_steps=None if too_few else _expected_steps(trainer, len(optimizers)),
                model=pl_module,
                **(sharing_of(self._make) if in_ddp else {}),
                history=[Tracker(each) for each in trainer.loggers],
            )
        if in_ddp:
            begin_own_gradients("HDETCallback", self.door, trainer.global_rank, trainer.world_size)
        self._leave_ddp(trainer, pl_module)
        self._checked = self._failed = self._state_taken = False
        self._losses, self._base = [], ExitStack()
        self._wrapped = WrappedScheduler("HDETCallback", self.door)
        if isinstance(self.door, LRScheduler) and trainer.lr_scheduler_configs:
            kinds = ", ".join(type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs)
            raise ValueError(
                f"HDETCallback: {type(self.door).__name__} writes the learning rates, and so would the "
                f"scheduler that configure_optimizers returns, got {kinds}; return the optimizers alone"
            )

    def _leave_ddp(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Where each process trains on gradients of its own, DDP is not needed any more. Its no_sync would
        not do: manual optimization undoes it."""
        ddp = isinstance(trainer.strategy.model, DistributedDataParallel)
        if ddp and getattr(self.door, "trains_alone", False):
            trainer.strategy.model = pl_module

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the state for later: Lightning loads the optimizers after the callbacks."""
        self._saved = checkpoint.get(_KEY)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the state, now that model and optimizers have theirs."""
        saved, self._saved = self._saved, None
        self._steps = trainer.global_step
        if saved is not None:
            self.door.load_state_dict(saved)
        elif self._steps:
            raise ValueError(
                f"HDETCallback: fit resumes at step {self._steps}, and there is no state of "
                f"{type(self.door).__name__} to continue from; resume from a checkpoint written with this "
                "callback (not save_weights_only), or start a new Trainer without ckpt_path"
            )
        self._leave_ddp(trainer, pl_module)
        self._hook = pl_module.register_state_dict_pre_hook(self._note_state)

    # ------------------------------------------------------------------ a step

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Replicas train at their own values."""
        self._base.close()
        self._warn_of_taken_state()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Step, if the optimizer has."""
        if (loss := _loss_of(outputs)) is not None:
            # Lightning divides it by the number of accumulated batches.
            share = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            self._losses.append(loss if share == 1 else loss * share)
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        losses, self._losses = self._losses, []
        self.door.step(_mean(losses))
        self._leave_ddp(trainer, pl_module)
        if (self.door.apart or getattr(self.door, "switches", False)) and not self._checked:
            self._checked = True
            _check_copies(self.door, trainer)
        if getattr(self.door, "finished", False):
            trainer.should_stop = True

    # ------------------------------------------------------------------ weights are read

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """One model is validated, not each rank's."""
        if not trainer.sanity_checking:
            self._converge()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """One model is saved: weights in the checkpoint share the module's memory, and are averaged there."""
        if self.door is None:
            return
        if self._failed and self.door.apart:
            logger.warning(
                "HDETCallback: a checkpoint after an exception holds one rank's replica, not the mean"
            )
        elif not self._failed:  # after an exception other ranks may be gone: do not wait for them
            if self.door.apart and isinstance(self.door, Search) and self.door.replicas.world_rank == 0:
                self._warn_mid_window()
            self._converge()
        self._state_taken = False
        checkpoint[_KEY] = self.door.state_dict()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The module holds the mean, or the best weights if a search has ended."""
        self._warn_of_taken_state()
        self._converge()
        if getattr(self.door, "finished", False):
            self.door.finish_()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Other ranks may be gone from now on."""
        self._failed = True

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remove the hook."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _converge(self) -> None:
        """Be one model at its base values, until the next training batch. Every rank calls it."""
        if self._wrapped is not None:
            self._base.close()
            self._base.enter_context(self._wrapped.converged())

    def _warn_mid_window(self) -> None:
        """A checkpoint holds one rank's path, and each replica that diverges has its own."""
        if not self._warned_mid_window:
            self._warned_mid_window = True
            logger.warning(
                "HDETCallback: step %d: a checkpoint within a window of replicas that diverge holds rank 0's "
                "path of it: a run that resumes there judges this window by that path alone",
                self._steps,
            )

    def _note_state(self, *_: object) -> None:
        self._state_taken = self._state_taken or self.door.apart

    def _warn_of_taken_state(self) -> None:
        """Lightning calls no callback for a checkpoint of weights alone, nor when a user reads the state."""
        if self._state_taken:
            self._state_taken = False
            logger.warning(
                "HDETCallback: step %d: the module's state_dict was taken while replicas differed, so it is "
                "one replica's; call callback.door.converge() on all ranks first, or save a whole checkpoint",
                self._steps,
            )


def _expected_steps(trainer: Trainer, optimizers: int) -> int | None:
    """How often the optimizers step together; None if that is unknown."""
    steps = trainer.estimated_stepping_batches
    if steps == trainer.max_steps and optimizers > 1:
        steps = steps // optimizers  # Lightning counts the steps of each
    return int(steps) if 0 < steps < float("inf") else None


def _loss_of(outputs: Any) -> Tensor | None:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return loss.detach() if isinstance(loss, Tensor) else None


def _mean(losses: Sequence[Tensor]) -> Tensor | None:
    if len(losses) < 2:
        return losses[0] if losses else None
    return torch.stack(list(losses)).mean()


def _check_copies(door: Any, trainer: Trainer) -> None:
    """Raise where weights would be saved before replicas that diverge were averaged."""
    kind = type(door).__name__
    if not isinstance(trainer.strategy, (DDPStrategy, SingleDeviceStrategy)):
        raise ValueError(
            f"HDETCallback: replicas that diverge ({kind}) need the strategy 'ddp', got "
            f"{type(trainer.strategy).__name__}, which copies weights before a callback can average them"
        )
    if any(getattr(each, "save_weights_only", False) for each in trainer.checkpoint_callbacks):
        raise ValueError(
            f"HDETCallback: replicas that diverge ({kind}) need whole checkpoints, got a ModelCheckpoint "
            "with save_weights_only, which calls no callback and would save one replica's weights"
        )
