"""The same small regression trained by Lightning and by a plain loop, on one rank or several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import hdet
from hdet.integrations.lightning import HDETCallback
from tests.standing import standing

STEPS, SIZE = 80, 8
Batch = list[Tensor]


def samples(count: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(count))
    return x, torch.sin(x[:, :1]) + x[:, 1:2]


def training_set(ranks: int) -> TensorDataset:
    """Twenty batches an epoch for each rank."""
    return TensorDataset(*samples(20 * SIZE * ranks))


def loader() -> DataLoader[Any]:
    return DataLoader(training_set(1), batch_size=SIZE)


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        #: The weights that each validation saw, by step; and what the replica's groups held in training.
        self.validated: dict[int, Tensor] = {}

    def loss_of(self, batch: Batch) -> Tensor:
        return F.mse_loss(self.net(batch[0]), batch[1])

    def forward(self, batch: Batch) -> Tensor:
        return self.loss_of(batch)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.loss_of(batch)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            self.validated[self.trainer.global_step] = flat(self)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Manual(Regression):
    """One optimizer, or one for each layer; with ``alternate`` they take turns, as a GAN's do."""

    automatic_optimization = False

    def __init__(self, optimizers: int = 1, *, alternate: bool = False) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.count, self.alternate = optimizers, alternate

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        optimizers = self.optimizers() if self.count > 1 else [self.optimizers()]
        loss = self.loss_of(batch)
        self.manual_backward(loss)
        for i, optimizer in enumerate(optimizers):
            if not self.alternate or batch_idx % self.count == i:
                optimizer.step()
                optimizer.zero_grad()
        return loss

    def configure_optimizers(self) -> Any:
        if self.count == 1:
            return super().configure_optimizers()
        return [torch.optim.AdamW(self.net[i].parameters(), lr=1e-2) for i in (0, 2)]


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]).clone()


def probe_of(module: Any) -> hdet.Probe:
    torch.manual_seed(1)
    x, y = samples(64)
    batches = list(zip(x.split(16), y.split(16), strict=True))
    return hdet.Probe(module.loss_of, batches, model=module)


def auto_lr(module: Any, optimizers: Any, **options: Any) -> hdet.AutoLR:
    return hdet.AutoLR(optimizers, probe=probe_of(module), **{"total_steps": STEPS, **options})


def one_cycle(module: Any, optimizers: Any, **options: Any) -> hdet.OneCycleAutoLR:
    own: dict[str, Any] = {"max_lr": 0.05, "total_steps": STEPS, "ensemble_lr_spread_ratio": 0.3}
    own |= {"enable_auto_lr": True, "auto_lr_warmup_steps": 0, "model_sync_interval": 7, "model": module}
    return hdet.OneCycleAutoLR(optimizers[0], **{**own, **options})


def auto_tune(module: Any, optimizers: Any, **options: Any) -> hdet.AutoTune:
    given = {"probe": probe_of(module), "total_steps": STEPS, "gradients": "all", **options}
    return standing(hdet.AutoTune(optimizers, [hdet.WeightDecay()], **given))


DOORS: dict[str, Callable[..., Any]] = {"auto_lr": auto_lr, "auto_tune": auto_tune, "one_cycle": one_cycle}


class Noted:
    """A door's builder that notes what the door decides."""

    def __init__(self, build: Callable[..., Any], **options: Any) -> None:
        self._build, self._options = build, options
        self.lines: list[dict[str, Any]] = []

    def __call__(self, module: Any, optimizers: Any) -> Any:
        return self._build(module, optimizers, history=self.lines.append, **self._options)

    @property
    def decisions(self) -> list[Any]:
        kept = ("step", "round", "losses", "weights", "hyperparameters", "horizon", "held_out")
        return [{key: line[key] for key in kept} for line in self.lines if "kind" not in line]


def trainer(*callbacks: Any, **options: Any) -> pl.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    own = {"accelerator": "cpu", "devices": 1, "max_epochs": 4, "enable_checkpointing": False}
    if any(isinstance(each, ModelCheckpoint) for each in callbacks):
        own["enable_checkpointing"] = True
    if dist.is_initialized() and dist.get_world_size() > 1:
        own |= {"strategy": "ddp", "devices": dist.get_world_size()}
    return pl.Trainer(callbacks=list(callbacks), **{**quiet, **own, **options})


@contextmanager
def as_torchrun(rank: int) -> Iterator[None]:
    """The group is there already; Lightning asks the environment who it is."""
    size = str(dist.get_world_size())
    env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    env |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "hdet", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def by_lightning(
    build: Any, *callbacks: Any, ranks: int = 1, module: Regression | None = None, **options: Any
) -> tuple[Regression, HDETCallback]:
    fit = {key: options.pop(key) for key in ("ckpt_path", "val_dataloaders") if key in options}
    module = Regression() if module is None else module
    callback = build if isinstance(build, HDETCallback) else HDETCallback(build)
    # Lightning would shuffle a DataLoader over several ranks.
    data = options.pop("loader", None) or (loader() if ranks == 1 else Resumable(dist.get_rank(), ranks))
    trainer(callback, *callbacks, **options).fit(module, data, **fit)
    return module, callback


def by_hand(
    build: Any, *, rank: int = 0, ranks: int = 1, epochs: int = 4, accumulate: int = 1
) -> tuple[Regression, Any]:
    """What Lightning does, written out."""
    module = Regression()
    optimizer = module.configure_optimizers()
    model: nn.Module = DistributedDataParallel(module) if ranks > 1 else module
    door = build(module, [optimizer])
    x, y = (tensor[rank::ranks] for tensor in training_set(ranks).tensors)
    for _ in range(epochs):
        batches = list(zip(x.split(SIZE), y.split(SIZE), strict=True))
        while batches:
            group, batches = batches[:accumulate], batches[accumulate:]
            losses = []
            for i, batch in enumerate(group):
                sums = i + 1 == len(group) or ranks == 1
                with nullcontext() if sums else model.no_sync():  # type: ignore[operator]
                    loss = model(list(batch))
                    (loss / accumulate).backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            door.step(torch.stack(losses).mean() if len(losses) > 1 else losses[0])
    if door.apart:
        door.converge()
    if getattr(door, "finished", False):
        door.finish_()
    return module, door


class Resumable:
    """A loader that can go on within an epoch, as Lightning asks of those that can."""

    def __init__(self, rank: int = 0, ranks: int = 1) -> None:
        x, y = (tensor[rank::ranks] for tensor in training_set(ranks).tensors)
        self._batches = [list(batch) for batch in zip(x.split(SIZE), y.split(SIZE), strict=True)]
        self._at = 0

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for i in range(self._at, len(self._batches)):
            self._at = (i + 1) % len(self._batches)  # whoever knows the length does not ask beyond it
            yield self._batches[i]

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]


def checkpoint_weights(path: Path) -> Tensor:
    saved = torch.load(path, weights_only=True)["state_dict"]
    return torch.cat([value.reshape(-1) for value in saved.values()])
