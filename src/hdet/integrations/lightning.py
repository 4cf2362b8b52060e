"""Lightning: a callback that steps hdet once for every optimizer step, and keeps checkpoints whole.

::

    trainer = L.Trainer(max_epochs=10, callbacks=[HDETCallback(probe=probe)])  # AutoLR; no learning rate
    trainer.fit(module, loader)

What a callback can do and a scheduler in ``configure_optimizers`` cannot: hand over the training loss, bring
replicas together before anybody looks at their weights, and stop training where a search has ended. An
``AutoLR`` that does not diverge needs neither; returned as ``{"scheduler": auto, "interval": "step"}`` it
does the same.

Inside ``training_step`` ``group["lr"]`` is this replica's own: Lightning runs it within the optimizer's step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hdet.integrations import require

require("lightning", "2.4")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy  # noqa: E402

from hdet.auto_lr import AutoLR  # noqa: E402
from hdet.integrations.carried import Carried  # noqa: E402
from hdet.integrations.trackers import Tracker  # noqa: E402
from hdet.probes import Probe  # noqa: E402
from hdet.search import Search  # noqa: E402

__all__ = ["HDETCallback"]

logger = logging.getLogger("hdet")

#: Under this name a checkpoint holds the door's state.
_KEY = "hdet"


class HDETCallback(Callback):
    """Steps a door (AutoLR, AutoTune, OneCycleAutoLR, Ensemble) in Lightning's training loop.

    Every optimizer step is one step of the door, with this rank's own training loss, the mean over the
    batches it accumulated. Replicas become one model before a validation, a checkpoint and the end. The state
    is in the checkpoint: a resumed run goes on as the unbroken one (an AutoLR with a spread only from a
    window's end). A search that has ended stops training, and the module holds the best weights.

    Args:
        build: from the module and its optimizers to the door, called when a fit begins; the process group and
            ``module.trainer`` are there by then. ``"auto_lr"`` is an AutoLR over all optimizers, for as many
            steps as the trainer expects; Lightning's loggers show what it does.
        probe: for ``"auto_lr"``: a :class:`hdet.Probe`, or a callable from the module to one. Its loss moves
            batches to the device, and casts, by itself.

    Attributes:
        door: what was built; None before the first fit.
    """

    def __init__(
        self,
        build: Callable[[LightningModule, list[Optimizer]], Any] | Literal["auto_lr"] = "auto_lr",
        *,
        probe: Probe | Callable[[LightningModule], Probe] | None = None,
    ) -> None:
        if not callable(build) and build != "auto_lr":
            raise ValueError(f"HDETCallback: build must be 'auto_lr' or a callable, got {build!r}")
        if (probe is not None) != (build == "auto_lr"):
            raise ValueError(
                "HDETCallback: probe goes with build='auto_lr', and a callable brings its own, got "
                f"build={build!r} and probe={probe!r}; hdet.Probe.set_aside makes one of a training loader"
            )
        self.door: Any = None
        self._carried: Carried | None = None
        self._build = build
        self._probe = probe
        self._saved: Mapping[str, Any] | None = None
        self._steps = 0
        self._losses: list[Tensor] = []
        #: Open while base values stand where the forward pass reads what is explored.
        self._base = ExitStack()
        self._checked = self._failed = self._taken_apart = self._said_halfway = False
        self._hook: Any = None

    # ------------------------------------------------------------------ a fit begins

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Build the door: optimizers and process group exist, and no optimizer has been restored."""
        optimizers = list(trainer.optimizers)
        if callable(self._build):
            self.door = self._build(pl_module, optimizers)
        else:
            self.door = self._auto_lr(trainer, pl_module, optimizers)
        self._checked = self._failed = self._taken_apart = False
        self._losses, self._base = [], ExitStack()
        self._carried = Carried("HDETCallback", self.door)
        _refuse_schedulers(self.door, trainer)

    def _auto_lr(self, trainer: Trainer, pl_module: LightningModule, optimizers: list[Optimizer]) -> AutoLR:
        probe = self._probe if isinstance(self._probe, Probe) else self._probe(pl_module)  # type: ignore[misc]
        return AutoLR(
            optimizers,
            probe=probe,
            total_steps=_expected_steps(trainer, len(optimizers)),
            history=[Tracker(each) for each in trainer.loggers],
        )

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the state: the optimizers, which come before it, are restored after the callbacks."""
        self._saved = checkpoint.get(_KEY)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take up the state, now that model and optimizers have theirs."""
        saved, self._saved = self._saved, None
        self._steps = trainer.global_step
        if saved is not None:
            self.door.load_state_dict(saved)
        elif self._steps:
            raise ValueError(
                f"HDETCallback: fit goes on at step {self._steps}, and there is no state of "
                f"{type(self.door).__name__} to go on from, which would begin anew; resume from a checkpoint "
                "that was written with this callback (not save_weights_only), or begin a run with "
                "these weights: a new Trainer, without ckpt_path"
            )
        self._hook = pl_module.register_state_dict_pre_hook(self._note_state)

    # ------------------------------------------------------------------ a step

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Replicas train at their own values."""
        self._base.close()
        self._say_taken_apart()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Step, if the optimizer has."""
        if (loss := _loss_of(outputs)) is not None:
            # Lightning hands it out divided by the batches that are accumulated.
            share = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            self._losses.append(loss if share == 1 else loss * share)
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        losses, self._losses = self._losses, []
        self.door.step(_mean(losses))
        if self.door.apart and not self._checked:
            self._checked = True
            _refuse_copies(self.door, trainer)
        if getattr(self.door, "finished", False):
            trainer.should_stop = True

    # ------------------------------------------------------------------ somebody looks at the weights

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """One model is validated, not each rank's."""
        if not trainer.sanity_checking:
            self._meet()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """One model is saved: weights in the checkpoint are the module's own memory, averaged in place."""
        if self.door is None:
            return
        if self._failed:  # others may be gone: nothing that waits for them
            if self.door.apart:
                logger.warning(
                    "HDETCallback: a checkpoint after an exception holds one rank's replica, not the mean"
                )
        else:
            if self.door.apart and isinstance(self.door, Search):
                self._say_halfway()
            self._meet()
        self._taken_apart = False
        checkpoint[_KEY] = self.door.state_dict()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The module holds the mean; the best weights, if a search has come to its end."""
        self._say_taken_apart()
        self._meet()
        if getattr(self.door, "finished", False) and getattr(self.door, "keeps", False):
            self.door.finish_()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """From here on ranks may be alone."""
        self._failed = True

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the module alone."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _meet(self) -> None:
        """Be one model at its base values, until the next training batch. Every rank calls it."""
        if self._carried is not None:
            self._base.close()
            self._base.enter_context(self._carried.looked_at())

    def _say_halfway(self) -> None:
        """A checkpoint has room for one rank's path, and where replicas diverge each has its own."""
        if not self._said_halfway and self.door.replicas.place == 0:
            self._said_halfway = True
            logger.warning(
                "HDETCallback: step %d: a checkpoint within a window of replicas that diverge holds rank 0's "
                "path of it: a run that resumes there judges this window by that path alone",
                self._steps,
            )

    def _note_state(self, *_: object) -> None:
        self._taken_apart = self._taken_apart or self.door.apart

    def _say_taken_apart(self) -> None:
        """A checkpoint of weights alone tells no callback; nor does a module's state that a user takes."""
        if self._taken_apart:
            self._taken_apart = False
            logger.warning(
                "HDETCallback: step %d: the module's state_dict was taken while the replicas were apart, and "
                "is one replica's; call callback.door.converge() on all ranks first, or save it whole",
                self._steps,
            )


def _expected_steps(trainer: Trainer, optimizers: int) -> int | None:
    """How often the optimizers step together; None where nobody knows."""
    if trainer.fast_dev_run:  # too few for a search; the code runs all the same
        return None
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


def _refuse_schedulers(door: object, trainer: Trainer) -> None:
    if isinstance(door, LRScheduler) and trainer.lr_scheduler_configs:
        kinds = ", ".join(type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs)
        raise ValueError(
            f"HDETCallback: {type(door).__name__} writes the learning rates, and so would the scheduler that "
            f"configure_optimizers returns, got {kinds}; return the optimizers alone"
        )


def _refuse_copies(door: Any, trainer: Trainer) -> None:
    """Where replicas come apart, whatever is written must be the mean."""
    kind = type(door).__name__
    if not isinstance(trainer.strategy, (DDPStrategy, SingleDeviceStrategy)):
        raise ValueError(
            f"HDETCallback: replicas that diverge ({kind}) must be trained by the strategy 'ddp', got "
            f"{type(trainer.strategy).__name__}, which copies the weights before a callback can bring the "
            "replicas together; use 'ddp', or an AutoLR without a spread"
        )
    if any(getattr(each, "save_weights_only", False) for each in trainer.checkpoint_callbacks):
        raise ValueError(
            f"HDETCallback: replicas that diverge ({kind}) need whole checkpoints, got a ModelCheckpoint of "
            "weights alone (save_weights_only), of which no callback hears: it would write one replica's; "
            "save whole ones"
        )
