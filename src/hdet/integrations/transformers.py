"""Transformers: a Trainer whose learning rate is found while it trains.

::

    trainer = HDETTrainer(model=model, args=args, train_dataset=dataset)   # AutoLR; no learning rate
    trainer.train()

The door is the Trainer's ``lr_scheduler``: logged, saved and resumed as one. Replicas converge before anybody
evaluates, saves or ends.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from hdet.auto_lr import AutoLR
from hdet.integrations import require
from hdet.integrations.carried import Carried
from hdet.probes import Probe

FLOOR = "5.1.0"
require("transformers", FLOOR)

from transformers import Trainer, TrainerCallback  # noqa: E402 — a version that is too old is named first

__all__ = ["HDETTrainer", "HDETTrainerMixin"]

logger = logging.getLogger("hdet")

#: Batches of each rank that are set aside for the probe where no dataset is given for it.
_ASIDE = 8
#: What a door is given, if it asks for it by name.
_GIVEN = ("total_steps", "model", "probe")

if TYPE_CHECKING:
    from transformers import Trainer as _Base  # what it is mixed into
else:
    _Base = object


class HDETTrainerMixin(_Base):
    """For any Trainer: ``class Mine(HDETTrainerMixin, SFTTrainer): ...``.

    ``args.learning_rate`` and ``args.lr_scheduler_type`` are not read, but for what the door makes of the
    optimizer's ``lr``. When training is over the model holds the best weights that a search has seen
    (``finish_``), unless ``args.load_best_model_at_end`` chooses otherwise.

    Args:
        hdet: ``"auto_lr"``, or what builds the door from the optimizer and, by name, whichever of
            ``total_steps``, ``model`` and ``probe`` it names: ``partial(hdet.AutoLR, schedule="cosine")``,
            ``partial(hdet.OneCycleAutoLR, max_lr=1e-3, ensemble_lr_spread_ratio=1 / 9)``.
        probe_dataset: what the probe measures, never trained on and not reported as validation. None sets
            eight batches of each rank aside from ``train_dataset`` where a door needs a probe; give one if
            runs are to go on with more ranks, which would set more aside.
    """

    lr_scheduler: Any
    train_dataset: Any

    def __init__(
        self,
        *args: Any,
        hdet: Literal["auto_lr"] | Callable[..., Any] = "auto_lr",
        probe_dataset: Dataset[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._name = type(self).__name__
        if hdet != "auto_lr" and not callable(hdet):
            raise TypeError(
                f"{self._name}: hdet must be 'auto_lr' or a callable that builds a door, got {hdet!r}; write "
                "functools.partial(hdet.AutoLR, …)"
            )
        self._make: Callable[..., Any] = AutoLR if hdet == "auto_lr" else hdet
        self._refuse()
        self._set_aside = 0
        self._probe_dataset = probe_dataset
        trains = self.train_dataset is not None  # or only evaluates
        if trains and probe_dataset is None and "probe" in self._asked():
            self._probe_dataset = self._take_aside()
        elif probe_dataset is not None and "probe" not in self._asked():
            raise ValueError(
                f"{self._name}: probe_dataset was given, and hdet takes no argument named probe; leave it out"
            )
        #: This rank's losses of the accumulation in progress, and what makes them whole.
        self._losses: Tensor | None = None
        self._share: Tensor | float = 1.0
        self.add_callback(_AtTheEnd(self))

    @property
    def door(self) -> Any:
        """The AutoLR, or whatever was asked for; None before ``train()``."""
        return self.lr_scheduler.door if isinstance(self.lr_scheduler, Carried) else None

    # ------------------------------------------------------------------ what is built

    def _refuse(self) -> None:
        if self.is_deepspeed_enabled:
            raise TypeError(
                f"{self._name}: the optimizer must be torch's own, whose steps can be followed, and "
                "DeepSpeed steps flat partitions of its own; leave deepspeed out, or use fsdp instead"
            )
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        if plugin is not None and getattr(plugin, "fsdp_version", 1) != 2:
            raise TypeError(
                f"{self._name}: fsdp must be of version 2, whose parameters say on which ranks they lie, got "
                f"version {plugin.fsdp_version}; set fsdp_config={{'version': 2}}"
            )
        if self.lr_scheduler is not None:
            raise ValueError(
                f"{self._name}: optimizers must be (optimizer, None), for the door is the scheduler, got a "
                f"{type(self.lr_scheduler).__name__}; build it with hdet="
            )
        kind = getattr(self.args.lr_scheduler_type, "value", self.args.lr_scheduler_type)
        own = kind != "linear" or self.args.get_warmup_steps(1000) > 0
        if own and self.is_world_process_zero():
            logger.warning(
                "%s: lr_scheduler_type=%r and warm-up are not read: the door has a schedule of its own, such "
                "as hdet=partial(hdet.AutoLR, schedule='cosine')",
                self._name,
                kind,
            )

    def _asked(self) -> list[str]:
        """What the door wants by name. What a partial binds is settled; a probe that it can do without is
        wanted if there is a dataset for it."""
        parameters = inspect.signature(self._make).parameters
        bound = getattr(self._make, "keywords", {})
        asked = [name for name in _GIVEN if name in parameters and name not in bound]
        needed = "probe" in asked and parameters["probe"].default is inspect.Parameter.empty
        return asked if needed or self._probe_dataset is not None else [n for n in asked if n != "probe"]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The door, once the model is wrapped and the optimizer prepared."""
        if self.lr_scheduler is None:
            # Accelerate's own list: the Trainer does not know the wrapped model yet. Who shares gradients is
            # seen on it.
            wrapped = self.accelerator._models[-1] if self.accelerator._models else self.model
            model = getattr(wrapped, "_orig_mod", wrapped)
            given: dict[str, Any] = {"total_steps": num_training_steps, "model": model}
            asked = self._asked()
            if "probe" in asked:
                given["probe"] = Probe(self._probe_loss, self._probe_loader(), model=model)
            door = self._make(optimizer or self.optimizer, **{name: given[name] for name in asked})
            self.lr_scheduler = _Scheduler(self, door)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    # ------------------------------------------------------------------ the probe

    def _take_aside(self) -> Dataset[Any]:
        data = self.train_dataset
        if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            raise ValueError(
                f"{self._name}: a probe needs samples that are not trained on, and train_dataset must have "
                f"numbered ones to set some aside, got {type(data).__name__}; give probe_dataset"
            )
        wanted = _ASIDE * self._train_batch_size * self.args.world_size
        total = len(data)
        if 2 * wanted > total:
            raise ValueError(
                f"{self._name}: to set {wanted:,} samples aside for the probe ({_ASIDE} batches of each "
                f"rank) train_dataset must have at least {2 * wanted:,}, got {total:,}; give probe_dataset"
            )
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        # Fewer ranks set aside a part of what more ranks do, so that nothing is measured that was trained on.
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).tolist()
        self._set_aside = wanted
        self.train_dataset = _chosen(data, sorted(order[wanted:]))
        return _chosen(data, order[:wanted])

    def _probe_loader(self) -> DataLoader[Any]:
        """This rank's batches, as many on each. Not Accelerate's loader: one that is left half read would
        count as the one in progress."""
        data: Any = self._probe_dataset
        world, rank = self.args.world_size, self.args.process_index
        size = min(self._train_batch_size, len(data) // world)
        if size == 0:
            raise ValueError(
                f"{self._name}: probe_dataset must have a sample for each of {world} ranks, got {len(data)}"
            )
        own = Subset(data, range(rank, len(data) // world * world, world))
        # Columns that the model does not take are left out, as in training; there is no public name for it.
        collate = self._get_collator_with_removed_columns(self.data_collator, description="probe")
        return DataLoader(own, batch_size=size, collate_fn=collate, drop_last=True)

    def _probe_loss(self, batch: Any) -> Tensor:
        """The loss of a batch, as the Trainer's own evaluation takes it, of this rank alone."""
        inputs = self._prepare_inputs(batch)
        with self._this_rank_alone(), self.compute_loss_context_manager():
            count = self._get_num_items_in_batch([inputs], self.args.device)
            loss: Tensor = self.compute_loss(self.model, inputs, num_items_in_batch=count)
        return loss.mean()

    @contextmanager
    def _this_rank_alone(self) -> Iterator[None]:
        """Within, tokens are counted on this rank, not over all of them."""
        before = self.args.average_tokens_across_devices
        self.args.average_tokens_across_devices = False
        try:
            yield
        finally:
            self.args.average_tokens_across_devices = before

    # ------------------------------------------------------------------ this rank's own loss

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """An accumulation begins; the last one of an epoch is shorter.

        Where losses are divided by the tokens of all ranks, one with more tokens than others would seem to
        have a higher loss: each is told by its own.
        """
        batches, count = super().get_batch_samples(*args, **kwargs)
        self._losses, self._share = None, 1.0
        if count is not None and self.args.average_tokens_across_devices and self.args.world_size > 1:
            with self._this_rank_alone():
                own = self._get_num_items_in_batch(batches, self.args.device)
            self._share = count / own / (self.accelerator.num_processes // self.get_tp_size())
        return batches, count

    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """As the Trainer's; the loss is kept. Its micro-batches add up to that of the step."""
        loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        own = loss.detach()
        self._losses = own if self._losses is None else self._losses + own
        return loss

    def take_loss(self) -> Tensor | None:
        """This rank's own mean loss of the step just taken; None for an optimizer that steps by itself."""
        loss, self._losses = self._losses, None
        return None if loss is None else loss * self._share

    # ------------------------------------------------------------------ together before anybody looks

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """At the mean of the replicas."""
        with self._looked_at():
            return super().evaluate(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """At the mean of the replicas."""
        with self._looked_at():
            return super().predict(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """The mean of the replicas; within a checkpoint it comes first, so that optimizer and door follow."""
        with self._looked_at():
            super().save_model(*args, **kwargs)

    @contextmanager
    def _looked_at(self) -> Iterator[None]:
        # After training replicas are one, and one rank may save by itself: nobody waits for others then.
        if self.is_in_train and isinstance(self.lr_scheduler, Carried):
            with self.lr_scheduler.looked_at():
                yield
        else:
            yield

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        # No public name is called on every rank with the folder; rng_state_N.pth are written beside it alike.
        if isinstance(self.lr_scheduler, Carried):
            self.lr_scheduler.save_own(output_dir)
        super()._save_optimizer_and_scheduler(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if isinstance(self.lr_scheduler, Carried):
            self.lr_scheduler.folder = None if checkpoint is None else Path(checkpoint)
        super()._load_optimizer_and_scheduler(checkpoint)


class HDETTrainer(HDETTrainerMixin, Trainer):
    """A Trainer that needs no learning rate; the arguments are those of both.

    Example::

        args = TrainingArguments("out", max_steps=1000, per_device_train_batch_size=8)
        trainer = HDETTrainer(model=model, args=args, train_dataset=dataset)
        trainer.train()
        print(trainer.door.best)
    """

    __doc__ += (HDETTrainerMixin.__doc__ or "")[(HDETTrainerMixin.__doc__ or "").index("\n    Args:") :]


class _Scheduler(Carried):
    """The Trainer's scheduler: it is stepped without a loss, and fetches it."""

    def __init__(self, trainer: Any, door: Any) -> None:
        super().__init__(trainer._name, door)
        self._trainer = trainer

    def step(self, *_: object) -> Any:
        record = super().step(self._trainer.take_loss())
        if getattr(self.door, "finished", False):
            # The step that is being taken is the last: what the Trainer does at its end, it does after it.
            self._trainer.state.max_steps = self._trainer.state.global_step + 1
        return record

    def get_last_lr(self) -> list[Any]:
        """The base learning rates; an Ensemble has no such name."""
        return [group["lr"] for group in self._trainer.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "set_aside": self._trainer._set_aside}

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        before, now = state.get("set_aside", 0), self._trainer._set_aside
        if now > before > 0 and self._trainer.is_world_process_zero():
            logger.warning(
                "%s: the probe measures %d samples now, and %d when the checkpoint was written: the others "
                "were trained on; give probe_dataset",
                self._trainer._name,
                now,
                before,
            )


class _AtTheEnd(TrainerCallback):
    """However training ends, the replicas are one model then."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
        scheduler = self._trainer.lr_scheduler
        if control.should_training_stop and isinstance(scheduler, Carried):
            scheduler.converge()

    on_epoch_end = on_step_end

    def on_train_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
        scheduler = self._trainer.lr_scheduler
        if not isinstance(scheduler, Carried):
            return
        scheduler.converge()
        if getattr(scheduler.door, "keeps", False) and not args.load_best_model_at_end:
            scheduler.door.finish_()


def _chosen(data: Any, numbers: list[int]) -> Dataset[Any]:
    """Some samples of a dataset, as a dataset of its own kind where it has one."""
    chosen: Dataset[Any] = data.select(numbers) if hasattr(data, "select") else Subset(data, numbers)
    return chosen
