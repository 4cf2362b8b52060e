"""What a Trainer is told besides: options, datasets, ends; and what is refused."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, Subset

import hdet
from hdet.replicas.launch import LocalProcesses
from tests import ROOT
from tests.integrations import llama

pytest.importorskip("transformers", reason="make test-integrations installs Transformers")
# Their own, of torch's and of one another's names.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with llama.launched(0, 1):
        yield


def made(folder: Path, settings: dict[str, Any] | None = None, **more: Any) -> Any:
    """A Trainer that has not begun."""
    from hdet.integrations.transformers import HDETTrainer

    kind = more.pop("kind", HDETTrainer)
    model = llama.model()
    defaults: dict[str, Any] = {
        "data_collator": partial(llama.collate, None),
        "train_dataset": llama.data(),
        "eval_dataset": llama.data(200_000, 16),
        "optimizers": (llama.optimizer(model), None),
    }
    return kind(model=model, args=llama.arguments(folder, **(settings or {})), **{**defaults, **more})


def trained(folder: Path, settings: dict[str, Any] | None = None, **more: Any) -> Any:
    trainer = made(folder, {"max_steps": 40, **(settings or {})}, **more)
    trainer.train()
    counted = getattr(trainer.auto, "steps", None) or trainer.auto.last_epoch
    assert counted == trainer.state.global_step
    return trainer


# ---------------------------------------------------------------------- options of the Trainer


def test_options_that_change_nothing_change_nothing(tmp_path: Path) -> None:
    """Checkpointed gradients, evaluations and saves leave the path alone; compiled it is the same but for
    rounding."""
    plain = trained(tmp_path / "plain")
    looked = {"eval_strategy": "steps", "eval_steps": 9, "save_strategy": "steps", "save_steps": 9}
    same = trained(tmp_path / "same", {"gradient_checkpointing": True, **looked})
    assert llama.digest(same.model) == llama.digest(plain.model)
    compiled = trained(tmp_path / "compiled", {"torch_compile": True, "torch_compile_backend": "aot_eager"})
    assert compiled.auto.best.loss == pytest.approx(plain.auto.best.loss, rel=0.05)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # on a CPU without it
def test_bf16_accumulation_and_epochs(tmp_path: Path) -> None:
    settings = {"bf16": True, "gradient_accumulation_steps": 3, "max_steps": -1, "num_train_epochs": 1.2}
    trainer = trained(tmp_path, settings)
    assert trainer.state.global_step == round(
        1.2 * 41 + 0.5
    )  # (520 − 32) / 4 batches by threes, the last one of two
    assert trainer.auto.finished
    assert trainer.auto.best.loss < 3.4


def test_the_learning_rate_that_is_logged_is_the_one_that_was_used(tmp_path: Path) -> None:
    used: list[float] = []

    def spy(optimizer: Any, *_: object) -> None:
        used.append(optimizer.param_groups[0]["lr"])

    trainer = made(tmp_path, {"max_steps": 40, "logging_strategy": "steps", "logging_steps": 1})
    trainer.optimizer.register_step_pre_hook(spy)
    trainer.train()
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert logged == used[:40]
    assert max(logged) > 1e-4


def test_the_best_of_the_trainer_is_loaded_if_it_is_to_choose(tmp_path: Path) -> None:
    settings = {
        "eval_strategy": "steps",
        "eval_steps": 10,
        "save_strategy": "steps",
        "save_steps": 10,
        "load_best_model_at_end": True,
    }
    trainer = trained(tmp_path, settings)
    losses = {e["step"]: e["eval_loss"] for e in trainer.state.log_history if "eval_loss" in e}
    assert trainer.state.best_metric == min(losses.values())
    assert trainer.evaluate()["eval_loss"] == pytest.approx(trainer.state.best_metric, rel=1e-6)


def test_the_probe_measures_what_is_trained(tmp_path: Path) -> None:
    """Label smoothing, or a loss of one's own, is the probe's, too."""
    smooth = made(tmp_path, {"label_smoothing_factor": 0.1, "max_steps": 40})
    smooth.train()
    batch = llama.collate(None, llama.data(7, 4))
    with torch.no_grad():
        ours = float(smooth._probe_loss(batch))
        outputs = smooth.model(**batch)
        expected = float(smooth.label_smoother(outputs, batch["labels"], shift_labels=True))
    assert ours == pytest.approx(expected, rel=1e-6)
    assert set(batch) == {"input_ids", "labels"}, "the batch is as it was, for the next measurement"

    def double(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        logits = outputs.logits[:, :-1].flatten(0, 1)
        summed = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
        return 2 * summed / num_items_in_batch

    own = made(tmp_path, compute_loss_func=double)
    with torch.no_grad():
        assert float(own._probe_loss(batch)) == pytest.approx(2 * float(own.model(**batch).loss), rel=1e-5)


def test_a_metric_chooses(tmp_path: Path) -> None:
    """Accuracy of the next token, on what the probe set aside."""

    def accuracy(batch: Any) -> torch.Tensor:
        found = trainer.model(batch["input_ids"]).logits[:, :-1].argmax(-1)
        return (found == batch["labels"][:, 1:]).float().mean()

    trainer = made(tmp_path, {"max_steps": 40}, choose_by=accuracy)
    trainer.train()
    best = trainer.auto.best
    trainer.model.eval()
    with torch.no_grad():
        by_hand = [float(accuracy(batch)) for batch in trainer._probe_loader()]
    assert best.metric == pytest.approx(sum(by_hand[:4]) / 4)
    assert best.metric_estimate == pytest.approx(sum(by_hand[4:]) / 4)


def test_a_skipped_step_does_not_count(tmp_path: Path) -> None:
    """fp16 needs a GPU: the overflow is made up, where Accelerate tells of one."""
    from transformers import TrainerCallback

    told: list[float] = []

    class Overflow(TrainerCallback):
        def on_train_begin(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
            step, calls = optimizer.step, iter(range(45))

            def sometimes(closure: Any = None) -> None:
                optimizer._is_overflow = next(calls) in (5, 12)
                if not optimizer._is_overflow:
                    step(closure)

            optimizer.step = sometimes

    trainer = made(tmp_path, {"max_steps": 45}, callbacks=[Overflow()])
    take = trainer.take_loss
    trainer.take_loss = lambda: (told.append(float(loss := take())), loss)[1]
    trainer.train()
    assert trainer.state.global_step == 45
    assert trainer.auto.steps == len(told) == 43
    assert max(told) < 4, "no loss is of two steps"


# ---------------------------------------------------------------------- what builds the door


def test_a_door_is_given_what_it_names(tmp_path: Path) -> None:
    trainer = trained(tmp_path, method=partial(hdet.AutoLR, schedule="cosine"))
    assert isinstance(trainer.auto, hdet.AutoLR)
    named = trained(
        tmp_path,
        method=lambda optimizer, total_steps, probe: hdet.AutoTune(
            optimizer, [hdet.WeightDecay()], total_steps=total_steps, probe=probe
        ),
        optimizers=(None, None),
    )
    assert isinstance(named.auto, hdet.AutoTune)
    bound = trained(tmp_path, method=llama.one_cycle(total_steps=99, spread=0.0, enable_auto_lr=False))
    assert bound.auto.total_steps == 99
    assert len(bound.train_dataset) == llama.SAMPLES, "nothing is set aside where nobody probes"


def test_one_process_tunes_as_well(tmp_path: Path) -> None:
    tune = trained(tmp_path, method="autotune").auto
    assert isinstance(tune, hdet.AutoTune)
    assert set(tune.values) == {"lr/0", "weight_decay"}


def test_an_ensemble_is_a_door(tmp_path: Path) -> None:
    trainer = trained(
        tmp_path, method=lambda optimizer, model: hdet.Ensemble(optimizer, sync_every=10, model=model)
    )
    assert trainer.lr_scheduler.get_last_lr() == [1e-3]


def test_it_ends_where_the_door_has_ended(tmp_path: Path) -> None:
    """As when nothing improves any more: the Trainer saves and evaluates as at any end."""

    from transformers import TrainerCallback

    class Enough(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, *_: Any, lr_scheduler: Any = None, **__: Any) -> None:
            if state.global_step == 30:
                lr_scheduler.cooldown(7)

    settings = {"max_steps": 60, "save_strategy": "steps", "save_steps": 50}
    trainer = trained(tmp_path, settings, callbacks=[Enough()])
    assert trainer.state.global_step == 37
    assert (tmp_path / "checkpoint-37").exists()


def test_somebody_else_who_writes_the_learning_rate_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import TrainerCallback

    class Foreign(TrainerCallback):
        def on_step_end(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
            optimizer.param_groups[0]["lr"] = 3e-5

    trained(tmp_path, callbacks=[Foreign()])
    assert any("3e-05, and 1e-05 was written there" in r.getMessage() for r in caplog.records)


# ---------------------------------------------------------------------- the probe's samples


def set_aside(rank: int, size: int, folder: Path) -> tuple[list[int], list[int]]:
    with llama.launched(rank, size):
        trainer = made(folder, optimizers=(None, None))
        loader = trainer._probe_loader()
        return [r["n"] for r in trainer.train_dataset], [r["n"] for r in loader.dataset]


def test_samples_are_set_aside_for_good(ranks: LocalProcesses, tmp_path: Path) -> None:
    ((alone, held_alone),) = ranks.run(set_aside, 1, tmp_path, size=1)
    (a, held_a), (b, held_b) = ranks.run(set_aside, 2, tmp_path, size=2)
    assert a == b
    assert len(held_alone) == 8 * llama.BATCH
    assert len(held_a) == len(held_b) == 8 * 3, "a tenth of all at most, in smaller batches"
    assert not {*held_a, *held_b} & {*a}
    assert sorted([*a, *held_a, *held_b]) == list(range(llama.SAMPLES))
    assert set(held_alone) <= {*held_a, *held_b}, "fewer ranks probe nothing that more have trained on"
    assert sorted([*alone, *held_alone]) == list(range(llama.SAMPLES))


def test_of_few_samples_a_quarter_is_set_aside_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = made(tmp_path, train_dataset=Subset(llama.data(), range(60)))
    assert len(trainer.train_dataset) == 46
    assert len(trainer._probe_loader()) == 7
    assert "14 of 60 samples (23 %) are set aside for the probe" in caplog.text


def test_more_set_aside_than_before_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path, {"save_strategy": "steps", "save_steps": 20})
    more = made(tmp_path, {"max_steps": 40, "per_device_train_batch_size": 2 * llama.BATCH})
    more.train(resume_from_checkpoint=str(tmp_path / "checkpoint-20"))
    assert any("the probe measures 48 samples now, and 32" in r.getMessage() for r in caplog.records)


def test_one_that_only_evaluates_needs_no_probe(tmp_path: Path) -> None:
    assert made(tmp_path, train_dataset=None).evaluate()["eval_loss"] == pytest.approx(3.5, rel=0.1)


# ---------------------------------------------------------------------- what is refused


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter(llama.data())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"method": "auto_lr"}, "method must be 'autolr', 'autotune', 'published' or a callable"),
        (
            {"train_dataset": llama.data(count=7)},
            "train_dataset must have enough samples .* of 1 rank, got 7; give probe_dataset",
        ),
        ({"train_dataset": Stream()}, "to set samples aside for the probe, got Stream; give probe_dataset"),
        ({"method": lambda optimizer: None, "probe_dataset": []}, "takes no argument named probe"),
        ({"method": "published", "choose_by": len}, "choose_by was given, .* takes no argument named probe"),
        ({"probe_dataset": []}, "probe_dataset must have a sample for each of 1 ranks, got 0"),
        ({"method": lambda optimizer: object()}, "must be an AutoLR, AutoTune, OneCycleAutoLR or Ensemble"),
    ],
)
def test_what_cannot_work_says_so(tmp_path: Path, more: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        made(tmp_path, **more).train()


def test_a_scheduler_beside_the_door_is_refused(tmp_path: Path) -> None:
    optimizer = llama.optimizer(llama.model())
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    with pytest.raises(ValueError, match=r"optimizers must be \(optimizer, None\).* got a ConstantLR"):
        made(tmp_path, optimizers=(optimizer, scheduler))


def test_a_schedule_that_is_not_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made(tmp_path)
    assert "not used" not in caplog.text
    made(tmp_path, {"lr_scheduler_type": "cosine"})
    assert "lr_scheduler_type='cosine' and warm-up are not used" in caplog.text


@pytest.mark.parametrize(
    ("enabled", "says"), [("deepspeed", "DeepSpeed steps flat"), ("fsdp", "got version 1")]
)
def test_partitions_that_are_not_torchs_are_refused(tmp_path: Path, enabled: str, says: str) -> None:
    """Neither runs here: the Trainer is made to say that it is enabled."""
    from types import SimpleNamespace

    from hdet.integrations.transformers import HDETTrainer

    class Enabled(HDETTrainer):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            if enabled == "deepspeed":
                self.is_deepspeed_enabled = True
            else:
                self.accelerator.state.fsdp_plugin = SimpleNamespace(fsdp_version=1)

    with pytest.raises(TypeError, match=says):
        made(tmp_path, kind=Enabled)


@pytest.mark.parametrize("package", ["transformers", "accelerate"])
@pytest.mark.parametrize("version", ["0.9.1", None])
def test_an_unsupported_version_says_so_at_import(package: str, version: str | None) -> None:
    code = f"""
import importlib.metadata as metadata
true = metadata.version
def told(name):
    if name != {package!r}: return true(name)
    if {version!r} is None: raise metadata.PackageNotFoundError(name)
    return {version!r}
metadata.version = told
import hdet.integrations.{package}
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert f"{package} must be at least" in last
    assert f"got {version or 'none'}" in last


# ---------------------------------------------------------------------- several ranks


def sharded(rank: int, size: int, folder: Path, resume: str | None) -> dict[str, Any]:
    """FSDP of version 2. Accelerate does not offer it on a CPU, where it runs: it is told that it does."""
    from accelerate import DistributedType, FullyShardedDataParallelPlugin

    from hdet.integrations.transformers import HDETTrainer

    class Sharded(HDETTrainer):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            state = self.accelerator.state
            state.distributed_type, self.is_fsdp_enabled = DistributedType.FSDP, True
            state.fsdp_plugin = FullyShardedDataParallelPlugin(
                fsdp_version=2,
                auto_wrap_policy="transformer_based_wrap",
                transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
                state_dict_type="SHARDED_STATE_DICT",
            )

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hdet").addHandler(handler)
    with llama.launched(rank, size):
        settings = {"max_steps": 45, "save_strategy": "steps", "save_steps": 15}
        trainer = made(folder, settings, kind=Sharded, optimizers=(None, None))
        trainer.train(resume_from_checkpoint=resume)
        result = {
            "digest": llama.digest(trainer.model),
            "parts": trainer.auto.replicas.ranks_per_replica,
            "lr": trainer.auto.export(folder / f"{rank}.json"),
            "best": trainer.auto.best.loss,
            "said": said,
        }
    logging.getLogger("hdet").removeHandler(handler)
    return result


def test_one_sharded_model_trains_and_goes_on(ranks: LocalProcesses, tmp_path: Path) -> None:
    whole = ranks.run(sharded, 2, tmp_path, None, size=2)
    found = (tmp_path / "0.json").read_text()
    assert all(result["parts"] == 2 for result in whole)
    assert whole[0]["best"] < 3.4
    resumed = ranks.run(sharded, 2, tmp_path, str(tmp_path / "checkpoint-15"), size=2)
    assert [r["digest"] for r in resumed] == [r["digest"] for r in whole]
    assert (tmp_path / "0.json").read_text() == found
    assert not [line for result in (*whole, *resumed) for line in result["said"] if "written there" in line]


def saved_by_one(rank: int, size: int, folder: Path) -> bool:
    with llama.launched(rank, size):
        trainer = made(folder, {"max_steps": 25}, method=llama.one_cycle())
        trainer.train()
        if rank == 0:
            trainer.save_model(str(folder / "one"))
        return (folder / "one" / "model.safetensors").exists()


def test_after_training_one_rank_may_save_alone(ranks: LocalProcesses, tmp_path: Path) -> None:
    assert ranks.run(saved_by_one, 2, tmp_path, size=2, timeout=60)[0]
