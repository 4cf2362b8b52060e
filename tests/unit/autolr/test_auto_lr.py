"""AutoLR on one replica: what it finds, what it leaves alone, and how a run is broken off and taken up."""

from __future__ import annotations

import io
import json
import math
import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, lr_scheduler

import hdet
from hdet import AutoLR, Probe
from hdet.autolr.best import Incumbent
from hdet.autolr.prior import usual_rate
from hdet.autolr.schedule import WarmStableDecay
from hdet.history import SyncRecord
from hdet.published.softmax import SoftmaxController
from tests.unit.training import (
    OPTIMIZERS,
    TASK,
    Halves,
    Overfitting,
    Training,
    X,
    batch,
    decisions,
    loss_of,
    network,
    probe_of,
    searched,
    squared,
    train,
)

pytestmark = pytest.mark.usefixtures("same_seed")

LRS = [1e-8, 1e-5, 1e-2, 10.0]


# ---------------------------------------------------------------------- a quadratic without noise


class Point(nn.Module):
    def __init__(self, curvatures: list[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones(len(curvatures), dtype=dtype))
        self.curvatures = torch.tensor(curvatures, dtype=dtype)

    def forward(self, _: object = None) -> Tensor:
        return 0.5 * (self.curvatures * self.x**2).sum()


def descend(curvatures: list[float], lr: float, steps: int = 1000) -> tuple[Point, list[SyncRecord]]:
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
    """At a rate below the edge of stability, where there is nothing more to gain as well."""
    start = 0.5 * curvature
    point, records = descend([curvature], 1.0)
    assert point().item() < 1e-6 * start
    assert point().item() - gradient_descent([curvature], 1 / curvature) < 1e-6 * start
    assert all(r.hyperparameters[0].base_after * curvature < 2 for r in searched(records))


@pytest.mark.parametrize("curvatures", [[1.0, 0.01], [1.0, 1e-3], [100.0, 0.1]])
def test_two_dimensions_without_noise_lose_little_to_the_best_learning_rate(curvatures: list[float]) -> None:
    """At most 0.3 % of the improvement is lost, and every window of the search ends lower than it began."""
    start = Point(curvatures)().item()
    point, records = descend(curvatures, 1.0)
    grid = [10 ** (k / 4) / max(curvatures) for k in range(-8, 2)]
    best = min(gradient_descent(curvatures, lr) for lr in grid)
    assert (point().item() - best) / (start - best) < 3e-3
    seen = [r.horizon[0] for r in searched(records)[1:]]
    assert all(window.loss_mean < window.loss_previous for window in seen)


# ---------------------------------------------------------------------- a noisy one, and a sweep


def search(kind: str, lr: float, steps: int = TASK.steps) -> tuple[nn.Module, list[SyncRecord]]:
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


@pytest.mark.slow
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
    assert abs(math.log10(searched(records)[-1].hyperparameters[0].base_after) - best) < 0.75


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_no_learning_rate_is_read(kind: str) -> None:
    """Nine decades of them, and bit for bit the same run."""
    runs = [search(kind, lr, steps=300) for lr in LRS]
    assert len(searched(runs[0][1])) == 13
    for model, records in runs[1:]:
        assert torch.equal(model.x, runs[0][0].x)
        assert decisions(records) == decisions(runs[0][1])


# ---------------------------------------------------------------------- a small net, with everything in it


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
    assert len(searched(a.records)) == 8
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
    assert "back" in {r.horizon[0].action for r in whole.records}
    run = poisoned_run(auto=not optimizer_first)
    saved[at].seek(0)
    run.load(saved[at]).run(STEPS)
    assert torch.equal(run.flat(), whole.flat())
    assert run.lrs == whole.lrs[at:]
    assert decisions(run.records) == decisions([r for r in whole.records if r.step > at])
    assert run.auto.found() == whole.auto.found()


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "sgd"},
        {"offload": False},
        {"schedule": "cosine"},
        {"schedule": lambda o: lr_scheduler.CosineAnnealingLR(o, 200)},
        {"total_steps": None},
    ],
    # Not the place of a function in memory: workers that share the tests must call them by the same names.
    ids=lambda options: "-".join(
        f"{key}={getattr(value, '__name__', value)}" for key, value in options.items()
    ),
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
    with pytest.raises(
        ValueError, match="schedule must be as it was when the state was saved, wsd, got StepLR"
    ):
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
    found = Training(lrs=(1.0, 0.3), schedule=schedule, patience=None).run(200)
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


def test_wsd_ends_at_zero_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    run = Training().run(200)
    assert run.auto.get_last_lr() == [0.0, 0.0]
    top = run.lrs[150][0]
    assert [lr for lr, _ in run.lrs[150:]] == pytest.approx([top * (50 - k) / 50 for k in range(50)])
    assert searched(run.records)[-1].step == 150, "the search ends where the decay begins"
    at_the_end = [p.detach().clone() for p in run.model.parameters()]
    run.run(205)
    assert run.auto.steps == 200
    assert all(map(torch.equal, run.model.parameters(), at_the_end))
    said = [r.getMessage() for r in caplog.records if "the run has ended" in r.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("AutoLR: step: the run has ended at step 200 (total_steps)")
    assert "the learning rate stays at 0" in said[0]


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
    assert searched(run.records)[-1].step == 86, "the window in progress moves nothing any more"
    assert run.auto.finished
    before = [p.detach().clone() for p in run.model.parameters()]
    run.run(133)
    assert run.auto.steps == 130
    assert all(map(torch.equal, run.model.parameters(), before)), "at a learning rate of zero"


def test_a_planned_run_can_come_down_early() -> None:
    run = Training(total_steps=1000).run(90)
    run.auto.cooldown(10)
    assert run.run(100).auto.get_last_lr() == [0.0, 0.0]


def test_what_cannot_come_down() -> None:
    with pytest.raises(ValueError, match="schedule must be 'wsd'; any other decays by itself"):
        Training(schedule="cosine").auto.cooldown(10)
    for steps in (0, -1, 2.5):
        with pytest.raises(ValueError, match=rf"steps must be an integer of at least 1, got {steps}"):
            Training().auto.cooldown(steps)  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [0, 5])
def test_there_is_nothing_to_come_down_from_within_the_first_window(steps: int) -> None:
    run = Training(total_steps=None).run(steps)
    with pytest.raises(RuntimeError, match=rf"AutoLR\.cooldown: a window must have ended .* step {steps}:"):
        run.auto.cooldown(10)
    run.run(40).auto.cooldown(10)
    assert run.run(50).auto.finished


def test_a_second_cooldown_comes_down_from_where_it_is() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    auto = AutoLR(optimizer, probe=probe_of(model))
    train(model, optimizer, auto, 100)
    auto.cooldown(20)
    train(model, optimizer, auto, 10)
    before = optimizer.param_groups[0]["lr"]
    auto.cooldown(20)
    train(model, optimizer, auto, 1)
    assert 0.9 * before < optimizer.param_groups[0]["lr"] < before
    train(model, optimizer, auto, 19)
    assert optimizer.param_groups[0]["lr"] == 0


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
    from hdet.history import read_history

    assert decisions(read_history(path)) == decisions(run.records)


def test_an_error_of_the_probe_that_is_caught_does_not_end_the_search() -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    calls = 0

    def loss(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError("a disk was away")
        return squared(model, x)

    auto = AutoLR(optimizer, total_steps=200, probe=Probe(loss, X[200:], model=model))
    windows, failures = 0, 0
    for i in range(200):
        optimizer.zero_grad()
        squared(model, X[i]).backward()
        optimizer.step()
        try:
            windows += auto.step() is not None
        except OSError:
            failures += 1
    assert failures == 1
    assert auto._found.steps == 200, "the schedule that was found holds every step"
    assert windows >= 9
    assert optimizer.param_groups[0]["lr"] == 0


# ---------------------------------------------------------------------- bad input


def other_optimizer() -> lr_scheduler.LRScheduler:
    return lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), 10)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"optimizer": "adam"}, TypeError, "optimizer must be a torch Optimizer, got str"),
    ({"probe": print}, TypeError, r"probe must be a hdet.Probe, got .*; hdet.Probe\(.*\) makes one"),
    (
        {"total_steps": 3},
        ValueError,
        "at least 4, or None to run open-ended, got 3; a run of fewer steps needs a rate of yours, such as",
    ),
    ({"total_steps": 1e3}, ValueError, r"total_steps must be an integer of at least 4,.*got 1000\.0"),
    ({"schedule": "linear"}, ValueError, "one of 'wsd', 'cosine', 'onecycle' or a .* got 'linear'"),
    ({"schedule": ["wsd"]}, ValueError, r"schedule must be one of .* got \['wsd'\]"),
    ({"schedule": None}, ValueError, "schedule must be one of .* got None"),
    ({"schedule": "cosine", "total_steps": None}, ValueError, "'cosine' needs total_steps; only 'wsd' runs"),
    ({"schedule": other_optimizer()}, ValueError, "a scheduler of this optimizer, got one of another"),
    ({"rule": SoftmaxController()}, TypeError, "HorizonController, got SoftmaxController"),
    ({"offload": "host"}, TypeError, "offload must be True or False, got 'host'"),
    ({"patience": 0}, ValueError, "patience must be an integer of at least 1, or None, got 0"),
    ({"patience": 2.5}, ValueError, "patience must be an integer of at least 1, or None, got 2.5"),
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


def test_a_second_run_on_an_optimizer_that_has_decayed_raises() -> None:
    """As a notebook's cell does that is run again."""
    model = Halves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = hdet.Probe(model, [torch.randn(4, 20) for _ in range(8)], model=model)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=40)
    while not auto.finished:
        model(torch.randn(4, 20)).backward()
        optimizer.step()
        optimizer.zero_grad()
        auto.step()
    with pytest.raises(ValueError, match="decayed to zero, make a new optimizer"):
        hdet.AutoLR(optimizer, probe=probe, total_steps=40)


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
    with pytest.raises(ValueError, match=r"explored must be as it was when the state was saved"):
        auto.load_state_dict(Training().run(5).auto.state_dict())


# ---------------------------------------------------------------------- a scheduler to whoever asks


def test_it_is_a_torch_scheduler() -> None:
    run = Training(lrs=(0.5, 0.25))
    auto: Any = run.auto
    assert isinstance(auto, lr_scheduler.LRScheduler)
    assert auto.optimizer is run.optimizer
    assert auto.base_lrs == [0.5, 0.25]
    assert "initial_lr" not in run.optimizer.param_groups[0]
    assert not hasattr(run.optimizer.step, "_wrapped_by_lr_sched"), "nothing is put over the optimizer's step"
    run.run(30)
    assert auto.last_epoch == auto.steps == 30
    assert (
        auto._last_lr == auto.get_last_lr() == auto.get_lr() == [g["lr"] for g in run.optimizer.param_groups]
    )
    auto._step_count += 1  # as Accelerate does
    file = io.BytesIO(pickle.dumps(auto.state_dict()))
    other = Training(lrs=(0.5, 0.25))
    other.auto.load_state_dict(pickle.load(file))
    assert other.auto.steps == 30
    with pytest.raises(AttributeError, match=r"counted as the optimizer takes them.*SequentialLR"):
        auto.last_epoch = 3


def test_called_once_an_epoch_it_says_what_to_do() -> None:
    """Frameworks step a scheduler once an epoch unless they are told otherwise."""
    run = Training().run(20)
    for _ in range(50):
        run.backward()
    with pytest.raises(
        RuntimeError, match=r'AutoLR.step: must be called once after every optimizer.step\(\), got 50.*"step"'
    ):
        run.auto.step()
    run.step = 20
    run.run(60)
    assert run.auto.steps == 60, "and it can go on"


def test_a_call_without_a_step_changes_nothing() -> None:
    """Accelerate calls a scheduler once for every process."""
    run, other = Training().run(60), Training()
    while other.step < 60:
        other.run(other.step + 1)
        assert other.auto.step() is None
    assert torch.equal(run.flat(), other.flat())


# ---------------------------------------------------------------------- the end, and what is best over


@pytest.mark.parametrize("total", [8000, pytest.param(None, marks=pytest.mark.slow)])
def test_where_nothing_improves_it_decays_and_keeps_the_best(total: int | None) -> None:
    """With a number of steps, which is a budget then, and without one."""
    run = Overfitting(total_steps=total, patience=2).run(total or 16_000)
    auto, records, truly = run.auto, run.records, run.truly
    assert auto.finished
    assert auto.steps < (total or 16_000)
    assert auto.get_last_lr() == [0.0]
    assert any("back to those weights" in event for r in records for event in r.events)
    assert any("nothing has improved since" in event for r in records for event in r.events)
    at_the_end = truly()
    best = auto.finish_()
    assert best == auto.best
    assert truly() < at_the_end
    assert truly() == pytest.approx(best.estimate, rel=0.1), "an honest estimate"


def test_without_patience_it_goes_on_to_the_end() -> None:
    run = Overfitting(total_steps=600, patience=None).run(600)
    assert run.auto.steps == 600
    assert not any("nothing better" in event for r in run.records for event in r.events)


def test_a_torch_schedule_ends_with_its_steps() -> None:
    run = Training(schedule=lambda o: lr_scheduler.CosineAnnealingLR(o, 200, eta_min=0.01)).run(199)
    assert not run.auto.finished
    assert run.run(200).auto.finished


# ---------------------------------------------------------------------- runs of few steps


@pytest.mark.parametrize("steps", [4, 8, 20, 39])
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_few_steps_train_and_decay_to_zero(kind: str, steps: int) -> None:
    run = Training(kind, total_steps=steps).run(steps)
    assert run.auto.finished
    assert run.auto.get_last_lr() == [0.0, 0.0]
    assert len(searched(run.records)) >= 2, "one to see how far a rate carries, and one at it"
    assert sum(r.step > searched(run.records)[-1].step for r in run.records) >= 1, "and the decay"
    first = run.records[0].horizon[0].loss_mean
    best = run.auto.finish_()
    assert best is not None
    assert best.loss < 0.55 * first


@pytest.mark.parametrize("schedule", ["cosine", "onecycle"])
@pytest.mark.parametrize("steps", [4, 8, 20, 39])
def test_few_steps_follow_other_schedules_to_their_end(schedule: Any, steps: int) -> None:
    run = Training(schedule=schedule, total_steps=steps).run(steps)
    assert run.auto.finished
    assert max(lr for lr, _ in run.lrs) > 1e-3
    best = run.auto.finish_()
    assert best is not None
    assert best.loss < run.records[0].horizon[0].loss_mean


def test_few_steps_can_be_taken_up() -> None:
    whole = Training(total_steps=20).run(7)
    file = whole.save()
    whole.run(20)
    second = Training(total_steps=20).load(file).run(20)
    assert torch.equal(second.flat(), whole.flat())
    assert decisions(second.records) == decisions([r for r in whole.records if r.step > 7])


# ---------------------------------------------------------------------- from the beginning


SCHEDULES: dict[str, Any] = {
    "wsd": "wsd",
    "cosine": "cosine",
    "onecycle": "onecycle",
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 120),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 80),
}


@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_goes_from_the_beginning_to_its_end(
    schedule: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the schedule, whenever it restarts: the second search finds a rate, and training improves."""
    run = told_to_restart(window, SCHEDULES[schedule], monkeypatch)
    assert any("from the beginning" in event for r in run.records for event in r.events)
    assert_went_on(run)


@pytest.mark.parametrize("schedule", ["cosine", "onecycle", "CosineAnnealingLR", "StepLR"])
def test_a_run_that_restarts_where_its_schedule_begins_to_decay_goes_on(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last window of the search: the next one is of the decay."""
    whole = Training("sgd", schedule=SCHEDULES[schedule], total_steps=120, patience=None).run(120)
    assert_went_on(told_to_restart(len(searched(whole.records)) - 1, SCHEDULES[schedule], monkeypatch))


def test_a_run_can_be_told_to_end_in_the_first_window_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Training(total_steps=None)
    restart_after(2, run, monkeypatch)
    run.run(35).auto.cooldown(60)
    assert run.run(95).auto.finished
    assert_went_on(run)


def test_a_run_that_is_over_before_its_weights_have_moved_ends() -> None:
    """In bfloat16, whose steps are coarse: the rate is raised a hundredfold in each of but three windows."""
    weight = nn.Parameter((1 + torch.arange(64) / 64).to(torch.bfloat16))
    model = nn.Module()
    model.weight = weight
    optimizer = torch.optim.SGD([weight], lr=1.0)
    loss = lambda sample: 0.5 * (weight.float() - sample).square().mean()  # noqa: E731
    auto = AutoLR(optimizer, probe=Probe(loss, 0.1 * torch.randn(8, 64), model=model), total_steps=4)
    for _ in range(4):
        optimizer.zero_grad()
        loss(torch.zeros(64)).backward()
        optimizer.step()
        auto.step()
    assert auto.finished
    assert auto.finish_() is not None


def told_to_restart(window: int, schedule: Any, monkeypatch: pytest.MonkeyPatch) -> Training:
    run = Training("sgd", schedule=schedule, total_steps=120)
    restart_after(window, run, monkeypatch)
    return run.run(120)


def restart_after(window: int, run: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the window of this number, the first being 0, it has fallen behind, and time enough is left."""
    told = property(lambda self: len(run.records) == window and not self._restarts)
    monkeypatch.setattr(Incumbent, "behind", told)
    monkeypatch.setattr(Incumbent, "may_restart", lambda *_: True)


def assert_went_on(run: Training) -> None:
    assert run.auto.finished
    backs = [r.step for r in run.records if any("nothing better since" in event for event in r.events)]
    assert len(backs) == 1
    assert max(lr for lr, _ in run.lrs[backs[0] :]) > 1e-4, "it does not stay where a first window begins"
    losses = [r.horizon[0].loss_mean for r in run.records]
    assert losses[-1] < 0.5 * losses[0]


# ---------------------------------------------------------------------- a probe that is no judge


MEANS = torch.randn(3, 16, generator=torch.Generator().manual_seed(11))


def labelled(seed: int, counts: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """So many samples of each of three classes."""
    draw = torch.Generator().manual_seed(seed)
    classes = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    return MEANS[classes] + 2 * torch.randn(len(classes), 16, generator=draw), classes


@pytest.mark.parametrize("mix", [(4, 30, 30), (16, 24, 24)])
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_probe_of_another_mix_of_classes_does_not_stop_training(
    kind: str, mix: tuple[int, int, int]
) -> None:
    """Few labels, all in one batch, and a probe whose loss rises from the first step on, or nearly so: no
    smaller rate would mend that."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
    momentum = {"momentum": 0.9} if kind == "sgd" else {}
    optimizer = OPTIMIZERS[kind](model.parameters(), lr=1.0, **momentum)
    few = labelled(0, (28, 1, 1))

    def loss(pair: tuple[Tensor, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(model(pair[0]), pair[1])

    probe = Probe(loss, [labelled(100 + k, mix) for k in range(8)], model=model)
    auto = AutoLR(optimizer, probe=probe, total_steps=400)
    before, records = loss(few).item(), []
    while not auto.finished:
        optimizer.zero_grad()
        loss(few).backward()
        optimizer.step()
        record = auto.step()
        records += [record] if record else []
    assert loss(few).item() < 0.02 * before, "what is trained on is learnt"
    seen = [(r.horizon[0], r.hyperparameters[0]) for r in searched(records)]
    assert seen[-1][0].loss_mean > 1.5 * seen[1][0].loss_mean, "and the probe's loss has risen all the while"
    first, rate = seen[0][0], seen[-1][1].base_after
    pace = first.speed / 400 / seen[0][1].base_before
    assert rate >= usual_rate(pace) / 10
    worked = [h.base_before for window, h in seen[1:] if window.loss_mean < window.loss_previous]
    assert rate >= max(worked, default=0.0) / 30


Pair = tuple[Tensor, Tensor]
ONE_CLASS = [labelled(100 + k, (32, 0, 0)) for k in range(8)]
#: Class 0 is rare where training is, so that its loss rises at first, and all that is learnt is for others.
OTHER_TASK = [(x, (y + 1) % 3) for x, y in (labelled(100 + k, (20, 20, 20)) for k in range(8))]


@pytest.mark.parametrize(
    ("batches", "why", "said"),
    [
        ([labelled(100, (0, 1, 0))], "one sample", "has one sample to decide by"),
        (OTHER_TASK, "nothing learnt", "the run did not improve"),
        (ONE_CLASS, "nothing learnt", "the run did not improve"),
    ],
)
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_a_probe_that_decides_nothing_is_said_and_the_rate_is_the_usual_one(
    kind: str, batches: list[Pair], why: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
    momentum = {"momentum": 0.9} if kind == "sgd" else {}
    optimizer = OPTIMIZERS[kind](model.parameters(), lr=1.0, **momentum)

    def loss(pair: Pair) -> Tensor:
        return nn.functional.cross_entropy(model(pair[0]), pair[1])

    auto = AutoLR(optimizer, probe=Probe(loss, batches, model=model), total_steps=300)
    records = []
    for k in range(300):
        optimizer.zero_grad()
        loss(labelled(k, (2, 30, 30))).backward()
        optimizer.step()
        record = auto.step()
        records += [record] if record else []
    first, *judged = searched(records)
    assert {record.horizon[0].why for record in judged} == {why}
    pace = first.horizon[0].speed / 300 / first.hyperparameters[0].base_before
    assert judged[-1].hyperparameters[0].base_after == pytest.approx(usual_rate(pace), rel=0.3)
    best = auto.finish_()
    assert best is not None
    if why == "one sample":
        assert (best.step, best.kind) == (300, "end")
        assert loss(labelled(1000, (2, 300, 300))).item() < 0.4, "and training has gone well"
    assert any(said in record.message for record in caplog.records)


# ---------------------------------------------------------------------- an early spike


@pytest.mark.parametrize("spikes", [{12, 13}, {12, 13, 22}])
def test_a_rate_recovers_from_an_early_spike(spikes: set[int]) -> None:
    """A few batches with a huge loss, and then nothing but ordinary ones, that are best trained at a rate a
    hundred times as high as the one after the rollback."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    auto = AutoLR(optimizer, total_steps=600, probe=probe_of(model))
    records = []
    for i in range(600):
        optimizer.zero_grad()
        ((1e4 if i in spikes else 1.0) * squared(model, X[i % 200])).backward()
        optimizer.step()
        record = auto.step()
        records += [record] if record else []
    backs = [r for r in records if r.horizon[0].action == "back"]
    assert backs
    assert backs[-1].step < 30
    low, last = backs[-1].hyperparameters[0].base_after, searched(records)[-1].hyperparameters[0].base_after
    assert last >= 10 * low
