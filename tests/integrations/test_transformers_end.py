"""How a Trainer ends: every file at the end holds what ``finish_`` loaded, and an early stop decays first."""

from __future__ import annotations

import logging
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.integrations import llama

pytest.importorskip("transformers", reason="make test-integrations installs Transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

EVERY_TEN = {"eval_strategy": "steps", "eval_steps": 10, "save_strategy": "steps", "save_steps": 10}
CHOOSES = {**EVERY_TEN, "load_best_model_at_end": True, "metric_for_best_model": "loss"}


def noise(start: int, count: int) -> list[dict[str, Any]]:
    """Sequences of which nothing can be learnt: the best weights on others than those come early."""
    rows = []
    for n in range(start, start + count):
        ids = torch.randint(
            0, llama.VOCABULARY, (llama.LENGTH,), generator=torch.Generator().manual_seed(7 + n)
        )
        rows.append({"input_ids": ids, "labels": ids.clone(), "n": n})
    return rows


def weights_in(folder: Path) -> str:
    from safetensors.torch import load_file

    model = llama.model()
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    return llama.digest(model)


def stops_at(step: int) -> Any:
    from transformers import TrainerCallback

    class Stops(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = control.should_training_stop or state.global_step == step

    return Stops()


def impatient() -> Any:
    """Calls nothing an improvement: it asks to stop at the second evaluation."""
    from transformers import EarlyStoppingCallback

    return EarlyStoppingCallback(1, early_stopping_threshold=100.0)


def ended(
    rank: int, size: int, folder: Path, settings: dict[str, Any], run: dict[str, Any] | None = None
) -> dict[str, Any]:
    from hdet.integrations.transformers import HDETTrainer

    odd = {"data": noise(0, 16), "later": [], "resume": None, "method": "autolr", **(run or {})}
    with llama.launched(rank, size), llama.listening() as said:
        model = llama.model()
        trainer = HDETTrainer(
            model=model,
            args=llama.arguments(folder, **{"max_steps": 60, **settings}),
            data_collator=partial(llama.collate, None),
            train_dataset=odd["data"],
            eval_dataset=noise(500, 16),
            probe_dataset=noise(200, 32),
            optimizers=(llama.optimizer(model), None),
            method=odd["method"],
        )
        for callback in odd["later"]:
            trainer.add_callback({"impatient": impatient, "stops": partial(stops_at, 25)}[callback]())
        trainer.train(resume_from_checkpoint=odd["resume"])
        trainer.save_model(folder / "saved")
        at_end = {
            "memory": llama.digest(model),
            "best": trainer.auto.best,
            "steps": trainer.state.global_step,
            "chosen": trainer.state.best_model_checkpoint,
            "lr": trainer.auto.get_last_lr()[0],
            "evaluated": [e["eval_loss"] for e in trainer.state.log_history if "eval_loss" in e],
            "probe": float(trainer.auto._horizon.incumbent.weights.measure()[0]),
        }
        trainer.auto.finish_()
        return {**at_end, "finished": llama.digest(model), "again": trainer.auto.best, "said": list(said)}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("settings", "last"),
    [
        (EVERY_TEN, 60),
        ({"save_strategy": "steps", "save_steps": 50}, 60),
        ({"save_strategy": "epoch"}, 60),
    ],
)
def test_files_memory_and_best_are_the_same_weights(
    ranks: LocalProcesses, tmp_path: Path, settings: dict[str, Any], last: int, size: int
) -> None:
    results = ranks.run(ended, size, tmp_path, settings, size=size)
    assert len({result["memory"] for result in results}) == 1
    result = results[0]
    best = result["best"]
    assert best.step < last, "the last step's weights would be the easy case"
    assert math.isfinite(best.estimate)
    assert result["finished"] == result["memory"]
    assert weights_in(tmp_path / f"checkpoint-{last}") == result["memory"]
    assert weights_in(tmp_path / "saved") == result["memory"]


@pytest.mark.parametrize("size", [1, 2])
def test_the_metric_chooses_the_finished_weights(ranks: LocalProcesses, tmp_path: Path, size: int) -> None:
    """Nothing can be learnt: what the probe finds best is best by the metric, too."""
    for result in ranks.run(ended, size, tmp_path, CHOOSES, size=size):
        assert result["chosen"] == str(tmp_path / "checkpoint-60")
        assert result["evaluated"][-1] == min(result["evaluated"]), "the last evaluation is of those weights"
        assert result["memory"] == result["finished"] == weights_in(tmp_path / "checkpoint-60")
        assert math.isfinite(result["best"].estimate)


@pytest.mark.parametrize("size", [1, 2])
def test_where_the_metric_chooses_others_best_does_not_claim_them(
    ranks: LocalProcesses, tmp_path: Path, size: int
) -> None:
    settings = {**CHOOSES, "greater_is_better": True}  # the worst one
    results = ranks.run(ended, size, tmp_path, settings, size=size)
    for result in results:
        assert result["chosen"] != str(tmp_path / "checkpoint-60")
        assert result["memory"] == weights_in(Path(result["chosen"])) != result["finished"]
        assert result["best"] is None
        assert result["finished"] == weights_in(tmp_path / "checkpoint-60"), "finish_ loads them again"
        assert math.isfinite(result["again"].estimate)
    (line,) = (line for line in results[0]["said"] if "load_best_model_at_end" in line)
    assert f"has loaded {Path(results[0]['chosen']).name}, whose loss is" in line
    assert "trainer.auto.finish_() loads the probe's choice" in line


def test_a_stop_between_two_checkpoints_says_what_the_last_one_holds(
    ranks: LocalProcesses, tmp_path: Path
) -> None:
    (result,) = ranks.run(ended, 1, tmp_path, EVERY_TEN, {"later": ["stops"]}, size=1)
    assert result["steps"] == 25
    assert weights_in(tmp_path / "saved") == result["memory"] == result["finished"]
    (line,) = (line for line in result["said"] if "trainer.save_model(folder)" in line)
    assert "checkpoint-20, the last one, those of its own step" in line


def test_training_that_is_over_stays_over_when_resumed(ranks: LocalProcesses, tmp_path: Path) -> None:
    (first,) = ranks.run(ended, 1, tmp_path, EVERY_TEN, size=1)
    run = {"resume": str(tmp_path / "checkpoint-60")}
    (again,) = ranks.run(ended, 1, tmp_path / "again", EVERY_TEN, run, size=1)
    assert again["memory"] == again["finished"] == first["memory"]
    assert again["best"].step == first["best"].step
    assert again["best"].loss == first["best"].loss


# ---------------------------------------------------------------------- an early stop


@pytest.mark.parametrize(("total", "size", "end"), [(100, 1, 30), (100, 2, 30), (28, 1, 28)])
def test_an_early_stop_decays_first(
    ranks: LocalProcesses, tmp_path: Path, total: int, size: int, end: int
) -> None:
    """It is asked for at step 20; the decay takes ten steps, or what is left of the run."""
    settings = {**CHOOSES, "max_steps": total}
    run = {"data": llama.data(count=400), "later": ["impatient"]}
    results = ranks.run(ended, size, tmp_path, settings, run, size=size)
    for result in results:
        assert result["steps"] == end
        assert result["lr"] == 0.0
        assert math.isfinite(result["again"].estimate)
    assert weights_in(tmp_path / f"checkpoint-{end}") == results[0]["finished"]
    (line,) = (line for line in results[0]["said"] if "EarlyStoppingCallback" in line)
    assert line.endswith(f"asks to stop: the learning rate decays and training ends at step {end}")


def test_a_schedule_that_decays_by_itself_is_stopped_at_once(ranks: LocalProcesses, tmp_path: Path) -> None:
    run = {"later": ["impatient"], "method": partial(hdet.AutoLR, schedule="cosine")}
    (result,) = ranks.run(ended, 1, tmp_path, CHOOSES, run, size=1)
    assert result["steps"] == 20
    assert any("it cannot decay now: that takes the schedule 'wsd'" in line for line in result["said"])
    assert weights_in(tmp_path / "checkpoint-20") == result["finished"]


# ---------------------------------------------------------------------- names


def test_the_old_name_says_the_new_one(tmp_path: Path) -> None:
    from hdet.integrations.transformers import HDETTrainer

    with llama.launched(0, 1):
        made = HDETTrainer(
            model=llama.model(),
            args=llama.arguments(tmp_path),
            data_collator=partial(llama.collate, None),
            train_dataset=llama.data(),
        )
    assert made.auto is None
    with pytest.raises(AttributeError, match=r"HDETTrainer\.door was renamed in 0\.3\.0: use \.auto"):
        made.door  # noqa: B018


logging.getLogger("transformers").setLevel(logging.ERROR)
