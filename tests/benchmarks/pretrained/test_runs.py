"""The runs on pretrained models, with a tiny random encoder in their place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.pretrained import runs
from benchmarks.pretrained.plan import Run
from benchmarks.pretrained.runs import FOLDER, execute

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
YIELD = Run("suzuki", "published", 0, 1e-3, 0.1, 4)
TEXT = Run("questions", "usual", 0, 2e-5, 0.1, 4, 80)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, and a task of each kind, which the first token tells."""
    from benchmarks.pretrained.fetch import save_model, save_task

    config = {**SIZES, "vocab_size": 20, "max_position_embeddings": 16}
    torch.manual_seed(0)
    bare = transformers.BertModel(transformers.BertConfig(**config)).state_dict()
    save_model(tmp_path / "yield-bert-ft.pt", config, {f"bert.{name}": bare[name] for name in bare})
    save_model(tmp_path / "minilm.pt", config, bare)
    draw = np.random.RandomState(0)
    tokens = [draw.randint(1, 20, size=draw.randint(2, 9)).tolist() for _ in range(160)]
    orders = [draw.permutation(160) for _ in range(5)]
    save_task(tmp_path / "suzuki.npz", tokens, [5.0 * one[0] for one in tokens], orders, 120)
    save_task(tmp_path / "questions.npz", tokens, [one[0] % 3 for one in tokens], orders[:1], 120)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("arm", ["published", "autolr", "default"])
def test_a_yield_is_told_by_its_error_on_rows_that_were_not_trained_on(arm: str) -> None:
    row = execute(replace(YIELD, arm=arm, rate=None if arm == "autolr" else 1e-3))
    assert "error" not in row
    assert row["r2"] < 1
    assert row["rmse"] > 0
    assert (row["chosen_kind"] == "end" and row["steps"] == 4 * 8) or arm == "autolr"


def test_replicas_train_on_batches_of_their_own_and_tune_the_dropout() -> None:
    row = execute(replace(YIELD, arm="autotune", rate=None))
    assert "error" not in row
    assert 0.05 <= row["values"]["dropout"] <= 0.8


def test_as_it_ran_the_dropout_ends_with_the_first_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[float] = []
    measure = runs._measure

    def watched(model: torch.nn.Module, *given: object) -> object:
        dropped.extend(layer.p for layer in model.modules() if isinstance(layer, torch.nn.Dropout))
        return measure(model, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "_measure", watched)
    for arm, p in (("published", {0.1}), ("published, as it ran", {0.0})):
        dropped.clear()
        assert "error" not in execute(replace(YIELD, arm=arm))
        assert set(dropped) == p


def test_a_run_that_is_repeated_ends_the_same() -> None:
    first, second = (execute(TEXT) for _ in range(2))
    assert first["loss"] == second["loss"]


def test_lora_trains_the_adapters_and_the_head_alone(folder: Path) -> None:
    from benchmarks.pretrained.models import add_lora_, load

    model = load(folder / "minilm.pt", 3, 0.1)
    rows, mask = torch.randint(1, 20, (4, 6)), torch.ones(4, 6, dtype=torch.long)
    before = model.eval()(rows, mask).logits
    add_lora_(model)
    assert torch.equal(model.eval()(rows, mask).logits, before)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert {name.split(".")[0] for name in trained if "attention" not in name} == {"classifier"}
    assert len([name for name in trained if "attention" in name]) == 4
    assert "error" not in execute(replace(TEXT, lora=True))


def test_what_is_held_out_is_neither_trained_on_nor_tested_with(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[int]] = []
    batch = runs.Data.batch

    def watched(data: runs.Data, rows: torch.Tensor) -> object:
        asked.append(set(rows.tolist()))
        return batch(data, rows)

    monkeypatch.setattr(runs.Data, "batch", watched)
    execute(replace(TEXT, arm="sweep", held=True))
    *steps, held = asked  # few rows are measured in one batch
    trained = set().union(*steps)
    assert len(held) == 16
    assert len(trained) == 64
    assert not held & trained


def test_weights_of_another_model_are_an_error(folder: Path) -> None:
    torch.save({"config": SIZES, "weights": {"other": torch.ones(1)}}, folder / "minilm.pt")
    assert "must hold the encoder's weights" in execute(TEXT)["error"]
