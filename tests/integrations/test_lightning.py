"""Lightning on one rank: the same decisions as a plain loop, whole checkpoints, and what is refused."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="Lightning is not installed")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor

import hdet
import hdet.integrations.lightning as of_lightning
from hdet.integrations.lightning import HDETCallback
from tests.integrations import lightning_runs as runs
from tests.integrations.lightning_runs import (
    DOORS,
    STEPS,
    Noted,
    Regression,
    Resumable,
    by_hand,
    by_lightning,
    flat,
)

# Lightning's own advice (workers, shuffling, intervals) is not about what is tested here.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}Warning") for kind in ("User", "Deprecation", "Future")
]


@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.parametrize("accumulate", [1, 8])
def test_it_decides_as_a_plain_loop(kind: str, accumulate: int) -> None:
    """Twenty batches an epoch, by eights: the last step of each accumulates four."""
    epochs = 4 if accumulate == 1 else 16
    total = STEPS if accumulate == 1 else 3 * epochs
    plain, fitted = (Noted(DOORS[kind], total_steps=total) for _ in range(2))
    expected, _ = by_hand(plain, epochs=epochs, accumulate=accumulate)
    found, callback = by_lightning(fitted, accumulate_grad_batches=accumulate, max_epochs=epochs)
    assert callback.auto.last_epoch == total
    assert fitted.decisions == plain.decisions
    assert len(plain.decisions) >= 3
    assert torch.equal(flat(found), flat(expected))


def test_a_probe_is_all_that_auto_lr_needs(tmp_path: Path) -> None:
    shown = CSVLogger(tmp_path)
    _, callback = by_lightning(HDETCallback(probe=runs.probe_of), logger=shown, log_every_n_steps=1)
    assert isinstance(callback.auto, hdet.AutoLR)
    assert (callback.auto.steps, callback.auto.finished) == (STEPS, True)
    header = (Path(shown.log_dir) / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"hdet/lr/0", "hdet/lag/lr", "hdet/replica/0/loss", "hdet/sync_ms"} <= set(header)


# ---------------------------------------------------------------------- stopped and resumed


@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.parametrize("at", [33, 40])
def test_a_resumed_run_equals_the_unbroken_one(tmp_path: Path, kind: str, at: int) -> None:
    """Within an epoch, a window and a round; and at an epoch's end."""

    def run(build: Any, **options: Any) -> Regression:
        saves = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=at, save_top_k=-1)
        return by_lightning(build, saves, loader=Resumable(), **options)[0]

    unbroken, resumed = Noted(DOORS[kind]), Noted(DOORS[kind])
    expected = run(unbroken)
    found = run(resumed, ckpt_path=tmp_path / f"step={at}.ckpt")
    assert torch.equal(flat(found), flat(expected))
    later = [line for line in unbroken.decisions if line["step"] > at]
    assert resumed.decisions == later
    assert later


def test_a_checkpoint_without_our_state_is_refused(tmp_path: Path) -> None:
    """A search that restarts within a run would climb from nothing, without a word."""
    runs.trainer(max_epochs=1).fit(module := Regression(), runs.loader())
    assert module.trainer is not None
    module.trainer.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(ValueError, match="there is no state of AutoLR to continue from"):
        by_lightning(DOORS["auto_lr"], ckpt_path=tmp_path / "plain.ckpt")


# ---------------------------------------------------------------------- in configure_optimizers


class InTheDict(Regression):
    def __init__(self, build: Callable[..., Any], **config: Any) -> None:
        super().__init__()
        self.build, self.config = build, config

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        self.door = self.build(self, [optimizer])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.door, **self.config}}


def test_auto_lr_works_as_a_scheduler_of_every_step(tmp_path: Path) -> None:
    """Its records have no training loss, which Lightning does not give to schedulers; it decides alike."""

    def fit(build: Any, **options: Any) -> Regression:
        saves = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=33, save_top_k=-1)
        module = InTheDict(build, interval="step")
        runs.trainer(saves).fit(module, Resumable(), **options)
        return module

    plain, unbroken, resumed = (Noted(DOORS["auto_lr"], patience=None) for _ in range(3))
    by_hand_rates = rates(plain, lambda: by_lightning(plain)[0])
    assert rates(unbroken, lambda: fit(unbroken)) == by_hand_rates
    again = rates(resumed, lambda: fit(resumed, ckpt_path=tmp_path / "step=33.ckpt"))
    assert again == [pair for pair in by_hand_rates if pair[0] > 33]


def rates(noted: Noted, run: Callable[[], Any]) -> list[tuple[int, float]]:
    run()
    return [(line["step"], line["hyperparameters"][0]["base_after"]) for line in noted.decisions]


def test_once_an_epoch_is_too_rare() -> None:
    """Lightning's default; three of sixty steps would have been counted."""
    with pytest.raises(RuntimeError, match='"interval": "step"'):
        runs.trainer().fit(InTheDict(DOORS["auto_lr"]), runs.loader())


def test_a_vote_in_the_dict_says_that_it_needs_the_loss() -> None:
    with pytest.raises(ValueError, match="loss"):
        runs.trainer().fit(InTheDict(DOORS["one_cycle"], interval="step"), runs.loader())


@pytest.mark.parametrize("theirs", [DOORS["auto_lr"], lambda _, o: torch.optim.lr_scheduler.StepLR(o[0], 1)])
def test_two_who_write_the_learning_rate_are_refused(theirs: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="so would the scheduler that configure_optimizers returns"):
        by_lightning(DOORS["auto_lr"], module=InTheDict(theirs, interval="step"))


# ---------------------------------------------------------------------- manual optimization


@pytest.mark.parametrize("kind", DOORS)
def test_manual_optimization_decides_alike(kind: str) -> None:
    automatic, manual = Noted(DOORS[kind]), Noted(DOORS[kind])
    expected, _ = by_lightning(automatic)
    found, _ = by_lightning(manual, module=runs.Manual())
    assert manual.decisions == automatic.decisions
    assert torch.equal(flat(found), flat(expected))


def test_optimizers_that_step_together_are_one_search() -> None:
    _, callback = by_lightning(HDETCallback(probe=runs.probe_of), module=runs.Manual(2), max_steps=2 * STEPS)
    assert len(callback.auto.optimizers) == 2
    assert (callback.auto.steps, callback.auto.finished) == (STEPS, True)


def test_optimizers_that_take_turns_are_refused() -> None:
    with pytest.raises(RuntimeError, match="all optimizers must step before each call"):
        by_lightning(HDETCallback(probe=runs.probe_of), module=runs.Manual(2, alternate=True))


# ---------------------------------------------------------------------- skipped steps


class Overflows(Regression):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss_of(batch)
        return loss * torch.inf if self.trainer.global_step in (5, 6, 31) else loss


def test_steps_that_a_scaler_skips_are_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    scaled = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0))
    _, callback = by_lightning(DOORS["auto_lr"], module=Overflows(), plugins=[scaled])
    assert callback.auto.steps == STEPS - 3
    assert sum("the schedule waits" in r.getMessage() for r in caplog.records) == 1


# ---------------------------------------------------------------------- beginnings and ends


class CoolsDown(pl.Callback):
    """Ends the search early, as its patience would."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if trainer.global_step == 41:
            next(each for each in trainer.callbacks if isinstance(each, HDETCallback)).auto.cooldown(10)


def test_a_search_that_has_ended_stops_training_with_the_best_weights() -> None:
    module, callback = by_lightning(DOORS["auto_lr"], CoolsDown())
    assert (callback.auto.steps, module.trainer.global_step) == (51, 51)
    handed = callback.auto.best
    assert handed is not None
    assert math.isfinite(handed.estimate), "measured when the weights are handed over, not before"


def test_validation_without_a_fit_and_a_trial_run_pass() -> None:
    callback = HDETCallback(probe=runs.probe_of)
    runs.trainer(callback).validate(Regression(), runs.loader(), verbose=False)
    assert callback.auto is None
    runs.trainer(callback, fast_dev_run=True).fit(Regression(), runs.loader(), runs.loader())
    assert callback.auto.steps == 1
    curve = HDETCallback("published")
    runs.trainer(curve, fast_dev_run=True).fit(Regression(), runs.loader(), runs.loader())
    assert curve.auto.total_steps == 1


def test_one_process_tunes_as_well() -> None:
    _, callback = by_lightning(HDETCallback("autotune", probe=runs.probe_of))
    assert isinstance(callback.auto, hdet.AutoTune)
    assert set(callback.auto.values) == {"lr/0", "weight_decay"}
    assert callback.auto.steps == STEPS


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="probe goes with method='autolr' and 'autotune'"):
        HDETCallback("published", probe=runs.probe_of)
    for given in ({"probe": runs.probe_of}, {"method": "published"}):
        with pytest.raises(ValueError, match=r"choose_by goes with the probe that HDETCallback makes"):
            HDETCallback(choose_by=len, **given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"method must be 'autolr', .* or a callable .*, got 'one_cycle'"):
        HDETCallback("one_cycle")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"the door must be an AutoLR.*got StepLR, which has no converge"):
        by_lightning(lambda _, optimizers: torch.optim.lr_scheduler.StepLR(optimizers[0], 1))


def test_an_old_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdet.integrations.version", lambda _: "2.3.1")
    with pytest.raises(ImportError, match=r"lightning must be at least 2\.4, got 2\.3\.1"):
        importlib.reload(of_lightning)


logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
