"""AutoLR on one replica: what it finds, what it leaves alone, and how a run is broken off and taken up."""

from __future__ import annotations

import io
import json
import logging
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import hdet
from hdet.bench.workloads import quadratic
from hdet.controllers import HorizonController, HorizonDecision, HorizonState, Window
from hdet.schedules.shapes import SHAPES, WarmStableDecay

LRS = [1e-8, 1e-5, 1e-2, 10.0]


def decisions(records: list[hdet.SyncRecord]) -> list[str]:
    """Everything but the time it took; as text, where NaN equals NaN."""
    return [replace(record, milliseconds=0.0).to_json() for record in records]


# ---------------------------------------------------------------------- a quadratic without noise


class Point(nn.Module):
    def __init__(self, curvatures: list[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones(len(curvatures), dtype=dtype))
        self.curvatures = torch.tensor(curvatures, dtype=dtype)

    def forward(self, _: object = None) -> Tensor:
        return 0.5 * (self.curvatures * self.x**2).sum()


def descend(curvatures: list[float], lr: float, steps: int = 1000) -> tuple[Point, list[hdet.SyncRecord]]:
    point = Point(curvatures)
    optimizer = torch.optim.SGD(point.parameters(), lr=lr)
    auto = hdet.AutoLR(optimizer, probe=hdet.Probe(point, lambda k: k, model=point), total_steps=steps)
    records = []
    for _ in range(steps):
        optimizer.zero_grad()
        point().backward()
        optimizer.step()
        record = auto.step()
        records += [record] if record else []
    return point, records


def gradient_descent(curvatures: list[float], lr: float, steps: int = 1000) -> float:
    """Plain, on the same schedule, in closed form: each coordinate is multiplied by 1 − lr·s(t)·h."""
    shape = WarmStableDecay.of(steps)
    ends = [math.prod(1 - lr * shape(t) * h for t in range(steps)) for h in curvatures]
    return sum(0.5 * h * x**2 for h, x in zip(curvatures, ends, strict=True))


@pytest.mark.parametrize("curvature", [1e-3, 1.0, 100.0])
def test_one_dimension_without_noise_ends_at_the_minimum(curvature: float) -> None:
    """And once there is nothing more to gain, the factor stays as it is."""
    start = 0.5 * curvature
    point, records = descend([curvature], 1.0)
    assert point().item() < 1e-8 * start
    assert point().item() - gradient_descent([curvature], 1 / curvature) < 1e-8 * start
    last = records[-1]
    assert (last.horizon[0].action, last.horizon[0].why) == ("hold", "no progress")
    assert last.hyperparameters[0].base_after * curvature < 2, "below the edge of stability"


@pytest.mark.parametrize("curvatures", [[1.0, 0.01], [1.0, 1e-3], [100.0, 0.1]])
def test_two_dimensions_without_noise_lose_little_to_the_best_learning_rate(curvatures: list[float]) -> None:
    """What holds here, and no more: it is stable, it settles, and at most 0.5 % of the improvement is lost.

    Along the flat direction there is always a little left, less than counts as progress, so the factor
    stops growing before the minimum is reached to the last bit.
    """
    start = Point(curvatures)().item()
    point, records = descend(curvatures, 1.0)
    grid = [10 ** (k / 4) / max(curvatures) for k in range(-8, 2)]
    best = min(gradient_descent(curvatures, lr) for lr in grid)
    assert (point().item() - best) / (start - best) < 5e-3
    factors = [record.hyperparameters[0].base_after for record in records]
    assert factors[-3:] == [factors[-1]] * 3
    assert factors[-1] * max(curvatures) < 2


# ---------------------------------------------------------------------- a noisy one, and a sweep


TASK = quadratic.make()
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adamw": torch.optim.AdamW,
}


def search(kind: str, lr: float, steps: int = TASK.steps) -> tuple[nn.Module, list[hdet.SyncRecord]]:
    model = TASK.build(0)
    optimizer = OPTIMIZERS[kind](model.parameters(), lr=lr)
    probe = hdet.Probe(lambda batch: TASK.loss(model, batch), TASK.probe(0), model=model)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=steps)
    records, batches = [], TASK.batches(0)
    for _ in range(steps):
        optimizer.zero_grad()
        TASK.loss(model, next(batches)).backward()
        optimizer.step()
        record = auto.step()
        records += [record] if record else []
    return model, records


def sweep(kind: str, lrs: list[float]) -> list[float]:
    """Constant, then linearly to zero: the same shape, with learning rates that somebody chose.

    All in one optimizer, on the same batches, each point in a group of its own: none knows of another.
    """
    points = [TASK.build(0) for _ in lrs]
    groups = [{"params": point.parameters(), "lr": lr} for point, lr in zip(points, lrs, strict=True)]
    optimizer = OPTIMIZERS[kind](groups)
    scheduler = lr_scheduler.LambdaLR(optimizer, WarmStableDecay.of(TASK.steps))
    batches = TASK.batches(0)
    for _ in range(TASK.steps):
        optimizer.zero_grad()
        samples = next(batches)
        torch.stack([TASK.loss(point, samples) for point in points]).sum().backward()
        optimizer.step()
        scheduler.step()
    return [TASK.evaluate(point) for point in points]


@pytest.mark.parametrize(
    ("kind", "exponents"), [("sgd", [-2, -1.5, -1, -0.5, 0]), ("adamw", [-3, -2.5, -2, -1.5, -1])]
)
def test_the_noisy_quadratic_is_as_good_as_a_sweep(kind: str, exponents: list[float]) -> None:
    losses = dict(zip(exponents, sweep(kind, [10**x for x in exponents]), strict=True))
    best = min(losses, key=losses.__getitem__)
    assert best not in (exponents[0], exponents[-1]), "the sweep must hold its minimum inside"
    initial = TASK.evaluate(TASK.build(0))
    model, records = search(kind, lr=1e-8)
    regret = (TASK.evaluate(model) - losses[best]) / (initial - losses[best])
    assert regret <= 0.02
    assert abs(math.log10(records[-1].hyperparameters[0].base_after) - best) < 0.75


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_no_learning_rate_is_read(kind: str) -> None:
    """Nine decades of them, and bit for bit the same run."""
    runs = [search(kind, lr, steps=300) for lr in LRS]
    assert len(runs[0][1]) == 13
    for model, records in runs[1:]:
        assert torch.equal(model.x, runs[0][0].x)
        assert decisions(records) == decisions(runs[0][1])


# ---------------------------------------------------------------------- a small net, with everything in it


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def batch(step: int, size: int = 16) -> Tensor:
    return torch.randn(size, 4, generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x[:, :1].sin() - x[:, 1:2]).square().mean()


class Training:
    """The net under AdamW or SGD; whatever is not AutoLR, a plain loop has too.

    Dropout draws from torch's global generator, which is seeded here: make one, and run it before the next.
    """

    def __init__(
        self, kind: str = "adamw", *, lrs: tuple[float, float] = (1.0, 1.0), auto: Any = True, **options: Any
    ) -> None:
        torch.manual_seed(5)
        self.model = Net()
        groups = [
            {"params": self.model.layers[0].parameters(), "lr": lrs[0]},
            {"params": self.model.layers[1:].parameters(), "lr": lrs[1]},
        ]
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(groups) if kind == "adamw" else torch.optim.SGD(groups, momentum=0.9)
        )
        self.settings = {"total_steps": 200, **options}
        self.records: list[hdet.SyncRecord] = []
        self.lrs: list[list[float]] = []
        self.step = 0
        self.poisoned = -1
        if auto:
            self.attach()

    def attach(self) -> None:
        self.probe = hdet.Probe(
            lambda x: loss_of(self.model, x), lambda k: batch(50_000 + k, 256), model=self.model
        )
        settings = dict(self.settings)
        if callable(settings.get("schedule")):
            settings["schedule"] = settings["schedule"](self.optimizer)
        self.auto = hdet.AutoLR(self.optimizer, probe=self.probe, **settings)

    def backward(self) -> Tensor:
        self.lrs.append([group["lr"] for group in self.optimizer.param_groups])
        self.optimizer.zero_grad()
        loss = loss_of(self.model, batch(self.step))
        loss.backward()
        self.optimizer.step()
        if self.step == self.poisoned:
            with torch.no_grad():
                self.model.layers[-1].weight.mul_(1e6)
        self.step += 1
        return loss.detach()

    def run(self, until: int) -> Training:
        while self.step < until:
            self.backward()
            record = self.auto.step()
            self.records += [record] if record else []
        return self

    def flat(self) -> Tensor:
        return torch.cat([t.detach().reshape(-1).double() for t in self.model.state_dict().values()])

    def save(self) -> io.BytesIO:
        file = io.BytesIO()
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "auto": self.auto.state_dict(),
                "step": self.step,
                "random": torch.get_rng_state(),
            },
            file,
        )
        file.seek(0)
        return file

    def load(self, file: io.BytesIO) -> Training:
        saved = torch.load(file, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if not hasattr(self, "auto"):
            self.attach()
        self.auto.load_state_dict(saved["auto"])
        self.step = saved["step"]
        torch.set_rng_state(saved["random"])
        return self


def test_it_learns() -> None:
    run = Training()
    before = loss_of(run.model.eval(), batch(-1)).item()
    run.model.train()
    run.run(200)
    assert loss_of(run.model.eval(), batch(-1)).item() < 0.5 * before


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_the_same_seed_twice_is_the_same_run(kind: str) -> None:
    a, b = Training(kind, total_steps=120).run(120), Training(kind, total_steps=120).run(120)
    assert torch.equal(a.flat(), b.flat())
    assert len(a.records) == 8
    assert decisions(a.records) == decisions(b.records)


def test_of_the_learning_rates_only_their_ratio_counts() -> None:
    """It is kept exactly, at every step, whatever the factor on both does; the size is not read."""
    run = Training(lrs=(1e-7, 2e-7)).run(90)
    assert all(second == 2 * first for first, second in run.lrs)
    assert len({first for first, _ in run.lrs}) > 5, "the factor has moved"
    other = Training(lrs=(3.0, 6.0)).run(90)
    assert torch.equal(run.flat(), other.flat())
    uneven = Training(lrs=(1.0, 0.3)).run(90)
    assert not torch.equal(run.flat(), uneven.flat())
    assert [b / a for a, b in uneven.lrs] == pytest.approx([0.3] * 90, rel=1e-15)


class Frozen(HorizonController):
    """Looks at everything, and then does nothing: one learning rate after the first window."""

    def update(self, state: HorizonState, window: Window) -> HorizonDecision:
        value = 0.01 if state.windows == 0 else state.value
        return HorizonDecision(replace(state, value=value, windows=state.windows + 1), "hold", window.speed)


@pytest.mark.parametrize("scope", ["together", "each"])
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_looking_changes_nothing(kind: str, scope: str) -> None:
    """With the factor frozen, weights, statistics and optimizer state are plain training's, bit for bit."""
    looked = Training(kind, controller=Frozen(), scope=scope).run(200)
    assert sum(math.isfinite(r.horizon[0].loss_mean) for r in looked.records) == 10, "it has looked"
    plain = Training(kind, auto=False)
    shape = WarmStableDecay.of(200)
    for step in range(200):
        for group in plain.optimizer.param_groups:
            group["lr"] = 1e-5 if step < 10 else 0.01 * shape(step)
        plain.backward()
    assert torch.equal(looked.flat(), plain.flat())
    for a, b in zip(looked.optimizer.state.values(), plain.optimizer.state.values(), strict=True):
        assert all(torch.equal(a[key], b[key]) for key in b)


def test_the_random_state_is_not_moved() -> None:
    states = []
    for auto in (True, False):
        run = Training(auto=auto)
        for _ in range(45):
            run.backward()
            if auto:
                run.auto.step()
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


# ---------------------------------------------------------------------- probes that say nothing


def with_probe(loss_fn: Callable[[Any], Any], batches: Any = batch) -> Training:
    run = Training(auto=False)
    probe = hdet.Probe(lambda x: loss_fn(run.model), batches, model=run.model)
    run.auto = hdet.AutoLR(run.optimizer, probe=probe, total_steps=200)
    return run


def test_a_probe_that_returns_nan_is_refused() -> None:
    run = with_probe(lambda model: math.nan).run(19)
    with pytest.raises(
        ValueError, match=r"AutoLR.step: step 20: the probe's loss must be finite .* got \[nan, nan\]"
    ):
        run.run(20)


def test_a_probe_that_returns_a_constant_is_refused_after_three_windows() -> None:
    run = with_probe(lambda model: 0.25).run(39)
    with pytest.raises(
        ValueError, match=r"step 40: the probe's loss must depend on the weights, and was 0.25 at"
    ) as e:
        run.run(40)
    assert "3 windows" in str(e.value)
    assert "does loss_fn call the model that the optimizer trains?" in str(e.value)


def test_a_probe_of_another_model_is_a_constant() -> None:
    other = Net()
    run = with_probe(lambda model: loss_of(other, batch(1))).run(39)
    with pytest.raises(ValueError, match="must depend on the weights"):
        run.run(40)


def test_the_same_batch_forever_trains_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    run = with_probe(lambda model: loss_of(model, batch(0)), lambda k: batch(0)).run(200)
    said = [record.getMessage() for record in caplog.records if "one and the same" in record.getMessage()]
    assert said == [
        "AutoLR: the probe's 8 batches so far were one and the same: the learning rate is fitted to it. "
        "Training goes on; give Probe more batches"
    ]
    assert run.lrs[149][0] > 1e-4


def test_different_batches_are_not_remarked_upon(caplog: pytest.LogCaptureFixture) -> None:
    Training().run(200)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# ---------------------------------------------------------------------- resume


STEPS, POISONED = 200, 95
#: In the first window, at the end of one, within one, around a relapse, where the search ends, in the decay.
BREAKS = [1, 10, 25, 97, 103, 104, 150, 170]


def poisoned_run(*, auto: bool = True) -> Training:
    """One explosion on the way, in a window that ends at step 103 and is taken back."""
    run = Training(lrs=(1.0, 0.3), auto=auto)
    run.poisoned = POISONED
    return run


@pytest.fixture(scope="module")
def unbroken() -> tuple[Training, dict[int, io.BytesIO]]:
    """A run to the end, and what it saved on the way."""
    run = poisoned_run()
    saved = {at: run.run(at).save() for at in BREAKS}
    return run.run(STEPS), saved


@pytest.mark.parametrize(
    ("at", "optimizer_first"), [*((at, False) for at in BREAKS), (25, True), (103, True), (170, True)]
)
def test_a_run_taken_up_is_the_unbroken_one(unbroken: Any, at: int, optimizer_first: bool) -> None:
    """To the last bit; also where the optimizer is loaded before AutoLR is made."""
    whole, saved = unbroken
    assert {r.step: r.horizon[0].action for r in whole.records}[103] == "back"
    run = poisoned_run(auto=not optimizer_first)
    saved[at].seek(0)
    run.load(saved[at]).run(STEPS)
    assert torch.equal(run.flat(), whole.flat())
    assert run.lrs == whole.lrs[at:]
    assert decisions(run.records) == decisions([r for r in whole.records if r.step > at])
    assert run.auto.state_dict()["found"] == whole.auto.state_dict()["found"]


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "sgd"},
        {"scope": "each"},
        {"snapshot": "off"},
        {"schedule": "cosine"},
        {"schedule": lambda o: lr_scheduler.CosineAnnealingLR(o, 200)},
        {"sync_every": 7},
        {"total_steps": None},
    ],
    ids=str,
)
def test_every_kind_of_run_can_be_taken_up(options: dict[str, Any]) -> None:
    whole = Training(**options).run(66)
    file = whole.save()
    whole.run(110)
    second = Training(**options).load(file).run(110)
    assert torch.equal(second.flat(), whole.flat())
    assert decisions(second.records) == decisions([r for r in whole.records if r.step > 66])


def test_a_state_of_another_kind_is_refused() -> None:
    state = Training().run(30).auto.state_dict()
    with pytest.raises(ValueError, match=r"scope must be the one it was saved with.* 1 factors, this run 2"):
        Training(scope="each").auto.load_state_dict(state)
    with pytest.raises(ValueError, match="schedule must be of the kind it was saved with"):
        Training(schedule=lambda o: lr_scheduler.StepLR(o, 50)).auto.load_state_dict(state)


def test_weights_may_be_loaded_after_it_was_made() -> None:
    """A pretrained model: the run begins where its first step finds the weights, not where it was made."""
    pretrained = Training("sgd", auto=False)
    with torch.no_grad():
        for parameter in pretrained.model.parameters():
            parameter.mul_(3.0)
    weights = deepcopy(pretrained.model.state_dict())
    pretrained.attach()
    pretrained.run(60)
    late = Training("sgd")
    late.model.load_state_dict(weights)
    late.run(60)
    assert torch.equal(pretrained.flat(), late.flat())
    assert decisions(pretrained.records) == decisions(late.records)


# ---------------------------------------------------------------------- export and replay


@pytest.mark.parametrize("schedule", ["wsd", "onecycle"])
def test_the_found_schedule_needs_no_probe(tmp_path: Any, schedule: Any) -> None:
    """A plain LambdaLR on the same batches gives the same weights, bit for bit."""
    path = tmp_path / "schedule.json"
    found = Training(lrs=(1.0, 0.3), schedule=schedule).run(200)
    found.auto.export(path)
    plain = Training(auto=False)
    scheduler = hdet.replay(plain.optimizer, path)
    for _ in range(200):
        plain.backward()
        scheduler.step()
    assert plain.lrs == found.lrs
    assert torch.equal(plain.flat(), found.flat())
    assert json.loads(path.read_text())["steps"] == 200


def test_tensor_learning_rates_are_not_read_between_windows(tmp_path: Any) -> None:
    weight = nn.Parameter(torch.ones(3))
    model = nn.Module()
    model.weight = weight
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.5))
    probe = hdet.Probe(lambda k: weight.square().sum(), lambda k: k, model=model)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=100)
    kept = optimizer.param_groups[0]["lr"]
    for _ in range(100):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
        auto.step()
    assert optimizer.param_groups[0]["lr"] is kept
    assert weight.abs().max() < 0.1
    with pytest.raises(ValueError, match="learning rates that are tensors are not read between windows"):
        auto.export(tmp_path / "schedule.json")


# ---------------------------------------------------------------------- schedules


def test_wsd_ends_at_zero_and_goes_no_further() -> None:
    run = Training().run(200)
    assert run.auto.get_last_lr() == [0.0, 0.0]
    top = run.lrs[150][0]
    assert [lr for lr, _ in run.lrs[150:]] == pytest.approx([top * (50 - k) / 50 for k in range(50)])
    assert [record.step for record in run.records][-1] == 150, "the search ends where the decay begins"
    with pytest.raises(ValueError, match=r"step 201 is beyond total_steps=200"):
        run.run(201)


@pytest.mark.parametrize("name", ["cosine", "onecycle", "torch"])
def test_other_schedules_keep_their_curve(name: str) -> None:
    """In its final descent, below 70 % of its peak, a schedule is left to itself.

    That is seen at the end of a window: the one in which it falls below is still judged, none after it.
    """
    steps = 200
    if name == "torch":
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        torchs = lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=0.01)
        curve = []
        for _ in range(steps):
            curve.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            torchs.step()
        run = Training(schedule=lambda o: lr_scheduler.CosineAnnealingLR(o, steps, eta_min=0.01)).run(steps)
    else:
        curve = [SHAPES[name](steps)(step) for step in range(steps)]
        run = Training(schedule=name).run(steps)
    assert all(lr > 0 for lr, _ in run.lrs)
    factors = [lr / value for (lr, _), value in zip(run.lrs, curve, strict=True)]
    peak = curve.index(max(curve))
    below = next(step for step in range(peak, steps) if curve[step] < 0.7 * max(curve))
    late = [record.step for record in run.records if record.step > below]
    assert len(late) <= 1
    stopped = late[0] if late else run.records[-1].step
    assert factors[stopped:] == pytest.approx([factors[-1]] * (steps - stopped), rel=1e-6)
    assert len({round(math.log(f), 3) for f in factors[:stopped]}) > 5, "until then it has searched"
    assert max(lr for lr, _ in run.lrs) > 1e-3


def test_one_cycle_is_not_climbed_twice() -> None:
    """While the curve itself rises, factor times curve grows like t^growth at most."""
    run = Training(schedule="onecycle", total_steps=400).run(400)
    judged = [r for r in run.records if r.horizon[0].action == "up" and r.step < 119]
    assert judged
    ends = [record.step for record in run.records]
    for record in judged:
        then = ends[ends.index(record.step) + 1]
        shape = SHAPES["onecycle"](400)
        began = ends[ends.index(record.step) - 1]
        rise = math.log(shape(record.step - 1) / shape(began - 1))
        change = math.log(record.hyperparameters[0].base_after / record.hyperparameters[0].base_before)
        assert (
            change + rise <= HorizonController().growth * math.log(then / record.step) + 1e-9 or change == 0
        )


def test_fixed_windows() -> None:
    run = Training(sync_every=15).run(200)
    assert [record.step for record in run.records] == [15, 30, 45, 60, 75, 90, 105, 120, 135, 150]


@pytest.mark.parametrize("resumed", [False, True])
def test_an_open_ended_run_comes_down_when_told_to(resumed: bool) -> None:
    run = Training(total_steps=None).run(90)
    assert len({lr for lr, _ in run.lrs}) > 4
    run.auto.cooldown(40)
    if resumed:
        run.run(100)
        file = run.save()
        taken_up = Training(total_steps=None).load(file)
        taken_up.records, taken_up.lrs = run.records, run.lrs
        run = taken_up
    run.run(130)
    top = run.lrs[90][0]
    assert [lr for lr, _ in run.lrs[90:]] == pytest.approx([top * (40 - k) / 40 for k in range(40)])
    assert run.auto.get_last_lr() == [0.0, 0.0]
    assert run.records[-1].step == 86, "the window in progress is not judged any more"
    with pytest.raises(ValueError, match=r"step 131 is beyond total_steps=130"):
        run.run(131)


def test_a_planned_run_can_come_down_early() -> None:
    run = Training(total_steps=1000).run(90)
    run.auto.cooldown(10)
    assert run.run(100).auto.get_last_lr() == [0.0, 0.0]


def test_what_cannot_come_down() -> None:
    with pytest.raises(ValueError, match="schedule must be 'wsd'; any other comes down by itself"):
        Training(schedule="cosine").auto.cooldown(10)
    for steps in (0, -1, 2.5):
        with pytest.raises(ValueError, match=rf"steps must be an integer of at least 1, got {steps}"):
            Training().auto.cooldown(steps)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- groups


class Halves(nn.Module):
    """Two quadratics side by side; the gradient of one of them is noise, mostly."""

    def __init__(self) -> None:
        super().__init__()
        self.calm = nn.Parameter(torch.ones(20))
        self.noisy = nn.Parameter(torch.ones(20))
        self.curvatures = torch.logspace(-2, 0, 20)

    def forward(self, samples: Tensor) -> Tensor:
        apart = self.curvatures * (self.noisy - samples).square()
        return 0.5 * ((self.curvatures * self.calm.square()).sum() + apart.sum(-1).mean())


def halves(
    scope: Any, *, ratio: float = 1.0, order: int = 1, steps: int = 600
) -> tuple[list[list[float]], Halves]:
    model = Halves()
    groups = [{"params": [model.calm], "lr": 1.0}, {"params": [model.noisy], "lr": ratio}][::order]
    optimizer = torch.optim.SGD(groups)
    probe = hdet.Probe(model, lambda k: 5 * torch.randn(256, 20), model=model)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=steps, scope=scope)
    draw = torch.Generator().manual_seed(1)
    lrs = []
    for _ in range(steps):
        lrs.append(auto.get_last_lr()[::order])
        optimizer.zero_grad()
        model(5 * torch.randn(4, 20, generator=draw)).backward()
        optimizer.step()
        auto.step()
    return lrs, model


@pytest.mark.parametrize("order", [1, -1])
def test_each_group_finds_its_own(order: int) -> None:
    """The noisy one is held back; the calm one, judged by itself, is not."""
    lrs, _ = halves("each", order=order)
    calm, noisy = lrs[449]
    assert calm > 3 * noisy


def test_together_the_ratio_stays() -> None:
    lrs, _ = halves("together", ratio=4.0)
    assert all(noisy == 4 * calm for calm, noisy in lrs)


@pytest.mark.parametrize("order", [1, -1])
def test_a_group_that_hardly_moves_does_not_hold_up_the_other(order: int) -> None:
    """One has ten-thousandfold smaller gradients: it is given a hundred times more until it moves too."""

    class Uneven(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steep, self.flat = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))

        def forward(self, _: object = None) -> Tensor:
            return self.steep.square().sum() + 1e-4 * self.flat.square().sum()

    model = Uneven()
    optimizer = torch.optim.SGD([{"params": [model.steep]}, {"params": [model.flat]}][::order], lr=1.0)
    auto = hdet.AutoLR(
        optimizer, probe=hdet.Probe(model, lambda k: k, model=model), total_steps=800, scope="each"
    )
    records = []
    for _ in range(800):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
        record = auto.step()
        records += [record] if record else []
    first = records[0].horizon[::order]
    assert (first[0].why, first[1].why) == ("", "hardly moved")
    second = records[1].horizon[::order]
    assert math.isfinite(second[0].loss_mean), "the other is judged meanwhile"
    assert model.steep.abs().max() < 0.1
    assert model.flat.abs().max() < 0.5


@pytest.mark.parametrize("kind", ["frozen", "without gradient"])
@pytest.mark.parametrize("first", [True, False])
def test_a_group_that_cannot_move_is_no_obstacle(kind: str, first: bool) -> None:
    idle, weight = nn.Parameter(torch.ones(3), requires_grad=kind != "frozen"), nn.Parameter(torch.ones(3))
    model = nn.Module()
    model.idle, model.weight = idle, weight
    groups = [{"params": [idle]}, {"params": [weight]}]
    optimizer = torch.optim.SGD(groups if first else groups[::-1], lr=1.0)
    probe = hdet.Probe(lambda k: weight.square().sum(), lambda k: k, model=model)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=400, scope="each")
    for _ in range(400):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
        auto.step()
        assert all(math.isfinite(lr) for lr in auto.get_last_lr())
    assert weight.abs().max() < 1e-3
    assert torch.equal(idle, torch.ones(3))


def test_weights_that_never_move_are_an_error() -> None:
    run = Training("sgd")

    def train() -> None:
        for _ in range(150):
            run.optimizer.step()  # no backward
            run.auto.step()

    with pytest.raises(
        RuntimeError, match=r"the weights must move, and did not.*does loss.backward\(\) reach"
    ):
        train()
    assert max(run.auto.get_last_lr()) < 1e8


def test_a_group_added_later_is_left_alone() -> None:
    run = Training().run(30)
    run.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lr": 0.125})
    run.run(60)
    assert run.optimizer.param_groups[2]["lr"] == 0.125


# ---------------------------------------------------------------------- loops of all kinds


def test_calls_without_an_optimizer_step_do_not_count() -> None:
    """Gradient accumulation: step() after every micro-batch is step() after every optimizer step."""
    plain = Training().run(60)
    often = Training()
    while often.step < 60:
        assert often.auto.step() is None
        assert often.auto.step(1.0) is None
        often.backward()
        record = often.auto.step()
        often.records += [record] if record else []
    assert often.auto.steps == plain.auto.steps == 60
    assert torch.equal(often.flat(), plain.flat())
    assert [r.horizon for r in often.records[1:]] == [r.horizon for r in plain.records[1:]]


def test_the_training_loss_is_not_needed_but_recorded() -> None:
    run = Training()
    losses = []
    for _ in range(10):
        losses.append(run.backward().item())
        record = run.auto.step(losses[-1])
    assert record is not None
    assert record.losses == (pytest.approx(sum(losses) / 10),)
    assert math.isnan(Training().run(10).records[0].losses[0])


def test_the_history_is_written(tmp_path: Any) -> None:
    path = tmp_path / "history.jsonl"
    run = Training(history=path).run(60)
    from hdet.history import read

    assert decisions(read(path)) == decisions(run.records)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_bfloat16_weights(kind: str) -> None:
    """At the first learning rate they do not move at all: it grows until they do. Means are float32."""
    model = nn.Module()
    model.weight = weight = nn.Parameter((1 + torch.arange(64) / 64).to(torch.bfloat16))
    optimizer = OPTIMIZERS[kind]([weight], lr=1.0)

    def loss(samples: Tensor) -> Tensor:
        return 0.5 * (weight.float() - samples).square().mean()

    probe = hdet.Probe(loss, lambda k: 0.1 * torch.randn(64), model=model)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=300)
    assert [t.dtype for t in auto._horizon._trail.mean.tensors] == [torch.float32]
    draw = torch.Generator().manual_seed(0)
    records = []
    for _ in range(300):
        optimizer.zero_grad()
        loss(0.1 * torch.randn(64, generator=draw)).backward()
        optimizer.step()
        record = auto.step()
        records += [record] if record else []
    assert [(r.horizon[0].why, r.horizon[0].speed) for r in records[:2]] == [("hardly moved", 0.0)] * 2
    assert records[1].hyperparameters[0].base_after == pytest.approx(0.1)
    reached = next(k for k, r in enumerate(records) if r.horizon[0].why != "hardly moved") + 3
    assert 0.5 < records[reached].horizon[0].speed < 4, "brought to the speed of 2 that was asked for"
    assert weight.dtype == torch.bfloat16
    assert weight.abs().max() < 0.2


def test_memory_is_what_is_said() -> None:
    """Three copies of the weights, and with a snapshot one of weights, state and buffers."""
    sizes = {}
    for snapshot in ("off", "device"):
        run = Training(snapshot=snapshot).run(15)
        sizes[snapshot] = run.auto.extra_bytes()
    weights = sum(p.numel() * 4 for p in run.model.parameters())
    state = sum(t.numel() * t.element_size() for s in run.optimizer.state.values() for t in s.values())
    buffers = sum(b.numel() * b.element_size() for b in run.model.buffers())
    assert sizes["off"] == 3 * weights
    assert sizes["device"] == 4 * weights + state + buffers


# ---------------------------------------------------------------------- inside the drop-in


def one_cycle(max_lr: float, **options: Any) -> tuple[nn.Module, list[hdet.SyncRecord]]:
    model = TASK.build(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    probe = hdet.Probe(lambda batch: TASK.loss(model, batch), TASK.probe(0), model=model)
    scheduler = hdet.OneCycleAutoLR(
        optimizer, max_lr, total_steps=600, controller="horizon", probe=probe, **options
    )
    records, batches = [], TASK.batches(0)
    for _ in range(600):
        optimizer.zero_grad()
        TASK.loss(model, next(batches)).backward()
        optimizer.step()
        record = scheduler.step()
        records += [record] if record else []
    return model, records


def test_the_drop_in_finds_a_learning_rate() -> None:
    initial = TASK.evaluate(TASK.build(0))
    ends = {max_lr: one_cycle(max_lr) for max_lr in (1e-6, 10.0)}
    for model, records in ends.values():
        assert TASK.evaluate(model) < 0.02 * initial
        assert max(r.hyperparameters[0].base_after for r in records) > 3e-3
    low, high = (model.x for model, _ in ends.values())
    torch.testing.assert_close(low, high, rtol=1e-2, atol=1e-3)  # max_lr is only a unit


def test_a_drop_in_that_goes_on_measures_from_where_it_is() -> None:
    """From a plain checkpoint at step 300: the first window is ten steps long, not 310."""
    model = Halves()
    optimizer = torch.optim.SGD([{"params": model.parameters(), "lr": 0.1}])
    lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=600)
    probe = hdet.Probe(model, lambda k: torch.randn(64, 20), model=model)
    scheduler = hdet.OneCycleAutoLR(
        optimizer, 0.1, total_steps=600, last_epoch=300, controller="horizon", probe=probe
    )
    start = torch.cat([p.detach().clone() for p in model.parameters()])
    path = []
    record = None
    while record is None:
        optimizer.zero_grad()
        model(torch.zeros(1, 20)).backward()
        optimizer.step()
        path.append(torch.cat([p.detach().clone() for p in model.parameters()]))
        record = scheduler.step()
    length = len(path)
    moved = (torch.stack(path).mean(0) - start).norm() / start.norm()
    assert record.horizon[0].speed == pytest.approx(moved.item() * 600 / ((length + 1) / 2), rel=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"controller": "horizon"},
            r"controller='horizon' and probe= go together, got controller='horizon' and probe=None",
        ),
        ({"controller": "other"}, "controller must be 'softmax' or 'horizon', got 'other'"),
    ],
)
def test_the_drop_in_needs_both(options: dict[str, Any], words: str) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(ValueError, match=words):
        hdet.OneCycleAutoLR(optimizer, 0.1, total_steps=100, **options)


def test_the_drop_in_refuses_a_probe_without_its_controller() -> None:
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = hdet.Probe(model, [torch.zeros(1, 20)], model=model)
    with pytest.raises(
        ValueError, match="controller='horizon' and probe= go together, got controller='softmax'"
    ):
        hdet.OneCycleAutoLR(optimizer, 0.1, total_steps=100, probe=probe)


# ---------------------------------------------------------------------- bad input


def other_optimizer() -> lr_scheduler.LRScheduler:
    return lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), 10)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"optimizer": "adam"}, TypeError, "optimizer must be a torch Optimizer, got str"),
    ({"probe": print}, TypeError, r"probe must be a hdet.Probe, got .*; hdet.Probe\(.*\) makes one"),
    ({"total_steps": 39}, ValueError, "must be an integer of at least 40, or None to run open-ended, got 39"),
    ({"total_steps": 1e3}, ValueError, r"total_steps must be an integer of at least 40.*got 1000\.0"),
    ({"schedule": "linear"}, ValueError, "one of 'wsd', 'cosine', 'onecycle' or a .* got 'linear'"),
    ({"schedule": ["wsd"]}, ValueError, r"schedule must be one of .* got \['wsd'\]"),
    ({"schedule": None}, ValueError, "schedule must be one of .* got None"),
    ({"schedule": "cosine", "total_steps": None}, ValueError, "'cosine' needs total_steps; only 'wsd' runs"),
    ({"schedule": other_optimizer()}, ValueError, "a scheduler of this optimizer, got one of another"),
    ({"controller": hdet.SoftmaxController()}, TypeError, "HorizonController, got SoftmaxController"),
    ({"sync_every": 0}, ValueError, "sync_every .* must be an integer of at least 1, got 0"),
    ({"sync_every": 2.5}, ValueError, "sync_every .* must be an integer of at least 1, got 2.5"),
    ({"scope": "all"}, ValueError, "scope must be 'together' or 'each', got 'all'"),
    ({"snapshot": "disk"}, ValueError, "snapshot must be 'device', 'host' or 'off', got 'disk'"),
    ({"spread": 1.0}, ValueError, r"spread .* must be in \[0, 1\), got 1.0"),
]


@pytest.mark.parametrize(("options", "kind", "words"), BAD, ids=[words[:30] for *_, words in BAD])
def test_bad_input(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    model = Halves()
    settings: dict[str, Any] = {
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "probe": hdet.Probe(model, [torch.zeros(1, 20)], model=model),
        "total_steps": 100,
        **options,
    }
    with pytest.raises(kind, match=words):
        hdet.AutoLR(settings.pop("optimizer"), **settings)


@pytest.mark.parametrize("lr", [0.0, -1.0, math.inf, math.nan])
def test_a_group_needs_a_ratio(lr: float) -> None:
    model = Halves()
    optimizer = torch.optim.SGD([{"params": [model.calm]}, {"params": [model.noisy]}], lr=0.1)
    optimizer.param_groups[1]["lr"] = lr
    probe = hdet.Probe(model, [torch.zeros(1, 20)], model=model)
    with pytest.raises(ValueError, match=rf"lr must be finite and > 0.* got {lr} in group 1; give another"):
        hdet.AutoLR(optimizer, probe=probe, total_steps=100)


def test_plateau_is_no_shape() -> None:
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = hdet.Probe(model, [torch.zeros(1, 20)], model=model)
    with pytest.raises(TypeError, match="schedule must step without a metric, got ReduceLROnPlateau"):
        hdet.AutoLR(optimizer, probe=probe, schedule=lr_scheduler.ReduceLROnPlateau(optimizer))


def test_a_state_can_be_loaded_into_nothing_but_the_same_groups() -> None:
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = hdet.Probe(model, [torch.zeros(1, 20)], model=model)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=100)
    with pytest.raises(ValueError, match=r"the state has 2 explored hyperparameters, this run 1"):
        auto.load_state_dict(Training().run(5).auto.state_dict())


@pytest.fixture(autouse=True)
def same_seed() -> None:
    """Probes take their random state from the seed of the moment."""
    torch.manual_seed(0)
