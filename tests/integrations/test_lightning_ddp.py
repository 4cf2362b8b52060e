"""Lightning's ddp on two gloo ranks: replicas that diverge are one model wherever somebody looks at them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hdet
from hdet.replicas.launch import LocalProcesses, ReplicaError

pytest.importorskip("lightning", reason="Lightning is not installed")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

from hdet.integrations.lightning import HDETCallback
from tests import ROOT
from tests.integrations import lightning_runs as runs
from tests.integrations import llama
from tests.integrations.lightning_runs import (
    DOORS,
    Noted,
    Resumable,
    as_torchrun,
    by_hand,
    by_lightning,
    flat,
)

EXAMPLES = ROOT / "examples"
STOP = 10  # inside a round of seven steps


def on_rank(rank: int, run: Any, *args: Any) -> Any:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with as_torchrun(rank):
        return run(rank, *args)


def run_example(name: str, *arguments: str) -> list[str]:
    assert len((EXAMPLES / name).read_text().splitlines()) < 80
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=160,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def decisions(rank: int, kind: str, accumulate: int) -> tuple[Tensor, ...]:
    epochs, total = (4, 80) if accumulate == 1 else (16, 48)
    plain, fitted = (Noted(DOORS[kind], total_steps=total) for _ in range(2))
    expected, _ = by_hand(plain, rank=rank, ranks=2, epochs=epochs, accumulate=accumulate)
    found, _ = by_lightning(fitted, ranks=2, accumulate_grad_batches=accumulate, max_epochs=epochs)
    assert fitted.decisions == plain.decisions
    assert bool(plain.decisions) == (rank == 0)
    assert torch.equal(flat(found), flat(expected))
    return flat(found)


@pytest.mark.parametrize("accumulate", [1, 8])
@pytest.mark.parametrize("kind", DOORS)
def test_it_decides_as_a_plain_loop(ranks: LocalProcesses, kind: str, accumulate: int) -> None:
    a, b = ranks.run(on_rank, decisions, kind, accumulate, size=2)
    assert torch.equal(a, b)


class Watches(pl.Callback):
    """What each rank has in every step."""

    def __init__(self) -> None:
        self.watched = llama.Watched()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.watched.before(pl_module, optimizer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        (callback,) = (each for each in trainer.callbacks if isinstance(each, HDETCallback))
        self.watched.after(pl_module, callback.auto)


def by_name(rank: int, method: Any, manual: bool) -> dict[str, Any]:
    watches = Watches()
    probe = runs.probe_of if method == "autotune" else None
    module = runs.Manual(1) if manual else None
    with watches.watched.listening():
        module, callback = by_lightning(HDETCallback(method, probe=probe), watches, ranks=2, module=module)
    return watches.watched.told(callback.auto, module)


def tuned_by_hand(module: Any, optimizers: Any) -> hdet.AutoTune:
    return hdet.AutoTune(
        optimizers, [hdet.WeightDecay()], probe=runs.probe_of(module), total_steps=runs.STEPS
    )


@pytest.mark.parametrize(
    ("method", "manual"), [("autotune", False), ("autotune", True), (tuned_by_hand, False)]
)
def test_autotune_shares_gradients_and_then_each_has_its_own(
    ranks: LocalProcesses, method: Any, manual: bool
) -> None:
    """What builds AutoTune itself says so itself: of DDP it does not know."""
    results = ranks.run(on_rank, by_name, method, manual, size=2)
    llama.assert_tuned_apart(*results, "HDETCallback", shares_first=method == "autotune")


def one_cycle_by_hand(module: Any, optimizers: Any) -> hdet.OneCycleAutoLR:
    return hdet.OneCycleAutoLR(
        optimizers[0],
        max_lr=1e-2,
        total_steps=runs.STEPS,
        model=module,
        ensemble_lr_spread_ratio=1 / 9,
        model_sync_interval=1,
        enable_auto_lr=True,
        auto_lr_warmup_steps=runs.STEPS // 3,
        loss_scale=0.1,
    )


def test_published_is_the_scheduler_by_hand(ranks: LocalProcesses) -> None:
    named = ranks.run(on_rank, by_name, "published", False, size=2)
    for ours, theirs in zip(
        named, ranks.run(on_rank, by_name, one_cycle_by_hand, False, size=2), strict=True
    ):
        assert torch.equal(ours["end"], theirs["end"])
        assert len(ours["weights"]) == runs.STEPS


class Looks(pl.Callback):
    """Sees the weights of its rank after each step, before any checkpoint."""

    def __init__(self, stop: int | None = None) -> None:
        self.weights: dict[int, Tensor] = {}
        self.stop = stop

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self.weights[trainer.global_step] = flat(pl_module)
        trainer.should_stop = trainer.should_stop or trainer.global_step == self.stop


def looked_at(rank: int, folder: str) -> dict[str, Any]:
    looks, saves = Looks(stop=STOP + 3), ModelCheckpoint(folder, "{step}", every_n_train_steps=STOP)
    module, _ = by_lightning(
        DOORS["one_cycle"],
        looks,
        saves,
        ranks=2,
        val_dataloaders=runs.loader(),
        val_check_interval=STOP // 2,
        min_epochs=0,
        max_epochs=-1,
    )
    stopped = Looks(stop=STOP)
    stops, _ = by_lightning(DOORS["one_cycle"], stopped, ranks=2)
    return {
        **{"own": looks.weights, "seen": module.validated, "end": flat(module)},
        **{"stopped": stopped.weights[STOP], "ended": flat(stops)},
    }


def test_validation_checkpoint_and_early_stop_see_the_mean(ranks: LocalProcesses, tmp_path: Path) -> None:
    a, b = ranks.run(on_rank, looked_at, str(tmp_path), size=2)
    assert list(a["seen"]) == [STOP // 2, STOP, STOP + 3], "Lightning validates where it stops"
    looks = [(a["own"][step], b["own"][step], a["seen"][step], b["seen"][step]) for step in a["seen"]]
    looks.append((a["stopped"], b["stopped"], a["ended"], b["ended"]))
    for own, others, seen, theirs in looks:
        assert not torch.equal(own, others)
        assert torch.equal(seen, theirs)
        torch.testing.assert_close(seen, (own + others) / 2, rtol=1e-6, atol=1e-7)
    assert torch.equal(runs.checkpoint_weights(tmp_path / f"step={STOP}.ckpt"), a["seen"][STOP])
    assert torch.equal(a["end"], a["seen"][STOP + 3])


def resumed(rank: int, folder: str, kind: str, at: int) -> Tensor:
    def run(build: Any, **options: Any) -> Any:
        saves = ModelCheckpoint(folder, "{step}", every_n_train_steps=at, save_top_k=-1)
        return by_lightning(build, saves, loader=Resumable(rank, 2), **options)[0]

    unbroken, again = Noted(DOORS[kind]), Noted(DOORS[kind])
    expected = run(unbroken)
    found = run(again, ckpt_path=Path(folder) / f"step={at}.ckpt")
    assert torch.equal(flat(found), flat(expected))
    later = [line for line in unbroken.decisions if line["step"] > at]
    if kind == "auto_lr" and rank == 0:  # nothing diverges, so no rank learns what the others' losses were
        later[0]["losses"] = again.decisions[0]["losses"]
    assert again.decisions == later
    assert bool(again.decisions) == (rank == 0)
    return flat(found)


@pytest.mark.parametrize(("kind", "at"), [("auto_lr", 24), ("one_cycle", 24), ("auto_tune", 10)])
def test_a_resumed_run_equals_the_unbroken_one(
    ranks: LocalProcesses, tmp_path: Path, kind: str, at: int
) -> None:
    """Step 24 is within an epoch, a round and a window; there is one checkpoint, rank 0's. Replicas that
    differ in a window each have a path of their own, so AutoTune resumes from a window's end."""
    a, b = ranks.run(on_rank, resumed, str(tmp_path), kind, at, size=2)
    assert torch.equal(a, b)


class Takes(pl.Callback):
    """Takes the module's weights while the replicas differ, and saves a whole checkpoint, too."""

    def __init__(self, folder: str, whole: int) -> None:
        self.folder, self.whole = folder, whole

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if trainer.global_step == self.whole:
            trainer.save_checkpoint(f"{self.folder}/whole.ckpt")
        if trainer.global_step == STOP + 1:
            trainer.save_checkpoint(f"{self.folder}/weights.ckpt", weights_only=True)


def said(rank: int, folder: str, kind: str, whole: int) -> list[str]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hdet").addHandler(handler)
    try:
        by_lightning(Noted(DOORS[kind]), Takes(folder, whole), ranks=2, max_epochs=1)
    finally:
        logging.getLogger("hdet").removeHandler(handler)
    return [line for line in lines if line.startswith("HDETCallback")]


def test_weights_that_are_taken_apart_are_said_so(ranks: LocalProcesses, tmp_path: Path) -> None:
    for lines in ranks.run(on_rank, said, str(tmp_path), "one_cycle", STOP, size=2):
        (line,) = lines
        assert f"step {STOP + 1}: the module's state_dict was taken" in line


def test_a_window_that_is_saved_half_way_is_said(ranks: LocalProcesses, tmp_path: Path) -> None:
    a, b = ranks.run(on_rank, said, str(tmp_path), "auto_tune", STOP + 2, size=2)
    (line,) = (line for line in a if "path" in line)
    assert f"step {STOP + 2}: a checkpoint within a window" in line
    assert "holds rank 0's path" in line
    assert not any("path" in line for line in b)


def test_the_example_runs_as_its_first_line_says() -> None:
    """By Lightning's own launcher, which starts the second rank itself."""
    lines = run_example("lightning_fit.py", "2")
    (last,) = (line.split() for line in lines if line.startswith("steps"))
    assert last[1] == "312", "52 batches of 32 on each rank, six times"
    assert float(last[4]) < 0.05


# The last one: ranks that have raised are started anew.


def weights_alone(rank: int, folder: str) -> None:
    saves = ModelCheckpoint(folder, save_weights_only=True, every_n_train_steps=STOP)
    by_lightning(DOORS["one_cycle"], saves, ranks=2)


def test_checkpoints_of_weights_alone_are_refused(ranks: LocalProcesses, tmp_path: Path) -> None:
    with pytest.raises(ReplicaError, match="calls no callback"):
        ranks.run(on_rank, weights_alone, str(tmp_path), size=2)
