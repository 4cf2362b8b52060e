"""LoRA adapters begin at B = 0: the learning rate is found, and they are averaged, saved and gone on with."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hdet.replicas.launch import LocalProcesses
from tests.integrations import llama

pytest.importorskip("peft", reason="make test-integrations installs PEFT")
pytest.importorskip("transformers", reason="make test-integrations installs Transformers")
# The first run on fresh processes imports all of it on each of them.
pytestmark = pytest.mark.timeout(400)
BOUND = 180.0


def adapted(
    rank: int, size: int, folder: Path, kind: str, settings: dict[str, Any], resume: str | None
) -> Any:
    from peft import LoraConfig, get_peft_model

    from hdet.integrations.transformers import HDETTrainer

    with llama.launched(rank, size):
        torch.manual_seed(0)
        model = get_peft_model(
            llama.model(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
        )
        trainer = HDETTrainer(
            model=model,
            args=llama.arguments(folder, **settings),
            data_collator=partial(llama.collate, None),
            train_dataset=llama.data(),
            eval_dataset=llama.data(200_000, 16),
            method="autolr" if kind == "auto_lr" else llama.one_cycle(),
        )
        trainer.train(resume_from_checkpoint=resume)
        moved = {name for name, p in model.named_parameters() if p.requires_grad}
        return {
            "digest": llama.digest(model),
            "moved": all("lora" in name for name in moved),
            "counted": trainer.auto.last_epoch,
            "best": getattr(trainer.auto, "best", None),
            "logs": [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry],
            "loaded": trainer.evaluate()["eval_loss"],
        }


@pytest.mark.parametrize(("kind", "size"), [("auto_lr", 1), ("one_cycle", 2)])
def test_adapters_train_and_go_on(ranks: LocalProcesses, tmp_path: Path, kind: str, size: int) -> None:
    settings = {"max_steps": 45, "save_strategy": "steps", "save_steps": 15}
    whole = ranks.run(adapted, size, tmp_path, kind, settings, None, size=size, timeout=BOUND)
    assert len({result["digest"] for result in whole}) == 1
    assert all(result["moved"] and result["counted"] == 45 for result in whole)
    assert (tmp_path / "checkpoint-15" / "adapter_model.safetensors").exists()
    resumed = ranks.run(
        adapted, size, tmp_path, kind, settings, str(tmp_path / "checkpoint-15"), size=size, timeout=BOUND
    )
    assert [result["digest"] for result in resumed] == [result["digest"] for result in whole]


def test_the_best_adapters_are_loaded(ranks: LocalProcesses, tmp_path: Path) -> None:
    looked = {"eval_strategy": "steps", "eval_steps": 15, "save_strategy": "steps", "save_steps": 15}
    settings = {"max_steps": 45, "load_best_model_at_end": True, **looked}
    results = ranks.run(adapted, 2, tmp_path, "one_cycle", settings, None, size=2, timeout=BOUND)
    for result in results:
        assert result["loaded"] == pytest.approx(min(result["logs"][:3]), rel=1e-6)
