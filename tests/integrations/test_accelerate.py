"""Accelerate's loop with hdet inside decides as a plain loop does, and goes on where it was stopped."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.integrations import llama
from tests.standing import standing

pytest.importorskip("accelerate", reason="make test-integrations installs Accelerate")

#: Ten batches an epoch on each rank; three at a time leave one over.
EPOCH, BATCH = 10, 8


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def samples(size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(EPOCH * BATCH * size, 6, generator=draw)
    noise = torch.randn(len(x), 1, generator=draw)
    return x, x[:, :2].prod(1, keepdim=True) + 0.3 * noise


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def door_of(kind: str, model: nn.Module, optimizer: Any, total: int, history: Path, **more: Any) -> Any:
    if kind == "one_cycle":
        return llama.one_cycle(history=history, **more)(optimizer, total_steps=total, model=model)
    held_out = [samples(1, seed) for seed in range(9, 13)]
    probe = hdet.Probe(partial(loss_of, model), held_out, model=model)
    given: dict[str, Any] = {"probe": probe, "total_steps": total, "history": history, **more}
    if kind == "auto_tune":  # replicas that diverge within a window
        return standing(hdet.AutoTune(optimizer, **given))
    return hdet.AutoLR(optimizer, **given)


def train(rank: int, size: int, folder: Path, kind: str, run: dict[str, Any]) -> dict[str, Any]:
    from accelerate import Accelerator

    from hdet.integrations.accelerate import prepare

    odd = {"steps": 60, "save": 25, "resume": 0, "accumulate": 1, "door": {}, "history": "h.jsonl", **run}
    odd |= {"skip": run.get("skip", ())}
    with llama.launched(rank, size):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=odd["accumulate"])
        model = net()
        loader = DataLoader(TensorDataset(*samples(size)), batch_size=BATCH)
        made = accelerator.prepare(model, llama.optimizer(model), loader)
        wrapped, optimizer, loader = made
        history = folder / odd["history"]

        def build(optimizer: Any) -> Any:
            return door_of(kind, wrapped, optimizer, odd["steps"], history, **odd["door"])

        auto = prepare(accelerator, optimizer, build)
        if odd["resume"]:
            accelerator.load_state(str(folder / f"at-{odd['resume']}"))
        counted, lrs, losses = odd["resume"], [], []
        while counted < odd["steps"]:
            batches = accelerator.skip_first_batches(loader, counted % EPOCH if odd["accumulate"] == 1 else 0)
            for batch in batches:
                with accelerator.accumulate(wrapped):
                    loss = loss_of(wrapped, batch)
                    accelerator.backward(loss)
                    skips = counted in odd["skip"]
                    optimizer._is_overflow = skips  # as a GradScaler would have it
                    if not skips:
                        optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.item())
                    auto.step(loss)
                if not accelerator.sync_gradients:
                    continue
                counted += 1
                lrs.append(auto.get_last_lr()[0])
                if counted == odd["save"] and not odd["resume"]:
                    accelerator.save_state(str(folder / f"at-{counted}"))
                if counted == odd["steps"]:
                    break
        auto.converge()
        return {"digest": llama.digest(model), "lrs": lrs, "losses": losses, "steps": auto.last_epoch}


def plain(rank: int, size: int, folder: Path, kind: str, steps: int) -> str:
    model = net()
    wrapped = DistributedDataParallel(model) if size > 1 else model
    optimizer = llama.optimizer(model)
    x, y = samples(size)
    door = door_of(kind, wrapped, optimizer, steps, folder / "plain.jsonl")
    for step in range(steps):
        at = slice(start := (step % EPOCH * size + rank) * BATCH, start + BATCH)
        loss = loss_of(wrapped, (x[at], y[at]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        door.step(loss)
        if step == 24 and door.apart:  # where the other one saves
            door.converge()
    return llama.digest(model)


def decisions(path: Path, after: int = 0) -> str:
    found = [
        (r.step, r.losses, [h.base_after for h in r.hyperparameters], [(s.action, s.lag) for s in r.horizon])
        for r in hdet.history.read_history(path)
    ]
    return json.dumps([decision for decision in found if decision[0] > after])


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", ["auto_lr", "one_cycle"])
def test_it_decides_as_a_plain_loop(ranks: LocalProcesses, tmp_path: Path, kind: str, size: int) -> None:
    results = ranks.run(train, size, tmp_path, kind, {}, size=size)
    digests = ranks.run(plain, size, tmp_path, kind, 60, size=size)
    assert {r["digest"] for r in results} == {digests[0]}
    assert decisions(tmp_path / "h.jsonl") == decisions(tmp_path / "plain.jsonl")
    assert all(r["steps"] == 60 for r in results)


@pytest.mark.parametrize(
    ("kind", "size", "more"),
    [
        ("auto_lr", 1, {}),
        ("auto_tune", 2, {"explore": [hdet.WeightDecay()]}),
        ("one_cycle", 3, {}),
    ],
)
def test_a_run_that_was_stopped_equals_the_unbroken_one(
    ranks: LocalProcesses, tmp_path: Path, kind: str, size: int, more: dict[str, Any]
) -> None:
    whole = ranks.run(train, size, tmp_path, kind, {"door": more}, size=size)
    run = {"door": more, "resume": 25, "history": "resumed.jsonl"}
    resumed = ranks.run(train, size, tmp_path, kind, run, size=size)
    assert [r["digest"] for r in resumed] == [r["digest"] for r in whole]
    assert resumed[0]["lrs"] == whole[0]["lrs"][25:]
    assert decisions(tmp_path / "resumed.jsonl") == decisions(tmp_path / "h.jsonl", after=25)


def test_a_run_of_two_goes_on_alone(ranks: LocalProcesses, tmp_path: Path) -> None:
    whole = ranks.run(train, 2, tmp_path, "one_cycle", {}, size=2)
    run = {"resume": 25, "history": "alone.jsonl"}
    (alone,) = ranks.run(train, 1, tmp_path, "one_cycle", run, size=1)
    assert alone["steps"] == 60
    assert alone["lrs"][0] == whole[0]["lrs"][25]


def test_what_is_saved_within_a_round_is_the_mean(ranks: LocalProcesses, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    ranks.run(train, 2, tmp_path, "one_cycle", {}, size=2)
    model = net()
    model.load_state_dict(load_file(tmp_path / "at-25" / "model.safetensors"))
    means = ranks.run(until_save, 2, tmp_path, size=2)
    assert not torch.equal(means[0], means[1])
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(flat, (means[0] + means[1]) / 2)


def until_save(rank: int, size: int, folder: Path) -> torch.Tensor:
    """The replica's own weights at the step that the other run saves at."""
    model = net()
    wrapped, optimizer = DistributedDataParallel(model), llama.optimizer(model)
    x, y = samples(size)
    door = door_of("one_cycle", wrapped, optimizer, 60, folder / "until.jsonl")
    for step in range(25):
        at = slice(start := (step % EPOCH * size + rank) * BATCH, start + BATCH)
        loss = loss_of(wrapped, (x[at], y[at]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        door.step(loss)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_total_steps_are_optimizer_steps_whatever_the_spread(
    ranks: LocalProcesses, tmp_path: Path, spread: float
) -> None:
    run = {"steps": 40, "door": {"spread": spread, "enable_auto_lr": False}}
    for result in ranks.run(train, 2, tmp_path, "one_cycle", run, size=2):
        expected = torch.optim.lr_scheduler.OneCycleLR(
            optimizer := llama.optimizer(net()), 3e-3, total_steps=40, cycle_momentum=False
        )
        lrs = []
        for _ in range(39):
            optimizer.step()
            expected.step()
            lrs.append(expected.get_last_lr()[0])
        assert result["lrs"][:39] == lrs
        assert result["steps"] == 40


def test_accumulated_losses_are_whole(ranks: LocalProcesses, tmp_path: Path) -> None:
    """Ten batches by threes: the last accumulation of an epoch has one."""
    run = {"steps": 40, "accumulate": 3, "save": 0, "door": {"rounds": 4, "spread": 0.01}}
    results = ranks.run(train, 2, tmp_path, "one_cycle", run, size=2)
    for rank, result in enumerate(results):
        assert result["steps"] == 40
        assert len(result["losses"]) == 100
        parts = [result["losses"][epoch * 10 :][a:b] for epoch in range(10) for a, b in _THREES]
        steps = [sum(part) / len(part) for part in parts]
        told = [r.losses[rank] for r in hdet.history.read_history(tmp_path / "h.jsonl")]
        assert told == pytest.approx([sum(steps[i : i + 4]) / 4 for i in range(0, 40, 4)], rel=1e-6)


_THREES = [(0, 3), (3, 6), (6, 9), (9, 10)]


def test_a_step_that_was_skipped_does_not_count(ranks: LocalProcesses, tmp_path: Path) -> None:
    run = {"steps": 20, "skip": (3, 7), "save": 0, "door": {"rounds": 6}}
    for rank, result in enumerate(ranks.run(train, 2, tmp_path, "one_cycle", run, size=2)):
        assert result["steps"] == 18
        taken = [loss for step, loss in enumerate(result["losses"]) if step not in (3, 7)]
        told = [r.losses[rank] for r in hdet.history.read_history(tmp_path / "h.jsonl")]
        assert told == pytest.approx([sum(taken[i : i + 6]) / 6 for i in range(0, 18, 6)], rel=1e-6)


# ---------------------------------------------------------------------- by name


TUNED = partial(hdet.AutoTune, explore=[hdet.WeightDecay()])


def by_name(rank: int, size: int, method: Any, wraps: bool = True) -> dict[str, Any]:
    from accelerate import Accelerator

    from hdet.integrations.accelerate import prepare

    watched = llama.Watched()
    with llama.launched(rank, size), watched.listening():
        accelerator = Accelerator(cpu=True)
        model = net()
        loader = DataLoader(TensorDataset(*samples(size)), batch_size=BATCH)
        wrapped, optimizer = accelerator.prepare(model, llama.optimizer(model))
        probe = None
        if method in ("autotune", TUNED):
            known = wrapped if wraps else model
            probe, loader = hdet.Probe.set_aside(partial(loss_of, wrapped), loader, model=known)
        loader = accelerator.prepare(loader)
        auto = prepare(accelerator, optimizer, method, total_steps=60, probe=probe)
        optimizer.optimizer.register_step_pre_hook(lambda *_: watched.before(model, optimizer))
        while auto.steps < 60:
            for batch in loader:
                with accelerator.accumulate(wrapped):
                    loss = loss_of(wrapped, batch)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    auto.step(loss)
                watched.after(model, auto.auto)
                if auto.steps == 60:
                    break
        auto.converge()
        return watched.told(auto.auto, model)


def test_autotune_shares_gradients_and_then_each_has_its_own(ranks: LocalProcesses) -> None:
    results = ranks.run(by_name, 2, "autotune", size=2)
    llama.assert_tuned_apart(*results, "hdet.integrations.accelerate.prepare")


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


def test_published_is_the_scheduler_by_hand(ranks: LocalProcesses) -> None:
    named, built = (ranks.run(by_name, 2, method, size=2) for method in ("published", by_hand))
    for ours, theirs in zip(named, built, strict=True):
        assert torch.equal(ours["end"], theirs["end"])


# ---------------------------------------------------------------------- what is refused


def plain_probe(rank: int, size: int, named: bool) -> str:
    with pytest.raises(ValueError, match="gradients of their own, the probe's model must be") as caught:
        by_name(rank, size, "autotune" if named else TUNED, wraps=False)
    return str(caught.value)


@pytest.mark.parametrize("named", [True, False])
def test_autotune_must_know_what_is_in_ddp(ranks: LocalProcesses, named: bool) -> None:
    words = "the one that accelerator.prepare returned, in DDP, got Sequential; prepare the model first"
    assert all(words in said for said in ranks.run(plain_probe, 2, named, size=2))


def wrong(rank: int, size: int, folder: Path, how: str) -> str:
    """What is said, on every rank."""
    from accelerate import Accelerator, DistributedType

    from hdet.integrations.accelerate import prepare

    with llama.launched(rank, size):
        accelerator = Accelerator(cpu=True)
        model = net()
        wrapped, optimizer = accelerator.prepare(model, llama.optimizer(model))
        door = door_of("one_cycle", wrapped, optimizer, 40, folder / "h.jsonl")
        given: dict[str, Any] = {"optimizer": optimizer, "method": lambda _: door}
        if how == "another scheduler":
            door = torch.optim.lr_scheduler.ConstantLR(optimizer.optimizer)
        elif how == "a door":
            given = {"optimizer": door, "method": lambda _: door}
        elif how == "a door by name":
            given["door"] = door
        elif how == "no probe":
            given["method"] = "autolr"
        elif how == "deepspeed":  # which is not installed: no more than its name
            accelerator.state.distributed_type = DistributedType.DEEPSPEED
        elif how == "alone":  # as one that was built where no group was
            door = SimpleNamespace(**{name: getattr(door, name) for name in dir(door) if name[0] != "_"})
            door.replicas = SimpleNamespace(world_size=1, local_count=1)
        with pytest.raises((TypeError, ValueError)) as caught:
            prepare(accelerator, **given)
        return str(caught.value)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("another scheduler", "must be an AutoLR, AutoTune, OneCycleAutoLR or Ensemble, got ConstantLR"),
        ("a door", "optimizer must be an optimizer, got OneCycleAutoLR, which is built here since 0.3.0"),
        ("a door by name", "unexpected keyword argument 'door'"),
        ("no probe", "probe goes with what takes it, as 'autolr' and 'autotune' do, got method='autolr'"),
        ("deepspeed", "DEEPSPEED steps flat partitions"),
        ("alone", "must know all 2 processes"),
    ],
)
def test_what_cannot_work_says_so(ranks: LocalProcesses, tmp_path: Path, how: str, says: str) -> None:
    assert all(says in said for said in ranks.run(wrong, 2, tmp_path, how, size=2))


# ---------------------------------------------------------------------- the end


def ended(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Noise, of which the best weights come early."""
    from accelerate import Accelerator

    from hdet.integrations.accelerate import prepare

    with llama.launched(rank, size):
        accelerator = Accelerator(cpu=True)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 256), nn.Tanh(), nn.Linear(256, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, optimizer = accelerator.prepare(model, optimizer)
        draw = torch.Generator().manual_seed(rank)
        x, y = torch.randn(16, 6, generator=draw), torch.randn(16, 1, generator=draw)
        others = [(torch.randn(16, 6, generator=draw), torch.randn(16, 1, generator=draw)) for _ in range(8)]
        probe = hdet.Probe(lambda batch: loss_of(model, batch), others, model=model)
        auto = prepare(accelerator, optimizer, total_steps=80, probe=probe)
        for _ in range(80):
            accelerator.backward(loss_of(model, (x, y)))
            optimizer.step()
            optimizer.zero_grad()
            auto.step()
        best = auto.finish_()
        accelerator.save_state(str(folder / "state"))
        accelerator.save_model(model, str(folder / "model"))
        memory = llama.flat(accelerator.unwrap_model(model))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        accelerator.load_state(str(folder / "state"))
        loaded = llama.flat(accelerator.unwrap_model(model))
        return {"best": best, "claims": auto.best, "memory": memory, "loaded": loaded}


@pytest.mark.parametrize("size", [1, 2])
def test_what_is_saved_at_the_end_is_what_finish_loaded(
    ranks: LocalProcesses, tmp_path: Path, size: int
) -> None:
    from safetensors.torch import load_file

    for result in ranks.run(ended, size, tmp_path, size=size):
        assert result["best"].step < 80, "the last step's weights would be the easy case"
        for folder in ("state", "model"):
            saved = load_file(tmp_path / folder / "model.safetensors")
            ordered = [saved[name].flatten() for name in ("0.weight", "0.bias", "2.weight", "2.bias")]
            assert torch.equal(torch.cat(ordered), result["memory"])
        assert torch.equal(result["loaded"], result["memory"])
        claims, best = result["claims"], result["best"]
        assert (claims.step, claims.kind, claims.loss) == (best.step, best.kind, best.loss)


def test_the_old_name_says_the_new_one() -> None:
    from hdet.integrations.checkpointing import WrappedScheduler

    model = net()
    wrapped = WrappedScheduler(
        "test", hdet.OneCycleAutoLR(torch.optim.SGD(model.parameters(), lr=0.1), 0.1, 100, model=model)
    )
    with pytest.raises(AttributeError, match=r"WrappedScheduler\.door was renamed in 0\.3\.0: use \.auto"):
        wrapped.door  # noqa: B018
