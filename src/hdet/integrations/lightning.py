"""Lightning: a callback that steps hdet once for every optimizer step, and keeps checkpoints whole.

::

    trainer = L.Trainer(max_epochs=10, callbacks=[HDETCallback()])  # AutoLR; no learning rate
    trainer.fit(module, loader)

Unlike a scheduler in ``configure_optimizers``, a callback makes the probe, passes on the training loss,
averages replicas before their weights are read, and stops training when a search has ended. The best weights
are loaded after the last step, before Lightning validates and saves, so that the files hold them. An
``AutoLR`` in one process may also be returned as ``{"scheduler": auto, "interval": "step"}``.

Inside ``training_step``, ``group["lr"]`` is this replica's own: Lightning runs it in the optimizer's step.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler

from hdet.integrations import require

require("lightning", "2.4")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, ModelCheckpoint  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy  # noqa: E402
from lightning.pytorch.utilities import CombinedLoader  # noqa: E402
from torchmetrics import Metric  # noqa: E402

from hdet.autolr.search import Search  # noqa: E402
from hdet.integrations.checkpointing import WrappedScheduler  # noqa: E402
from hdet.integrations.methods import (  # noqa: E402
    Method,
    begin_own_gradients,
    build,
    builder_of,
    cools_down,
    sharing_of,
)
from hdet.integrations.trackers import Tracker  # noqa: E402
from hdet.probes import Probe  # noqa: E402
from hdet.removed import Renamed, explains_calls  # noqa: E402

__all__ = ["HDETCallback"]

logger = logging.getLogger("hdet")

#: Under these names a checkpoint holds the door's state, and what its weights are if ``finish_`` loaded them.
_KEY, _BEST = "hdet", "hdet_best"
#: Batches that the probe takes where none is given.
_PROBE_BATCHES = 8


class HDETCallback(Callback):
    """Steps a door (AutoLR, AutoTune, OneCycleAutoLR, Ensemble) in Lightning's training loop.

    It runs AutoLR unless ``method="published"`` asks for the paper's HDET.

    Every optimizer step is one step of the door, with this rank's own training loss, the mean over the
    batches it accumulated. Replicas are averaged before a validation, a checkpoint and the end. The state is
    in the checkpoint: a resumed run equals the unbroken one (of replicas that diverge, only from a window's
    end; within an epoch, with a loader that has a ``state_dict``: with any other Lightning itself begins the
    epoch's batches again). A search that has ended loads the best weights (``finish_``) before Lightning
    validates and saves for the last time, and stops training. ``EarlyStopping`` ends the search: the
    learning rate decays, and then training stops.

    Args:
        method: ``"autolr"`` finds the learning rate, of all optimizers. ``"autotune"`` finds weight decay,
            dropout and label smoothing as well, where the module has them; with the strategy ``ddp`` each
            process trains on its own once the loss stands. ``"published"`` is the paper's method,
            :class:`hdet.OneCycleAutoLR` with the optimizer's ``lr`` as its peak, the paper's spread, and
            auto-LR after a third of the run. All run for as many steps as the trainer expects, and are shown
            by Lightning's loggers. Or a callable from the module and its optimizers to the door, called when
            a fit begins, after the process group was made.
        probe: for ``"autolr"`` and ``"autotune"``: a :class:`hdet.Probe`, or a callable from the module to
            one; its loss must move batches to the device, and cast. None takes eight batches of the
            validation data; without validation data, it sets eight batches of the training data aside. Its
            loss is what ``training_step`` returns (``validation_step``, if optimization is manual), called
            without what it logs.
        choose_by: of the probe that is made here: a metric, from a batch on the module's device to a number
            of which higher is better. By it the best weights are chosen, and not by the loss, which goes on
            judging the learning rate: ``lambda batch: accuracy(module(batch[0]), batch[1])``.

    Attributes:
        auto: what was built; None before the first fit.
    """

    door = Renamed("0.3.0", "auto")

    @explains_calls
    def __init__(
        self,
        method: Method = "autolr",
        *,
        probe: Probe | Callable[[LightningModule], Probe] | None = None,
        choose_by: Callable[[Any], Tensor | float] | None = None,
    ) -> None:
        self._make = builder_of("HDETCallback", method)
        if probe is not None and method not in ("autolr", "autotune"):
            raise ValueError(
                "HDETCallback: probe goes with method='autolr' and 'autotune', and a callable brings its "
                f"own, got method={method!r} and probe={probe!r}; leave it out"
            )
        if choose_by is not None and (probe is not None or method not in ("autolr", "autotune")):
            raise ValueError(
                "HDETCallback: choose_by goes with the probe that HDETCallback makes, got "
                f"method={method!r} and probe={probe!r}; give it to your own, hdet.Probe(..., choose_by=...)"
            )
        self.auto: Any = None
        self._wrapped: WrappedScheduler | None = None
        self._method = method
        self._probe, self._choose_by = probe, choose_by
        self._saved: Mapping[str, Any] | None = None
        self._steps = 0
        self._losses: list[Tensor] = []
        #: Open while the model is at its base values.
        self._base = ExitStack()
        self._checked = self._failed = self._state_taken = self._warned_mid_window = False
        #: Whether training was about to stop before EarlyStopping was asked.
        self._stopping = False
        #: The files of the checkpoint callbacks as they were when the best weights were loaded; None before.
        self._files: dict[str, object] | None = None
        self._hook: Any = None

    # ------------------------------------------------------------------ a fit begins

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Have the last word in every hook of a fit."""
        _drop_last_word(trainer)  # of a fit that raised
        if stage == "fit":
            trainer.callbacks.append(_LastWord(self))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Build the door: optimizers and process group exist, and no optimizer state has been loaded."""
        optimizers = list(trainer.optimizers)
        in_ddp = isinstance(trainer.strategy.model, DistributedDataParallel)
        if callable(self._method):
            self.auto = self._make(pl_module, optimizers)
        else:
            # Too few for a search, but the code should run.
            too_few = trainer.fast_dev_run and self._method != "published"
            self.auto = build(
                self._make,
                optimizers[0] if len(optimizers) == 1 else optimizers,
                probe=self._probe_of(trainer, pl_module) if self._method != "published" else None,
                total_steps=None if too_few else _expected_steps(trainer, len(optimizers)),
                model=pl_module,
                **(sharing_of(self._make) if in_ddp else {}),
                history=[Tracker(each) for each in trainer.loggers],
            )
        if in_ddp:
            begin_own_gradients("HDETCallback", self.auto, trainer.global_rank, trainer.world_size)
        self._leave_ddp(trainer, pl_module)
        self._checked = self._failed = self._state_taken = self._stopping = False
        self._files = None
        self._losses, self._base = [], ExitStack()
        self._wrapped = WrappedScheduler("HDETCallback", self.auto)
        if isinstance(self.auto, LRScheduler) and trainer.lr_scheduler_configs:
            kinds = ", ".join(type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs)
            raise ValueError(
                f"HDETCallback: {type(self.auto).__name__} writes the learning rates, and so would the "
                f"scheduler that configure_optimizers returns, got {kinds}; return the optimizers alone"
            )

    def _probe_of(self, trainer: Trainer, pl_module: LightningModule) -> Probe:
        if self._probe is not None:
            return self._probe if isinstance(self._probe, Probe) else self._probe(pl_module)
        loss_of = _StepLoss(trainer, pl_module)
        choose_by = self._choose_by and partial(loss_of.metric, self._choose_by)
        batches = _validation_batches(trainer)
        if batches:
            said = f"{len(batches)} batches of the validation data, whose loss is then a little too low"
            probe = Probe(loss_of, batches, model=pl_module, choose_by=choose_by)
        else:
            said = f"{_PROBE_BATCHES} batches that are set aside from the training data"
            probe = _set_aside(trainer, pl_module, loss_of, choose_by)
        if trainer.is_global_zero:
            logger.info(
                "HDETCallback: the probe measures what %s returns on %s; HDETCallback(probe=...) takes "
                "others",
                *(loss_of.step.__name__, said),
            )
        return probe

    def _leave_ddp(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Where each process trains on gradients of its own, DDP is not needed any more. Its no_sync would
        not do: manual optimization undoes it."""
        ddp = isinstance(trainer.strategy.model, DistributedDataParallel)
        if ddp and getattr(self.auto, "trains_alone", False):
            trainer.strategy.model = pl_module

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the state for later: Lightning loads the optimizers after the callbacks. A test of a
        checkpoint leaves its weights in the module."""
        if trainer.state.fn == "fit":
            self._saved = checkpoint.get(_KEY)
        elif isinstance(self.auto, Search) and (best := self.auto.best) is not None:
            loaded = checkpoint.get(_BEST)
            if loaded is None or any(
                loaded[name] != getattr(best, name) for name in ("step", "kind", "loss")
            ):
                self.auto.weights_replaced()
                self._say(
                    trainer,
                    "the checkpoint that was loaded holds other weights than finish_() had loaded: auto.best "
                    "is None; callback.auto.finish_() loads the probe's choice again",
                )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the state, now that model and optimizers have theirs."""
        saved, self._saved = self._saved, None
        self._steps = trainer.global_step
        if saved is not None:
            self.auto.load_state_dict(saved)
        elif self._steps:
            raise ValueError(
                f"HDETCallback: fit resumes at step {self._steps}, and there is no state of "
                f"{type(self.auto).__name__} to continue from; resume from a checkpoint written with this "
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
        self.auto.step(_mean(losses))
        self._leave_ddp(trainer, pl_module)
        if (self.auto.apart or getattr(self.auto, "switches", False)) and not self._checked:
            self._checked = True
            _check_copies(self.auto, trainer)
        if getattr(self.auto, "finished", False):
            self._finish(trainer)  # before validation and checkpoints
            trainer.should_stop = True

    # ---------------------------------------------------------------------- the end

    def _finish(self, trainer: Trainer) -> None:
        """Load the best weights, once a fit."""
        self._converge()
        if isinstance(self.auto, Search) and self._files is None:
            self.auto.finish_()
            self._files = {path: _version(path) for _, path in _named_files(trainer)}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """EarlyStopping comes after this."""
        self._stopping = trainer.should_stop

    def take_early_stop(self, trainer: Trainer) -> None:
        """An early stop waits until the learning rate has decayed."""
        asks = any(isinstance(each, EarlyStopping) for each in trainer.callbacks)
        if asks and trainer.should_stop and not self._stopping:
            trainer.should_stop = not cools_down("HDETCallback", self.auto, "EarlyStopping")

    def check_files(self, trainer: Trainer) -> None:
        """What Lightning calls the last checkpoint holds the best weights, too; of any other that does not, a
        line of log says so."""
        if self._files is None or (best := self.auto.best) is None:
            return
        files = list(_named_files(trainer))
        old = [path for _, path in files if path in self._files and self._files[path] == _version(path)]
        old = trainer.strategy.broadcast(old)  # rank 0's: saving takes all ranks, and only it may have files
        for of, path in files:
            if path not in old:
                continue
            if path == of.last_model_path and of.save_last is True:
                trainer.save_checkpoint(path, of.save_weights_only)
            else:
                self._say(
                    trainer,
                    f"{Path(path).name} holds the weights of its own step, and the module the best ones (the "
                    f"{best.kind} of step {best.step}), which trainer.save_checkpoint(path) saves",
                )

    def _say(self, trainer: Trainer, text: str) -> None:
        if trainer.is_global_zero:
            logger.warning("HDETCallback: %s", text)

    # ------------------------------------------------------------------ weights are read

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """One model is validated, not each rank's."""
        self._stopping = trainer.should_stop
        if not trainer.sanity_checking:
            self._converge()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """One model is saved: weights in the checkpoint share the module's memory, and are averaged there."""
        if self.auto is None:
            return
        if self._failed and self.auto.apart:
            logger.warning(
                "HDETCallback: a checkpoint after an exception holds one rank's replica, not the mean"
            )
        elif not self._failed:  # after an exception other ranks may be gone: do not wait for them
            if self.auto.apart and isinstance(self.auto, Search) and self.auto.replicas.world_rank == 0:
                self._warn_mid_window()
            self._converge()
        self._state_taken = False
        checkpoint[_KEY] = self.auto.state_dict()
        if self._files is not None and (best := self.auto.best) is not None:
            checkpoint[_BEST] = asdict(best)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The module holds the mean, or the best weights of a search, wherever it was stopped."""
        self._warn_of_taken_state()
        self._finish(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Other ranks may be gone from now on."""
        self._failed = True

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remove the hook and the last word."""
        _drop_last_word(trainer)
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
        self._state_taken = self._state_taken or self.auto.apart

    def _warn_of_taken_state(self) -> None:
        """Lightning calls no callback for a checkpoint of weights alone, nor when a user reads the state."""
        if self._state_taken:
            self._state_taken = False
            logger.warning(
                "HDETCallback: step %d: the module's state_dict was taken while replicas differed, so it is "
                "one replica's; call callback.auto.converge() on all ranks first, or save a whole checkpoint",
                self._steps,
            )


class _LastWord(Checkpoint):
    """Comes after all other callbacks. EarlyStopping and checkpoint callbacks are called last at an epoch's
    end, and Lightning knows the latter by their class; this one writes nothing of its own."""

    def __init__(self, owner: HDETCallback) -> None:
        self._owner = owner

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._owner.take_early_stop(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._owner.take_early_stop(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._owner.check_files(trainer)


def _drop_last_word(trainer: Trainer) -> None:
    trainer.callbacks[:] = [each for each in trainer.callbacks if not isinstance(each, _LastWord)]


def _named_files(trainer: Trainer) -> Iterator[tuple[ModelCheckpoint, str]]:
    """What Lightning calls the best and the last checkpoint."""
    for each in trainer.checkpoint_callbacks:
        if isinstance(each, ModelCheckpoint):
            for path in dict.fromkeys((each.best_model_path, each.last_model_path)):
                if path:
                    yield each, path


def _version(path: str) -> object:
    """Differs once a file was written again; None where that cannot be seen, as in a remote store."""
    with suppress(OSError):
        return Path(path).stat().st_mtime_ns
    return None


# ---------------------------------------------------------------------- the probe where none is given


class _StepLoss:
    """The loss of a batch by the module's own step, which leaves no trace in what Lightning logs."""

    def __init__(self, trainer: Trainer, module: LightningModule) -> None:
        self._trainer, self._module = trainer, module
        # A manual training step would train.
        trains = module.automatic_optimization
        self.step = module.training_step if trains else module.validation_step
        precision = trainer.precision_plugin
        self._context = precision.train_step_context if trains else precision.val_step_context
        self._arguments = list(inspect.signature(self.step).parameters)
        if "dataloader_iter" in self._arguments:
            raise self._error("takes dataloader_iter, not a batch")

    def metric(self, choose_by: Callable[[Any], Any], batch: Any) -> Any:
        """What ``choose_by`` gives, on a batch as the module's step gets it."""
        trainer, module = self._trainer, self._module
        batch = trainer.precision_plugin.convert_input(batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)  # as Lightning's loops do
        batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        with _unlogged(module), self._context():
            return choose_by(batch)

    def __call__(self, batch: Any) -> Tensor:
        number = (0,) if len(self._arguments) > 1 else ()
        outputs = self.metric(lambda batch: self.step(batch, *number), batch)
        if (loss := _loss_of(outputs)) is None:
            raise self._error(f"returned {type(outputs).__name__} for a batch of the probe")
        return loss

    def _error(self, why: str) -> TypeError:
        return TypeError(
            f"HDETCallback: {type(self._module).__name__}.{self.step.__name__} must take a batch and return "
            f"its loss, or a dict with 'loss', to serve the probe, and it {why}; give "
            "HDETCallback(probe=hdet.Probe(loss_fn, batches, model=module))"
        )


@contextmanager
def _unlogged(module: LightningModule) -> Iterator[None]:
    """Within, ``self.log`` does nothing; after it, metrics of torchmetrics are as they were."""
    metrics = [each for each in module.modules() if isinstance(each, Metric)]
    # torchmetrics' own forward keeps its state in this way, and has no public name for it.
    kept = [
        {**each._copy_state_dict(), "_update_count": each._update_count, "_computed": each._computed}
        for each in metrics
    ]
    module.log = lambda *_, **__: None  # log_dict calls it, too
    try:
        yield
    finally:
        del module.log
        for metric, state in zip(metrics, kept, strict=True):
            for name, value in state.items():
                setattr(metric, name, value)


def _validation_batches(trainer: Trainer) -> list[Any]:
    """The first batches of the first validation loader, this rank's own; none where nothing is validated."""
    if not trainer.enable_validation:
        return []
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop.setup_data()
    first = CombinedLoader(trainer.val_dataloaders, "sequential").flattened[0]
    with torch.random.fork_rng(devices=[]):  # a loader draws a seed
        return list(islice(first, int(min(_PROBE_BATCHES, loop.max_batches[0]))))


def _set_aside(trainer: Trainer, module: LightningModule, loss_of: _StepLoss, choose_by: Any) -> Probe:
    """Take batches out of the training loader, before Lightning asks for it."""
    if trainer.reload_dataloaders_every_n_epochs:
        raise ValueError(
            "HDETCallback: to set batches aside, the training loader must stay the same, got "
            f"reload_dataloaders_every_n_epochs={trainer.reload_dataloaders_every_n_epochs}; give validation "
            "data, or HDETCallback(probe=...)"
        )
    source = trainer.fit_loop._data_source  # no public name; from here Lightning takes the loader
    probe, rest = Probe.set_aside(
        loss_of, source.dataloader(), model=module, batches=_PROBE_BATCHES, choose_by=choose_by
    )
    trainer.fit_loop._data_source = type(source)(rest, "")
    return probe


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
