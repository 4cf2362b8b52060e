"""The runs: tiny, in float64, seen through the public face alone. Each gives the lines of its history.

Every scenario is a function of a rank (0 where there is one) that trains to the end, or to ``stop_at``, and
can be taken up from what it had saved there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

import hdet
from hdet.history import SyncRecord
from hdet.loop.announce import Event
from hdet.published.softmax import SoftmaxController
from hdet.tuning.regression import RegressionController

__all__ = ["SAVED", "SCENARIOS", "STATES", "Scenario", "kept"]

#: What the scenarios had saved when they were interrupted, for each format of states.
STATES = Path(__file__).parent / "states"

Saved = dict[str, Any]


class Scenario(NamedTuple):
    """What is run, on how many ranks, for how long, and where it is interrupted.

    ``shows`` says of a whole run whether what the scenario is there for has happened. ``resumes_exactly`` is
    False where the order in which DDP sums its first gradients decides the last bit of a resumed run.
    """

    build: Callable[[int, int], Run]
    ranks: int
    steps: int
    stop_at: int
    shows: Callable[[Saved], bool] | None = None
    resumes_exactly: bool = True

    def __call__(self, rank: int, stop_at: int | None = None, saved: Saved | None = None) -> Saved:
        """Train; the records so far, the weights, what is handed over, and all that a resumed run needs."""
        torch.manual_seed(0)
        run = self.build(rank, self.steps)
        done = 0
        if saved is not None:
            run.load(saved)
            done = self.stop_at
        records = []
        for step in range(done, self.steps if stop_at is None else stop_at):
            line = run.step(step)
            records += [line] if line is not None else []
            if getattr(run.door, "finished", False):
                break
        result = {"records": records, "events": run.events, "weights": hashes(run.model)}
        if stop_at is not None:
            return {**result, "saved": run.save()}
        handed = run.finish()
        return {**result, "handed": handed, "weights_handed": hashes(run.model), "finite": finite(run.model)}


class Run:
    """A model in training."""

    #: Training sees so many batches, again and again; 0: every batch is new.
    batches = 0
    poisoned: int | None = None
    schedule: CosineAnnealingLR | None = None

    def __init__(
        self, rank: int, model: nn.Module, optimizer: Optimizer | list[Optimizer], door: Any
    ) -> None:
        self.rank = rank
        self.model = model
        self.optimizers = optimizer if isinstance(optimizer, list) else [optimizer]
        self.door = door
        self.events: list[list[Any]] = []

    def step(self, step: int) -> str | None:
        return comparable(self.door.step(self.train(step)))

    def train(self, step: int) -> Tensor:
        torch.manual_seed(100 * step + self.rank)  # of dropout
        loss = loss_of(self.model, batch(step % self.batches if self.batches else step, self.rank))
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        (1e4 * loss if step == self.poisoned else loss).backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def finish(self) -> Saved | None:
        """What is handed over at the end; the weights are then those."""
        if not hasattr(self.door, "finish_"):
            return None
        handed = self.door.finish_()
        return None if handed is None else numbers_of(handed)

    def save(self) -> Saved:
        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "door": self.door.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
        }

    def load(self, saved: Saved) -> None:
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        if self.schedule is not None:
            self.schedule.load_state_dict(saved["schedule"])
        self.door.load_state_dict(saved["door"])


class Stacked(Run):
    """Four replicas as rows; the optimizer is that of the rows."""

    def __init__(self, replicas: hdet.StackedReplicas, model: nn.Module, door: Any) -> None:
        super().__init__(0, model, replicas.optimizer, door)
        self._replicas = replicas

    def step(self, step: int) -> str | None:
        x = torch.cat([batch(step, rank)[0] for rank in range(4)])
        y = torch.cat([batch(step, rank)[1] for rank in range(4)])
        losses = self._replicas.losses(loss_of, (x, y))
        self._replicas.optimizer.zero_grad()
        self._replicas.backward(losses)
        self._replicas.optimizer.step()
        record: SyncRecord | None = self.door.step(losses)
        if record is not None:
            self._replicas.write_()
        return comparable(record)


class Kept(Run):
    """Beside a schedule of torch, the best mean is kept; a line whenever there is a better one."""

    def step(self, step: int) -> str | None:
        before = self.door.best
        self.train(step)
        assert self.schedule is not None
        self.schedule.step()
        self.door.step()
        best = self.door.best
        return None if best == before else line(step=step + 1, best=numbers_of(best))


class Guarded(Run):
    """A line every ten steps, and whenever training was taken back."""

    def step(self, step: int) -> str | None:
        went_back = self.door.step(self.train(step)) is not None
        if not went_back and (step + 1) % 10:
            return None
        return line(step=step + 1, went_back=went_back, backs=self.door.backs, weights=hashes(self.model))


class Found(Run):
    """A short search in one step; the model and its optimizer are then what they were."""

    def step(self, step: int) -> str | None:
        batches = [batch(k, self.rank) for k in range(40)]
        rates: list[float] = []
        optimizer = self.optimizers[0]
        found = hdet.find(
            self.model,
            optimizer,
            lambda pair: loss_of(self.model, pair),
            batches,
            steps=120,
            on_step=lambda _: rates.append(optimizer.param_groups[0]["lr"]),
        )
        numbers = ("lr", "lowest", "highest", "steps", "loss_before", "loss_after", "error", "learnt")
        after = optimizer.param_groups[0]["lr"]
        return line(
            step=step + 1, rates=rates, after=after, **{name: getattr(found, name) for name in numbers}
        )


def comparable(record: SyncRecord | None) -> str | None:
    """All of a record but the time it took, and its sentences: a sync's ``events``, a horizon's ``why``."""
    if record is None:
        return None
    of = json.loads(record.to_json())
    del of["milliseconds"], of["events"]
    for horizon in of["horizon"]:
        del horizon["why"]
    return json.dumps(of)


def kept(result: Saved) -> Saved:
    """What is recorded of a whole run."""
    return {name: result[name] for name in ("records", "events", "weights", "handed", "weights_handed")}


def line(**values: Any) -> str:
    return json.dumps(values, allow_nan=False)


def numbers_of(handed: Any) -> Saved:
    """JSON has no NaN: what was not measured is None."""
    every = {name: None if value != value else value for name, value in asdict(handed).items()}
    return {name: value for name, value in every.items() if not name.startswith("metric")}


def hashes(model: nn.Module) -> list[str]:
    """Of every parameter's bytes."""
    return [sha256(p.detach().numpy().tobytes()).hexdigest() for p in model.parameters()]


def finite(model: nn.Module) -> bool:
    return all(bool(p.isfinite().all()) for p in model.parameters())


# ---------------------------------------------------------------------- the task


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(32, 6, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(32, 1, generator=generator, dtype=torch.float64)
    return x, torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + noise


def loss_of(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
    x, y = pair
    return (model(x) - y).square().mean()


def net(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(7)
    layers = [
        nn.Linear(6, 16),
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Linear(16, 16),
        nn.Tanh(),
        nn.Linear(16, 1),
    ]
    return nn.Sequential(*layers).double()


def probe(model: nn.Module, rank: int, per_sync: int = 8) -> hdet.Probe:
    held_out = [batch(50_000 + k, rank) for k in range(24)]
    return hdet.Probe(lambda pair: loss_of(model, pair), held_out, model=model, per_sync=per_sync)


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    first, *rest = model.parameters()
    return [{"params": [first], "lr": 0.02}, {"params": rest, "lr": 0.01}]


# ---------------------------------------------------------------------- the runs


def auto_lr_adamw(rank: int, steps: int) -> Run:
    model = net()
    optimizer = AdamW(model.parameters())
    return Run(rank, model, optimizer, hdet.AutoLR(optimizer, probe=probe(model, rank), total_steps=steps))


def published(rank: int, steps: int) -> Run:
    return _published(rank, steps, "schedule")


def published_geometric(rank: int, steps: int) -> Run:
    return _published(rank, steps, "geometric")


def _published(rank: int, steps: int, decay: Any) -> Run:
    model = net()
    shared = nn.parallel.DistributedDataParallel(model)
    optimizer = SGD(two_groups(model), momentum=0.9)
    door = hdet.OneCycleAutoLR(
        optimizer,
        max_lr=[0.1, 0.05],
        total_steps=steps,
        ensemble_lr_spread_ratio=1 / 3,
        model_sync_interval=10,
        enable_auto_lr=True,
        auto_lr_warmup_steps=20,
        loss_scale="auto",
        decay=decay,
        model=model,
    )
    return Run(rank, shared, optimizer, door)


def regression(rank: int, steps: int) -> Run:
    model = net(dropout=0.2)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    explore = [hdet.LearningRate(), hdet.WeightDecay(), hdet.Dropout(model)]
    schedule = CosineAnnealingLR(optimizer, steps)
    door = hdet.Ensemble(
        optimizer,
        explore,
        schedule=schedule,
        sync_every=10,
        total_steps=steps,
        probe=probe(model, rank),
        gradients="none",
        model=model,
        seed=3,
    )
    run = Run(rank, model, optimizer, door)
    run.schedule = schedule
    return run


def vote_by_probe(rank: int, steps: int) -> Run:
    model = net()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    door = hdet.Ensemble(
        optimizer,
        [hdet.LearningRate(0.3), hdet.WeightDecay()],
        sync_every=10,
        total_steps=steps,
        probe=probe(model, rank),
        controller=SoftmaxController("auto"),
        gradients="none",
        model=model,
    )
    return Run(rank, model, optimizer, door)


def stacked(rank: int, steps: int) -> Run:
    model = net()
    replicas = hdet.StackedReplicas(model, SGD(model.parameters(), lr=0.05), 4)
    door = hdet.Ensemble(
        replicas.optimizer,
        [hdet.LearningRate(0.3), hdet.WeightDecay()],
        sync_every=10,
        total_steps=steps,
        controller=RegressionController(),
        model=model,
    )
    return Stacked(replicas, model, door)


def auto_lr(rank: int, model: nn.Module, optimizer: Any, steps: int | None, **options: Any) -> Run:
    """A run of AutoLR with its events."""
    run = Run(rank, model, optimizer, None)
    run.door = hdet.AutoLR(
        optimizer, probe=probe(model, rank), total_steps=steps, on_event=heard(run), **options
    )
    return run


def heard(run: Run) -> Callable[[Event], None]:
    return lambda event: run.events.append([event.step, event.kind])


def auto_lr_rollback(rank: int, steps: int) -> Run:
    model = net()
    run = auto_lr(rank, model, SGD(model.parameters(), momentum=0.9), steps)
    run.poisoned = 100
    return run


def auto_lr_restart(rank: int, steps: int) -> Run:
    model = net()
    run = auto_lr(rank, model, SGD(model.parameters(), momentum=0.9), steps)
    run.batches = 3
    return run


def auto_lr_behind(rank: int, steps: int) -> Run:
    model = net()
    run = auto_lr(rank, model, SGD(model.parameters(), momentum=0.9), steps)
    run.batches = 3
    return run


def auto_lr_open_ended(rank: int, steps: int) -> Run:
    model = net()
    run = auto_lr(rank, model, SGD(model.parameters(), momentum=0.9), None, patience=1)
    run.batches = 2
    return run


def auto_lr_two_ranks(rank: int, steps: int) -> Run:
    model = net()
    shared = nn.parallel.DistributedDataParallel(model)
    return auto_lr(rank, shared, AdamW(model.parameters()), steps)


def auto_lr_two_optimizers(rank: int, steps: int) -> Run:
    model = net()
    parameters = list(model.parameters())
    return auto_lr(rank, model, [SGD(parameters[:3], momentum=0.9), AdamW(parameters[3:])], steps)


def auto_lr_cosine(rank: int, steps: int) -> Run:
    model = net()
    return auto_lr(rank, model, SGD(two_groups(model), momentum=0.9), steps, schedule="cosine")


def auto_tune(rank: int, steps: int) -> Run:
    model = net(dropout=0.2)
    optimizer = AdamW(model.parameters())
    run = Run(rank, model, optimizer, None)
    run.batches = 1  # learnt by heart: soon a window does not improve, and all is explored
    explore = [hdet.WeightDecay(), hdet.Dropout(model)]
    run.door = hdet.AutoTune(
        optimizer, explore, probe=probe(model, rank), total_steps=steps, on_event=heard(run)
    )
    return run


def best_mean(rank: int, steps: int) -> Run:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = Kept(rank, model, optimizer, hdet.BestMean(model, probe(model, rank)))
    run.schedule = CosineAnnealingLR(optimizer, steps)
    run.batches = 2
    return run


def guard(rank: int, steps: int) -> Run:
    return _guarded(rank, by_probe=True)


def guard_by_training_losses(rank: int, steps: int) -> Run:
    return _guarded(rank, by_probe=False)


def _guarded(rank: int, *, by_probe: bool) -> Run:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
    options = {"probe": probe(model, rank)} if by_probe else {}
    run = Guarded(rank, model, optimizer, hdet.Guard(optimizer, model=model, **options))
    run.poisoned = 250
    return run


def find(rank: int, steps: int) -> Run:
    model = net()
    return Found(rank, model, SGD(model.parameters(), lr=0.5, momentum=0.9), None)


def rolled_back(whole: Saved) -> bool:
    """At a window's end training went back to the weights that the window found."""
    return bool(_backs(whole) & _rollbacks(whole))


def went_back_to_the_best_and_the_beginning(whole: Saved) -> bool:
    """Because much of what was gained was lost; at the beginning the learning rate is next to none."""
    after = {record["step"]: record["hyperparameters"][0]["base_after"] for record in _parsed(whole)}
    rates = [after[step] for step in _backs(whole) - _rollbacks(whole)]
    return any(rate < 1.5e-5 for rate in rates) and any(rate > 1.5e-5 for rate in rates)


def went_back_once(whole: Saved) -> bool:
    """After two windows that were clearly worse than the best."""
    return len(_backs(whole) - _rollbacks(whole)) == 1


def gave_up(whole: Saved) -> bool:
    """After going back once, training came down and ended."""
    return len(_backs(whole) - _rollbacks(whole)) == 1 and whole["events"][-1][1] == "end"


def moved_all(whole: Saved) -> bool:
    """Every hyperparameter was moved."""
    explored = [one for record in _parsed(whole) for one in record["hyperparameters"]]
    moved = {one["name"] for one in explored if one["base_after"] != one["base_before"]}
    return moved == {one["name"] for one in explored} and len(moved) == 3


def was_guarded(whole: Saved) -> bool:
    return any(record["went_back"] for record in _parsed(whole))


def _parsed(whole: Saved) -> list[dict[str, Any]]:
    return [json.loads(record) for record in whole["records"]]


def _backs(whole: Saved) -> set[int]:
    return {step for step, kind in whole["events"] if kind == "back"}


def _rollbacks(whole: Saved) -> set[int]:
    return {record["step"] for record in _parsed(whole) if record["horizon"][0]["action"] == "back"}


SCENARIOS = {
    "auto_lr_adamw": Scenario(auto_lr_adamw, 1, 300, 130),
    "auto_lr_rollback": Scenario(auto_lr_rollback, 1, 200, 90, rolled_back),
    "auto_lr_restart": Scenario(auto_lr_restart, 1, 2000, 480, went_back_to_the_best_and_the_beginning),
    "auto_lr_behind": Scenario(auto_lr_behind, 1, 900, 160, went_back_once),
    "auto_lr_open_ended": Scenario(auto_lr_open_ended, 1, 900, 400, gave_up),
    "auto_lr_two_ranks": Scenario(auto_lr_two_ranks, 2, 160, 75),
    "auto_lr_two_optimizers": Scenario(auto_lr_two_optimizers, 1, 200, 90),
    "auto_lr_cosine": Scenario(auto_lr_cosine, 1, 200, 90),
    "auto_tune": Scenario(auto_tune, 4, 400, 90, moved_all),
    "auto_tune_alone": Scenario(auto_tune, 1, 4000, 200, moved_all),
    "best_mean": Scenario(best_mean, 1, 200, 90),
    "guard": Scenario(guard, 1, 400, 200, was_guarded),
    "guard_by_training_losses": Scenario(guard_by_training_losses, 1, 400, 200, was_guarded),
    "find": Scenario(find, 1, 1, 1),
    "published": Scenario(published, 4, 80, 40, resumes_exactly=False),
    "published_geometric": Scenario(published_geometric, 2, 80, 45),
    "regression": Scenario(regression, 4, 80, 40),
    "vote_by_probe": Scenario(vote_by_probe, 2, 60, 30),
    "stacked": Scenario(stacked, 1, 60, 60),
}

#: Those of which a state is recorded: one a door, on one rank and on two.
SAVED = ("auto_lr_adamw", "auto_tune_alone", "best_mean", "guard", "published_geometric", "vote_by_probe")
