"""Transformers: a Trainer that finds its learning rate while it trains.

::

    trainer = HDETTrainer(model=model, args=args, train_dataset=dataset)   # AutoLR; no learning rate
    trainer.train()

The door is the Trainer's ``lr_scheduler``, logged, saved and resumed as one. Replicas are averaged before
they are evaluated or saved. The best weights are loaded at the last step, before it is evaluated and saved,
so the last checkpoint holds them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from hdet.autolr.search import Search
from hdet.integrations import require
from hdet.integrations.checkpointing import WrappedScheduler
from hdet.integrations.methods import (
    Method,
    begin_own_gradients,
    build,
    builder_of,
    cools_down,
    in_ddp,
    needs,
    own_gradients,
    sharing_of,
    wants,
)
from hdet.probes import Probe
from hdet.probes.set_aside import samples_to_keep, warn_of_share
from hdet.removed import Renamed, explains_calls

require("transformers", "5.1.0")

# After require, which names a version that is too old.
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback  # noqa: E402

__all__ = ["HDETTrainer", "HDETTrainerMixin"]

logger = logging.getLogger("hdet")

#: Batches of each rank that are set aside for the probe where no dataset is given for it.
_PROBE_BATCHES = 8

if TYPE_CHECKING:
    from transformers import Trainer as _Base  # what it is mixed into
else:
    _Base = object


class HDETTrainerMixin(_Base):
    """For any Trainer: ``class Mine(HDETTrainerMixin, SFTTrainer): ...``.

    ``args.lr_scheduler_type`` is not used, nor is ``args.learning_rate`` unless the door reads the
    optimizer's ``lr``. At its last step a search loads the best weights it has seen (``finish_``), and the
    Trainer evaluates and saves those. With ``args.load_best_model_at_end`` that checkpoint is one of those
    that the Trainer's metric chooses from. ``EarlyStoppingCallback`` ends the search: the learning rate
    decays, and then training stops.

    Args:
        method: ``"autolr"`` finds the learning rate. ``"autotune"`` finds weight decay, dropout and label
            smoothing as well, where the model has them; in DDP each process trains on its own once the loss
            stands. ``"published"`` is the paper's method, :class:`hdet.OneCycleAutoLR` with
            ``args.learning_rate`` as its peak, the paper's spread, and auto-LR after a third of the run. Or a
            callable that builds the door from the optimizer and, by name, whichever of ``total_steps``,
            ``model`` and ``probe`` it takes: ``partial(hdet.AutoLR, schedule="cosine")``,
            ``partial(hdet.OneCycleAutoLR.paper, max_lr=9e-4, final_div_factor=5)``.
        probe_dataset: what the probe measures, never trained on and not reported as validation. None sets
            eight batches of each rank aside from ``train_dataset`` if the door needs a probe, a tenth of it
            at most (:meth:`hdet.Probe.set_aside`); give one if a run may resume with more ranks, which would
            set more aside.
        choose_by: a metric, from a batch, as the model gets it, to a number of which higher is better. By it
            the best weights are chosen, and not by the loss, which goes on judging the learning rate:
            ``lambda batch: accuracy(model(**batch).logits, batch["labels"])``.
    """

    lr_scheduler: Any
    train_dataset: Any

    @explains_calls
    def __init__(
        self,
        *args: Any,
        method: Method = "autolr",
        probe_dataset: Dataset[Any] | None = None,
        choose_by: Callable[[Any], Tensor | float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._name = type(self).__name__
        self._make = builder_of(self._name, method)
        self._check_arguments()
        self._samples_set_aside = 0
        #: Of what was set aside: smaller than in training where that would have been more than a tenth.
        self._probe_batch_size = 0
        self._probe_dataset, self._choose_by = probe_dataset, choose_by
        for name, value in (("probe_dataset", probe_dataset), ("choose_by", choose_by)):
            if value is not None and not wants(self._make, "probe"):
                raise ValueError(
                    f"{self._name}: {name} was given, and method={method!r} takes no argument named probe; "
                    "leave it out"
                )
        if probe_dataset is None and self.train_dataset is not None and needs(self._make, "probe"):
            self._probe_dataset = self._set_aside()
        #: The sum of this rank's losses in the current accumulation, and what turns it into their own mean.
        self._loss_sum: Tensor | None = None
        self._scale: Tensor | float = 1.0
        self.add_callback(_Ending(self))

    def add_callback(self, callback: Any) -> None:
        """As the Trainer's; ours stays the last one, so that it knows whether another asks to stop."""
        super().add_callback(callback)
        self.callback_handler.callbacks.sort(key=lambda each: isinstance(each, _Ending))

    @property
    def _wrapped(self) -> _Scheduler | None:
        return self.lr_scheduler if isinstance(self.lr_scheduler, _Scheduler) else None

    @property
    def auto(self) -> Any:
        """The AutoLR, or what ``method`` built; None before ``train()``."""
        return None if self._wrapped is None else self._wrapped.auto

    door = Renamed("0.3.0", "auto")

    # ------------------------------------------------------------------ what is built

    def _check_arguments(self) -> None:
        if self.is_deepspeed_enabled:
            raise TypeError(
                f"{self._name}: the optimizer must be torch's own, and DeepSpeed steps flat partitions; use "
                "fsdp instead"
            )
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        if plugin is not None and getattr(plugin, "fsdp_version", 1) != 2:
            raise TypeError(
                f"{self._name}: fsdp must be of version 2, got version {plugin.fsdp_version}; set "
                "fsdp_config={'version': 2}"
            )
        if self.lr_scheduler is not None:
            raise ValueError(
                f"{self._name}: optimizers must be (optimizer, None), for the door is the scheduler, got a "
                f"{type(self.lr_scheduler).__name__}; build it with method="
            )
        kind = getattr(self.args.lr_scheduler_type, "value", self.args.lr_scheduler_type)
        if (kind != "linear" or self.args.get_warmup_steps(1000) > 0) and self.is_world_process_zero():
            logger.warning(
                "%s: lr_scheduler_type=%r and warm-up are not used: the door has its own schedule, such as "
                "method=partial(hdet.AutoLR, schedule='cosine')",
                self._name,
                kind,
            )

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The door, once the model is wrapped and the optimizer prepared."""
        if self.lr_scheduler is None:
            # Accelerate's own list has the sharded model, which the Trainer does not know yet; of a model in
            # DDP it has the model itself.
            wrapped = self.accelerator._models[-1] if self.accelerator._models else self.model
            model = getattr(wrapped, "_orig_mod", wrapped)
            given: dict[str, Any] = {"total_steps": num_training_steps, "model": model}
            if self._probe_dataset is not None:
                choose_by = self._choose_by and self._probe_metric
                given["probe"] = Probe(
                    self._probe_loss, self._probe_loader(), model=model, choose_by=choose_by
                )
            if in_ddp(self.accelerator):
                given |= sharing_of(self._make)
            door = build(self._make, optimizer or self.optimizer, **given)
            if in_ddp(self.accelerator):
                who = self.args.process_index, self.args.world_size
                begin_own_gradients(self._name, door, *who, self.accelerator.scaler)
            self.lr_scheduler = _Scheduler(self, door)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # ------------------------------------------------------------------ the probe

    def _set_aside(self) -> Dataset[Any]:
        data = self.train_dataset
        if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            raise ValueError(
                f"{self._name}: train_dataset must have a length, to set samples aside for the probe, got "
                f"{type(data).__name__}; give probe_dataset"
            )
        total, world = len(data), self.args.world_size
        try:
            batches, size = samples_to_keep(total, _PROBE_BATCHES, self._train_batch_size, world)
        except ValueError:
            raise ValueError(
                f"{self._name}: train_dataset must have enough samples to set some aside for the probe of "
                f"{world} rank{'s' if world > 1 else ''}, got {total:,}; give probe_dataset"
            ) from None
        self._probe_batch_size = size
        wanted = batches * size * world
        if self.args.process_index == 0:
            warn_of_share(self._name, wanted, total, "samples")
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        # With fewer ranks these are the first of what more ranks set aside: none of them was trained on.
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).tolist()
        self._samples_set_aside = wanted
        self.train_dataset = _subset(data, sorted(order[wanted:]))
        return _subset(data, order[:wanted])

    def _probe_loader(self) -> DataLoader[Any]:
        """This rank's batches, as many on each rank. Not Accelerate's loader, which would count as the one in
        progress while it is half read."""
        data: Any = self._probe_dataset
        world, rank = self.args.world_size, self.args.process_index
        size = min(self._probe_batch_size or self._train_batch_size, len(data) // world)
        if size == 0:
            raise ValueError(
                f"{self._name}: probe_dataset must have a sample for each of {world} ranks, got {len(data)}"
            )
        own = Subset(data, range(rank, len(data) // world * world, world))
        # Leaves out columns that the model does not take, as in training; there is no public name for it.
        collate = self._get_collator_with_removed_columns(self.data_collator, description="probe")
        return DataLoader(own, batch_size=size, collate_fn=collate, drop_last=True)

    def _probe_loss(self, batch: Any) -> Tensor:
        """The loss of a batch as in the Trainer's own evaluation, of this rank alone."""
        inputs = self._prepare_inputs(batch)
        with self._count_own_tokens(), self.compute_loss_context_manager():
            count = self._get_num_items_in_batch([inputs], self.args.device)
            loss: Tensor = self.compute_loss(self.model, inputs, num_items_in_batch=count)
        return loss.mean()

    def _probe_metric(self, batch: Any) -> Any:
        with self.compute_loss_context_manager():
            return self._choose_by(self._prepare_inputs(batch))  # type: ignore[misc]  # there is one

    @contextmanager
    def _count_own_tokens(self) -> Iterator[None]:
        """Inside, tokens are counted on this rank, not over all of them."""
        before = self.args.average_tokens_across_devices
        self.args.average_tokens_across_devices = False
        try:
            yield
        finally:
            self.args.average_tokens_across_devices = before

    # ------------------------------------------------------------------ this rank's own loss

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """An accumulation begins; the last one of an epoch is shorter.

        Where losses are divided by the tokens of all ranks, a rank with more tokens would seem to have a
        higher loss: the scale turns it into the mean over its own tokens.
        """
        batches, count = super().get_batch_samples(*args, **kwargs)
        self._loss_sum, self._scale = None, 1.0
        if count is not None and self.args.average_tokens_across_devices and self.args.world_size > 1:
            with self._count_own_tokens():
                own = self._get_num_items_in_batch(batches, self.args.device)
            self._scale = count / own / (self.accelerator.num_processes // self.get_tp_size())
        return batches, count

    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """As the Trainer's, and keeps the loss; those of the micro-batches add up to that of the step."""
        with own_gradients(model, self.auto):
            loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        own = loss.detach()
        self._loss_sum = own if self._loss_sum is None else self._loss_sum + own
        return loss

    def take_loss(self) -> Tensor | None:
        """This rank's own mean loss of the last step; None for an optimizer that steps by itself."""
        loss, self._loss_sum = self._loss_sum, None
        return None if loss is None else loss * self._scale

    # ------------------------------------------------------------------ averaged before weights are read

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Of the averaged model."""
        with self._converged():
            return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """By the averaged model."""
        with self._converged():
            return super().predict(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """The averaged model, and the best weights if training is over. In a checkpoint it is saved before
        optimizer and door."""
        if self.is_in_train and self._wrapped is not None:
            if self.control.should_training_stop:
                self._wrapped.finish()
            if kwargs.get("_internal_call"):  # in a checkpoint
                self._wrapped.saved_at = self.state.global_step
        with self._converged():
            super().save_model(*args, **kwargs)

    def _converged(self) -> AbstractContextManager[None]:
        # After training the replicas are one model, and a rank may save alone: nothing must wait for others.
        wrapped = self._wrapped if self.is_in_train else None
        return nullcontext() if wrapped is None else wrapped.converged()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        # No public method is called on every rank with the folder.
        if self._wrapped is not None:
            self._wrapped.save_rank(output_dir)
        super()._save_optimizer_and_scheduler(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if self._wrapped is not None:
            self._wrapped.folder = None if checkpoint is None else Path(checkpoint)
        super()._load_optimizer_and_scheduler(checkpoint)


class HDETTrainer(HDETTrainerMixin, Trainer):
    """A Trainer that needs no learning rate; its arguments are Trainer's and :class:`HDETTrainerMixin`'s.

    It runs AutoLR unless ``method="published"`` asks for the paper's HDET.

    Example::

        args = TrainingArguments("out", max_steps=1000, per_device_train_batch_size=8)
        trainer = HDETTrainer(model=model, args=args, train_dataset=dataset)
        trainer.train()
        print(trainer.auto.best)
    """


class _Scheduler(WrappedScheduler):
    """The Trainer's scheduler: it is stepped without a loss, and takes it from the Trainer."""

    def __init__(self, trainer: Any, door: Any) -> None:
        super().__init__(trainer._name, door)
        self._trainer = trainer
        #: The steps at which the best weights were loaded, and at which the model was last saved.
        self.finished_at: int | None = None
        self.saved_at: int | None = None

    def finish(self) -> None:
        """The replicas become one model, with the best weights if the door is a search; once a training."""
        self.converge()
        if self.finished_at is None and hasattr(self.auto, "finish_"):
            self.auto.finish_()
            self.finished_at = self._trainer.state.global_step

    def step(self, *_: object) -> Any:
        record = super().step(self._trainer.take_loss())
        if getattr(self.auto, "finished", False):
            # The step in progress is the last one: the Trainer ends as usual after it.
            self._trainer.state.max_steps = self._trainer.state.global_step + 1
        return record

    def get_last_lr(self) -> list[Any]:
        """The base learning rates; an Ensemble has no such method."""
        return [group["lr"] for group in self._trainer.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "set_aside": self._trainer._samples_set_aside}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        before, now = state.get("set_aside", 0), self._trainer._samples_set_aside
        if now > before > 0 and self._trainer.is_world_process_zero():
            logger.warning(
                "%s: the probe measures %d samples now, and %d when the checkpoint was written: the others "
                "were trained on; give probe_dataset",
                self._trainer._name,
                now,
                before,
            )


class _Ending(TrainerCallback):
    """However training ends, the replicas are one model then, which holds the best weights. They are loaded
    before the Trainer evaluates and saves for the last time."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
        if control.should_training_stop and self._trainer._wrapped is not None:
            self._trainer._wrapped.finish()

    on_epoch_end = on_step_end

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: object) -> None:
        """An early stop waits until the learning rate has decayed."""
        auto = self._trainer.auto
        asks = any(
            isinstance(each, EarlyStoppingCallback)
            and each.early_stopping_patience_counter >= each.early_stopping_patience
            for each in self._trainer.callback_handler.callbacks
        )
        if control.should_training_stop and asks and state.global_step < state.max_steps:
            control.should_training_stop = not cools_down(self._trainer._name, auto, "EarlyStoppingCallback")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
        wrapped, auto = self._trainer._wrapped, self._trainer.auto
        if wrapped is None:
            return
        chosen = args.load_best_model_at_end and state.best_model_checkpoint is not None
        if not chosen:
            wrapped.finish()
        if not isinstance(auto, Search):
            return
        if chosen and state.best_global_step != wrapped.finished_at:
            auto.weights_replaced()
            self._say(
                "load_best_model_at_end has loaded %s, whose %s is %.4g, in place of what the probe chose; "
                "auto.best is None, and trainer.auto.finish_() loads the probe's choice",
                Path(state.best_model_checkpoint).name,
                args.metric_for_best_model,
                state.best_metric,
            )
        elif not chosen and wrapped.saved_at not in (None, wrapped.finished_at) and auto.best is not None:
            self._say(
                "the model holds the best weights (the %s of step %d), and checkpoint-%d, the last one, "
                "those of its own step; trainer.save_model(folder) saves the best",
                *(auto.best.kind, auto.best.step, wrapped.saved_at),
            )

    def _say(self, text: str, *values: object) -> None:
        if self._trainer.is_world_process_zero():
            logger.warning("%s: " + text, self._trainer._name, *values)


def _subset(data: Any, numbers: list[int]) -> Dataset[Any]:
    """Some samples of a dataset; ``datasets.Dataset`` has its own way."""
    chosen: Dataset[Any] = data.select(numbers) if hasattr(data, "select") else Subset(data, numbers)
    return chosen
