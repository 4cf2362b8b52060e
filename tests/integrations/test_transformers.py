"""A Trainer with hdet inside decides as a plain loop does, and goes on where it was stopped."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.integrations import llama
from tests.standing import standing

pytest.importorskip("transformers", reason="make test-integrations installs Transformers")


def door_of(kind: str, history: Path, **more: Any) -> Any:
    if kind == "autotune":  # by name
        return kind
    if kind == "auto_lr":
        return partial(hdet.AutoLR, history=history, **more)
    if kind == "auto_tune":  # replicas that diverge within a window

        def build(optimizer: Any, total_steps: int, probe: hdet.Probe) -> hdet.AutoTune:
            given: dict[str, Any] = {"total_steps": total_steps, "probe": probe, "history": history, **more}
            return standing(hdet.AutoTune(optimizer, [hdet.WeightDecay()], **given))

        return build
    return llama.one_cycle(history=history, **more)


def train(
    rank: int, size: int, folder: Path, kind: str, settings: dict[str, Any], run: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One run of the Trainer; ``run`` says what is odd about it."""
    from hdet.integrations.transformers import HDETTrainer

    odd = {"resume": None, "ragged": False, "door": {}, "history": "history.jsonl", **(run or {})}
    with llama.launched(rank, size):
        model, seen = llama.model(), []
        trainer = HDETTrainer(
            model=model,
            args=llama.arguments(folder, **settings),
            data_collator=partial(llama.collate, seen),
            train_dataset=llama.data(ragged=odd["ragged"]),
            eval_dataset=llama.data(200_000, 16),
            probe_dataset=llama.data(*llama.PROBE) if kind != "one_cycle" else None,
            optimizers=(llama.optimizer(model), None),
            method=door_of(kind, folder / odd["history"], **odd["door"]),
            callbacks=odd.get("callbacks"),
        )
        trainer.train(resume_from_checkpoint=odd["resume"])
        return {
            "digest": llama.digest(model),
            "seen": seen,
            "steps": trainer.state.global_step,
            "lr": trainer.auto.get_last_lr(),
            "logs": trainer.state.log_history,
        }


def plain(rank: int, size: int, folder: Path, kind: str, seen: list[list[list[int]]], steps: int) -> str:
    """The same run without a Trainer, on the batches that it saw, gradients accumulated as it did."""
    model = llama.model()
    wrapped = DistributedDataParallel(model) if size > 1 else model
    optimizer = llama.optimizer(model)
    rows = {row["n"]: row for row in llama.data()}
    given: dict[str, Any] = {"total_steps": steps, "model": wrapped}
    if kind == "auto_lr":
        held_out = llama.data(*llama.PROBE)[rank::size]
        batches = [llama.collate(None, held_out[i : i + llama.BATCH]) for i in range(0, len(held_out), 4)]
        given = {
            "total_steps": steps,
            "probe": hdet.Probe(lambda batch: model(**batch).loss, batches, model=wrapped),
        }
    torch.manual_seed(1)  # a probe takes its seed from here, as the Trainer's does
    door = door_of(kind, folder / "plain.jsonl")(optimizer, **given)
    model.train()
    own = iter(seen[rank])
    for _ in range(steps):
        batch = llama.collate(None, [rows[n] for n in next(own)])
        items = batch["labels"][:, 1:].numel() * size
        loss = wrapped(**batch, num_items_in_batch=torch.tensor(items)).loss * size
        loss.backward()
        optimizer.step()
        door.step(loss)
        optimizer.zero_grad()
    if kind == "auto_lr":
        door.finish_()
    return llama.digest(model)


def decisions(path: Path) -> list[Any]:
    """What was seen and decided, without what differs from machine to machine."""
    return [
        (r.step, r.losses, [h.base_after for h in r.hyperparameters], [(s.action, s.lag) for s in r.horizon])
        for r in hdet.history.read_history(path)
    ]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", ["auto_lr", "one_cycle"])
def test_it_decides_as_a_plain_loop(ranks: LocalProcesses, tmp_path: Path, kind: str, size: int) -> None:
    results = ranks.run(train, size, tmp_path, kind, {"max_steps": 60}, size=size)
    assert len({result["digest"] for result in results}) == 1
    assert {result["steps"] for result in results} == {60}
    seen = [result["seen"] for result in results]
    digests = ranks.run(plain, size, tmp_path, kind, seen, 60, size=size)
    ours, theirs = (decisions(tmp_path / name) for name in ("history.jsonl", "plain.jsonl"))
    assert len(ours) >= 4
    assert json.dumps(ours) == json.dumps(theirs)
    assert digests[0] == results[0]["digest"]


# ---------------------------------------------------------------------- by name


def by_name(rank: int, size: int, folder: Path, method: Any) -> dict[str, Any]:
    from transformers import TrainerCallback

    from hdet.integrations.transformers import HDETTrainer

    watched = llama.Watched()

    class Watch(TrainerCallback):
        def on_train_begin(self, *_: Any, model: Any = None, optimizer: Any = None, **__: Any) -> None:
            # After hdet's own hook.
            optimizer.optimizer.register_step_pre_hook(lambda *_: watched.before(model, optimizer))

        def on_step_end(self, *_: Any, model: Any = None, **__: Any) -> None:
            watched.after(model, trainer.auto)

    with llama.launched(rank, size), watched.listening():
        model = llama.model()
        trainer = HDETTrainer(
            model=model,
            args=llama.arguments(folder, max_steps=60),
            data_collator=partial(llama.collate, None),
            train_dataset=llama.data(),
            optimizers=(llama.optimizer(model), None),
            method=method,
            callbacks=[Watch()],
        )
        trainer.train()
    return {**watched.told(trainer.auto, model), "lr": trainer.auto.get_last_lr()}


@pytest.mark.parametrize("method", ["autotune", partial(hdet.AutoTune, explore=[hdet.WeightDecay()])])
def test_autotune_shares_gradients_and_then_each_has_its_own(
    ranks: LocalProcesses, tmp_path: Path, method: Any
) -> None:
    """By its name, or as a callable."""
    llama.assert_tuned_apart(*ranks.run(by_name, 2, tmp_path, method, size=2), "HDETTrainer")


def by_hand(optimizer: Any, total_steps: int, model: Any) -> hdet.OneCycleAutoLR:
    return hdet.OneCycleAutoLR(
        optimizer,
        max_lr=1e-3,
        total_steps=total_steps,
        model=model,
        ensemble_lr_spread_ratio=1 / 9,
        model_sync_interval=1,
        enable_auto_lr=True,
        auto_lr_warmup_steps=total_steps // 3,
        loss_scale=0.1,
    )


def test_published_is_the_scheduler_by_hand(ranks: LocalProcesses, tmp_path: Path) -> None:
    named = ranks.run(by_name, 2, tmp_path, "published", size=2)
    for ours, theirs in zip(named, ranks.run(by_name, 2, tmp_path, by_hand, size=2), strict=True):
        assert torch.equal(ours["end"], theirs["end"])
        assert ours["lr"] == theirs["lr"]
        assert ours["lr"][0] < 1e-5, "it has come down"


# ---------------------------------------------------------------------- stopped, and gone on with


def decided_after(path: Path, step: int) -> str:
    return json.dumps([decision for decision in decisions(path) if decision[0] > step])


@pytest.mark.parametrize(
    ("kind", "size", "more"),
    [
        ("auto_lr", 1, {}),
        ("auto_lr", 2, {}),
        ("auto_tune", 2, {}),
        ("one_cycle", 2, {}),
        ("one_cycle", 3, {}),  # with two, only the sign of their difference would count
    ],
)
def test_a_run_that_was_stopped_equals_the_unbroken_one(
    ranks: LocalProcesses, tmp_path: Path, kind: str, size: int, more: dict[str, Any]
) -> None:
    settings = {"max_steps": 50, "save_strategy": "steps", "save_steps": 8}
    whole = ranks.run(train, size, tmp_path, kind, settings, {"door": more}, size=size)
    for step in (24, 40) if kind == "one_cycle" else (8, 32):  # all are within a round, but for 40
        run = {"door": more, "resume": str(tmp_path / f"checkpoint-{step}"), "history": f"from-{step}.jsonl"}
        resumed = ranks.run(train, size, tmp_path, kind, settings, run, size=size)
        assert [r["digest"] for r in resumed] == [r["digest"] for r in whole], step
        ours = decided_after(tmp_path / f"from-{step}.jsonl", step)
        theirs = decided_after(tmp_path / "history.jsonl", step)
        if kind == "auto_lr" and size > 1:  # losses that nothing is judged by: only rank 0's are kept
            ours, theirs = (json.dumps([[s, *rest] for s, _, *rest in json.loads(d)]) for d in (ours, theirs))
        assert ours == theirs, step


def test_autotune_goes_on_where_it_was_stopped(ranks: LocalProcesses, tmp_path: Path) -> None:
    settings = {"max_steps": 50, "save_strategy": "steps", "save_steps": 8}
    whole = ranks.run(train, 2, tmp_path, "autotune", settings, size=2)
    for step in (8, 32):  # both are within a window
        run = {"resume": str(tmp_path / f"checkpoint-{step}")}
        resumed = ranks.run(train, 2, tmp_path, "autotune", settings, run, size=2)
        assert [r["digest"] for r in resumed] == [r["digest"] for r in whole], step


@pytest.mark.parametrize("kind", ["auto_lr", "one_cycle"])
def test_a_run_of_two_goes_on_alone(ranks: LocalProcesses, tmp_path: Path, kind: str) -> None:
    settings = {"max_steps": 60, "save_strategy": "steps", "save_steps": 25}
    ranks.run(train, 2, tmp_path, kind, settings, size=2)
    run = {"resume": str(tmp_path / "checkpoint-25"), "history": "alone.jsonl"}
    (alone,) = ranks.run(train, 1, tmp_path, kind, settings, run, size=1)
    assert alone["steps"] == 60
    before = [d for d in decisions(tmp_path / "history.jsonl") if d[0] <= 25][-1]
    after = decisions(tmp_path / "alone.jsonl")
    assert after[0][0] > 25
    assert after[-1][0] == 60
    assert all(len(losses) == 1 for _, losses, *_ in after)
    if kind == "auto_lr":
        assert after[0][2][0] == pytest.approx(before[2][0], rel=3), "it does not begin anew at 1e-6"


# ---------------------------------------------------------------------- looked at within a round


def looked_at(
    rank: int, size: int, folder: Path, settings: dict[str, Any], stop: int | None
) -> dict[str, Any]:
    """What a model holds when somebody looks at it: its own weights before, and what is seen then."""
    from transformers import TrainerCallback

    seen: dict[str, Any] = {}

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            seen["own"] = torch.cat([p.detach().flatten() for p in model.parameters()])
            control.should_training_stop = control.should_training_stop or state.global_step == stop

        def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            at = torch.cat([p.detach().flatten() for p in model.parameters()])
            seen.setdefault("evaluated", (seen["own"], at))

        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            at = torch.cat([p.detach().flatten() for p in model.parameters()])
            seen["ended"] = (seen["own"], at)

    train(rank, size, folder, "one_cycle", settings, {"callbacks": [Watch()]})
    return seen


def assert_mean(results: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    own, at = zip(*results, strict=True)
    assert not torch.equal(own[0], own[1]), "they were apart"
    assert all(torch.equal(at[0], other) for other in at)
    torch.testing.assert_close(at[0], sum(own) / len(own), rtol=1e-6, atol=1e-8)


def test_what_is_evaluated_saved_and_ended_with_is_the_mean(ranks: LocalProcesses, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    settings = {"eval_strategy": "steps", "eval_steps": 25, "save_strategy": "steps", "save_steps": 25}
    results = ranks.run(looked_at, 2, tmp_path, settings, 33, size=2)
    assert_mean([result["evaluated"] for result in results])
    saved = load_file(tmp_path / "checkpoint-25" / "model.safetensors")
    expected = results[0]["evaluated"][1]
    model = llama.model()
    model.load_state_dict(saved, strict=False)
    assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), expected)


def test_an_early_stop_ends_with_the_mean(ranks: LocalProcesses, tmp_path: Path) -> None:
    assert_mean([r["ended"] for r in ranks.run(looked_at, 2, tmp_path, {}, 33, size=2)])


# ---------------------------------------------------------------------- this rank's own loss


def own_losses(rank: int, size: int, folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The losses that the door was told, and those that this rank has by hand."""
    from hdet.integrations.transformers import HDETTrainer

    told, by_hand = [], []

    class Watched(HDETTrainer):
        sums = (0.0, 0)

        def training_step(self, model: Any, inputs: Any, *more: Any) -> torch.Tensor:
            count = int(inputs["labels"][:, 1:].ne(-100).sum())
            with torch.no_grad():
                mean = self.model(**{key: value.clone() for key, value in inputs.items()}).loss.item()
            self.sums = self.sums[0] + mean * count, self.sums[1] + count
            return super().training_step(model, inputs, *more)

        def take_loss(self) -> torch.Tensor | None:
            loss = super().take_loss()
            told.append(float(loss))
            by_hand.append(self.sums[0] / self.sums[1])
            self.sums = 0.0, 0
            return loss

    with llama.launched(rank, size):
        model = llama.model()
        trainer = Watched(
            model=model,
            args=llama.arguments(folder, **settings),
            data_collator=partial(llama.collate, None),
            train_dataset=llama.data(count=25 * llama.BATCH * size, ragged=True),
            optimizers=(llama.optimizer(model), None),
            method=llama.one_cycle(rounds=5),
        )
        trainer.train()
        return {"told": told, "by hand": by_hand, "steps": trainer.auto._cycle.steps}


@pytest.mark.parametrize("together", [True, False])
def test_losses_are_this_ranks_own_and_whole(ranks: LocalProcesses, tmp_path: Path, together: bool) -> None:
    """Each epoch ends with an accumulation of one batch; labels are of unequal lengths."""
    settings = {
        "max_steps": -1,
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 3,
        "average_tokens_across_devices": together,
    }
    for result in ranks.run(own_losses, 2, tmp_path, settings, size=2):
        assert result["steps"] == len(result["told"]) == 2 * 9
        assert result["told"] == pytest.approx(result["by hand"], rel=1e-5)
