"""How a fit of Lightning ends: every file at the end holds what ``finish_`` loaded, or a line says what it
holds; an early stop decays first. And ``HDETCallback()``, which makes its probe itself."""

from __future__ import annotations

import logging
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning", reason="Lightning is not installed")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint, Timer
from lightning.pytorch.loggers import CSVLogger
from torchmetrics import MeanMetric

import hdet
from hdet.integrations.lightning import HDETCallback
from hdet.replicas.launch import LocalProcesses
from tests.distributed.classifier import listening
from tests.integrations import lightning_runs as runs
from tests.integrations.lightning_runs import as_torchrun, checkpoint_weights, flat

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}Warning") for kind in ("User", "Deprecation", "Future")
]


def noise(seed: int, count: int) -> TensorDataset:
    """Nothing can be learnt of it: the best weights on other samples come early."""
    draw = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 6, generator=draw), torch.randn(count, 1, generator=draw))


class Memorizes(runs.Regression):
    """A wide net for a few noisy samples, which logs as users do."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(6, 256), nn.Tanh(), nn.Linear(256, 1))
        self.mean = MeanMetric()
        self.seen: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.mean.update(loss.detach())
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        self.log("train_mean", self.mean, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.log("val_loss", loss)
        return loss

    test_step = validation_step


def probe_of(module: Any) -> hdet.Probe:
    torch.manual_seed(1)
    x, y = noise(3, 128).tensors
    batches = list(zip(x.split(16), y.split(16), strict=True))
    return hdet.Probe(module.loss_of, batches, model=module)


def loaders(count: int = 16) -> tuple[DataLoader[Any], DataLoader[Any]]:
    return DataLoader(noise(1, count), batch_size=8), DataLoader(noise(2, 64), batch_size=8)


def ended(rank: int, size: int, folder: str, saves: dict[str, Any], *callbacks: Any) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    train, valid = loaders(16 * size)
    module, ours = Memorizes(), HDETCallback(probe=probe_of)
    checkpoint = ModelCheckpoint(folder, **saves)
    with as_torchrun(rank), listening() as said:
        trainer = runs.trainer(ours, checkpoint, *callbacks, max_epochs=40)
        trainer.fit(module, train, valid)
        after = {"memory": flat(module), "best": ours.auto.best, "steps": trainer.global_step}
        paths = checkpoint.best_model_path, checkpoint.last_model_path  # a test sets them back
        trainer.save_checkpoint(f"{folder}/by-hand.ckpt")
        trainer.test(module, valid, ckpt_path="best", verbose=False)
        tested, claimed = flat(module), ours.auto.best
        ours.auto.finish_()
    return {
        **after,
        "tested": tested,
        "claimed": claimed,
        "finished": flat(module),
        "paths": paths,
        "said": [line for line in said if line.startswith("HDETCallback")],
        "lr": ours.auto.get_last_lr()[0],
    }


SAVES = {
    "the last": {"save_last": True},
    "every 30": {"every_n_train_steps": 30, "save_last": True},  # not at the end
    "the best": {"monitor": "val_loss", "save_last": True},
    "the worst": {"monitor": "val_loss", "mode": "max", "save_last": True},
    "weights": {"save_weights_only": True, "save_last": True},
}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("saves", SAVES)
def test_files_memory_and_best_are_the_same_weights(
    ranks: LocalProcesses, tmp_path: Path, saves: str, size: int
) -> None:
    results = ranks.run(ended, size, str(tmp_path), SAVES[saves], size=size)
    for result in results:
        assert result["best"].step < 80, "the last step's weights would be the easy case"
        assert math.isfinite(result["best"].estimate)
        assert torch.equal(result["memory"], result["finished"])
        assert torch.equal(result["memory"], results[0]["memory"])
    best, last = results[0]["paths"]
    memory = results[0]["memory"]
    assert torch.equal(checkpoint_weights(tmp_path / "by-hand.ckpt"), memory)
    assert torch.equal(checkpoint_weights(Path(last)), memory)
    tells = [line for line in results[0]["said"] if "holds the weights of its own step" in line]
    if torch.equal(checkpoint_weights(Path(best)), memory):
        assert not tells
        assert torch.equal(results[0]["tested"], memory)
        assert results[0]["claimed"] == results[0]["best"]
    else:
        assert saves in ("every 30", "the best", "the worst")
        (line,) = tells
        assert f"{Path(best).name} holds" in line
        assert "which trainer.save_checkpoint(path) saves" in line
        for result in results:
            assert result["claimed"] is None, "the weights in the module are another checkpoint's"
        said = results[0]["said"]
        assert any("callback.auto.finish_() loads the probe's choice again" in line for line in said)


def test_a_fit_that_is_stopped_ends_with_the_best_weights(tmp_path: Path) -> None:
    """By anything but EarlyStopping: at once."""
    module, ours = Memorizes(), HDETCallback(probe=probe_of)
    train, valid = loaders()
    saves = ModelCheckpoint(tmp_path, every_n_train_steps=10, save_last=True)
    with listening() as said:
        runs.trainer(ours, saves, Stops(25), max_epochs=40).fit(module, train, valid)
    assert ours.auto.steps == 25
    assert ours.auto.best.step < 25
    assert torch.equal(checkpoint_weights(tmp_path / "last.ckpt"), flat(module))
    assert sum("holds the weights of its own step" in line for line in said) == 1


class Stops(pl.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = trainer.should_stop or trainer.global_step == self.step


# ---------------------------------------------------------------------- an early stop


def impatient(**settings: Any) -> EarlyStopping:
    """Calls nothing an improvement."""
    return EarlyStopping("val_loss", patience=1, min_delta=100.0, **settings)


@pytest.mark.parametrize(("epochs", "end"), [(40, 28), (13, 26)])
@pytest.mark.parametrize("at_epoch_end", [True, False])
@pytest.mark.parametrize("size", [1, 2])
def test_an_early_stop_decays_first(
    ranks: LocalProcesses, tmp_path: Path, epochs: int, end: int, at_epoch_end: bool, size: int
) -> None:
    """It is asked for in the ninth epoch of two steps, and the decay takes ten, or what is left of the
    run."""
    for steps, lr, lines in ranks.run(stopped_early, size, epochs, at_epoch_end, size=size):
        assert steps == end
        assert lr == 0.0
        if lines is not None:
            (line,) = lines
            assert line.endswith(f"asks to stop: the learning rate decays and training ends at step {end}")


def stopped_early(rank: int, size: int, epochs: int, at_epoch_end: bool) -> tuple[int, float, Any]:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    train, valid = loaders(16 * size)
    ours = HDETCallback(probe=probe_of)
    stops = EarlyStopping("val_loss", patience=8, min_delta=100.0, check_on_train_epoch_end=at_epoch_end)
    with as_torchrun(rank), listening() as said:
        trainer = runs.trainer(stops, ours, max_epochs=epochs)
        trainer.fit(Memorizes(), train, valid)
    lines = [line for line in said if "EarlyStopping" in line] if rank == 0 else None
    return ours.auto.steps, ours.auto.get_last_lr()[0], lines


def test_a_timer_stops_at_once_even_while_it_decays() -> None:
    ours, timer = HDETCallback(probe=probe_of), Timer(duration={"hours": 1})
    train, valid = loaders()
    stops = EarlyStopping("val_loss", patience=8, min_delta=100.0)
    runs.trainer(stops, ours, timer, Stops(25), max_epochs=40).fit(Memorizes(), train, valid)
    assert ours.auto.steps == 25


# ---------------------------------------------------------------------- without an argument


class Notes(pl.Callback):
    """What Lightning has logged of each epoch, and the batches that were trained on."""

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []
        self.rows: set[tuple[float, ...]] = set()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.rows |= {tuple(row.tolist()) for row in batch[0]}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.epochs.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def fitted(*callbacks: Any, valid: Any = None, **options: Any) -> tuple[Any, list[str]]:
    module = Memorizes()
    train = DataLoader(TensorDataset(*runs.samples(160)), batch_size=8)
    with listening() as said:
        runs.trainer(*callbacks, **{"max_epochs": 4, **options}).fit(module, train, valid)
    return module, said


def test_a_few_validation_batches_are_the_probe(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hdet")
    ours, notes = HDETCallback(), Notes()
    valid = DataLoader(TensorDataset(*runs.samples(96)), batch_size=8)
    module, said = fitted(ours, notes, valid=valid)
    assert ours.auto.steps == 80, "nothing is taken from the training data"
    assert math.isfinite(ours.auto.best.estimate)
    assert any("training_step returns on 8 batches of the validation data" in line for line in said)
    # The same run with a loss of one's own has the same weights, and logs the same.
    batches = [list(batch) for batch, _ in zip(valid, range(8), strict=False)]

    def by_hand(module: Any) -> hdet.Probe:
        return hdet.Probe(module.loss_of, batches, model=module)

    plain = Notes()
    expected, _ = fitted(HDETCallback(probe=by_hand), plain, valid=valid)
    assert torch.equal(flat(module), flat(expected))
    assert notes.epochs == plain.epochs
    assert set(notes.epochs[0]) == {"train_loss", "train_mean", "val_loss"}


@pytest.mark.parametrize("valid", [False, True])
def test_a_metric_chooses(valid: bool) -> None:
    """It gets batches as the module does, and logs nothing."""
    module = Memorizes()

    def close(batch: Any) -> Tensor:
        module.log("asked", 1.0)
        return ((module.net(batch[0]) - batch[1]).abs() < 0.5).float().mean()

    data = [DataLoader(TensorDataset(*runs.samples(count)), batch_size=8) for count in (160, 96)]
    ours, notes = HDETCallback(choose_by=close), Notes()
    runs.trainer(ours, notes, max_epochs=4).fit(module, data[0], data[1] if valid else None)
    best = ours.auto.best
    assert 0.3 < best.metric <= 1
    assert best.metric_estimate == round(8 * 4 * best.metric_estimate) / (8 * 4)
    assert "asked" not in notes.epochs[0]


def test_without_validation_training_batches_are_set_aside(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hdet")
    ours, notes = HDETCallback(), Notes()
    _, said = fitted(ours, notes)
    assert ours.auto.steps == ours.auto.total_steps == 4 * 16, "20 batches an epoch, less 4"
    assert ours.auto.finished
    assert len(notes.rows) == 128
    assert any("8 batches that are set aside from the training data" in line for line in said)


class Source(pl.LightningDataModule):
    asked = 0

    def train_dataloader(self) -> DataLoader[Any]:
        self.asked += 1
        return DataLoader(TensorDataset(*runs.samples(160)), batch_size=8, shuffle=True)


def test_a_datamodule_is_asked_once_and_its_loader_gets_smaller() -> None:
    ours, notes, data = HDETCallback("autotune"), Notes(), Source()
    runs.trainer(ours, notes).fit(Memorizes(), datamodule=data)
    assert data.asked == 1
    assert len(notes.rows) == 128
    assert isinstance(ours.auto, hdet.AutoTune)


def set_aside_on(rank: int) -> tuple[int, Tensor]:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with as_torchrun(rank):
        ours, notes = HDETCallback(), Notes()
        module, _ = fitted(ours, notes)
        assert ours.auto.finished
        return notes.rows, flat(module)


def test_two_ranks_train_on_none_of_the_probe(ranks: LocalProcesses) -> None:
    (a, ours), (b, theirs) = ranks.run(set_aside_on, size=2)
    assert len(a | b) == 128
    assert torch.equal(ours, theirs)


class Silent(runs.Manual):
    """Manual optimization, and a validation that returns nothing."""


def test_a_module_that_gives_no_loss_says_what_to_write() -> None:
    expected = (
        r"Silent\.validation_step must take a batch and return its loss.*HDETCallback\(probe=hdet\.Probe"
    )
    with pytest.raises(TypeError, match=expected):
        runs.trainer(HDETCallback()).fit(Silent(), runs.loader(), runs.loader())
    with pytest.raises(ValueError, match="got reload_dataloaders_every_n_epochs=1; give validation data"):
        fitted(HDETCallback(), reload_dataloaders_every_n_epochs=1)


def test_the_old_name_says_the_new_one() -> None:
    with pytest.raises(AttributeError, match=r"HDETCallback\.door was renamed in 0\.3\.0: use \.auto"):
        HDETCallback().door  # noqa: B018


# ---------------------------------------------------------------------- resumed, with all that users have


class TwoGroups(Memorizes):
    def configure_optimizers(self) -> Any:
        decayed, plain = (
            [p for p in self.parameters() if p.ndim > 1],
            [p for p in self.parameters() if p.ndim < 2],
        )
        return torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], lr=1e-2)


class Walked(pl.Callback):
    """The weights and learning rates of every step, before the best weights are loaded."""

    def __init__(self) -> None:
        self.steps: dict[int, Any] = {}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        lrs = [group["lr"] for group in trainer.optimizers[0].param_groups]
        self.steps[trainer.global_step] = (flat(pl_module).sum().item(), lrs)


def resumed(rank: int, size: int, folder: str) -> tuple[Any, Any]:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    def run(name: str, **fit: Any) -> tuple[dict[int, Any], list[float]]:
        pl.seed_everything(5, verbose=False)
        module = TwoGroups()
        train = DataLoader(TensorDataset(*runs.samples(160 * size)), batch_size=8, shuffle=True)
        valid = DataLoader(TensorDataset(*runs.samples(96 * size)), batch_size=8)
        saves, walked = ModelCheckpoint(f"{folder}/{name}", "{epoch}", save_top_k=-1), Walked()
        own = (walked, HDETCallback(), saves, LearningRateMonitor("step"))
        with as_torchrun(rank):
            runs.trainer(*own, logger=CSVLogger(folder)).fit(module, train, valid, **fit)
        return walked.steps, flat(module).tolist()

    return run("whole"), run("resumed", ckpt_path=f"{folder}/whole/epoch=1.ckpt")


def test_a_resumed_run_with_two_groups_equals_the_unbroken_one(ranks: LocalProcesses, tmp_path: Path) -> None:
    """On several ranks Lightning's sampler shuffles by the epoch's number, so a resumed run sees the same
    batches. On one it shuffles by torch's generator, which is in no checkpoint: there a resumed run of
    Lightning differs with hdet and without."""
    for (whole, end), (again, ended_at) in ranks.run(resumed, 2, str(tmp_path), size=2):
        assert again == {step: seen for step, seen in whole.items() if step > 40}
        assert len(again) == 40
        assert end == ended_at


logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
