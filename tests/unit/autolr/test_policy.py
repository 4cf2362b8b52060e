"""The horizon in a run: its windows beside any schedule, groups, and weights that are lost."""

from __future__ import annotations

import logging
import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, lr_scheduler
from torch.optim.lr_scheduler import ExponentialLR

import hdet
from hdet import AutoLR, Probe
from hdet.autolr import window
from hdet.autolr.policy import Factors
from hdet.autolr.rule import HorizonController, HorizonDecision, HorizonState, Window
from hdet.autolr.schedule import SHAPES, WarmStableDecay
from hdet.autolr.window import WeightPath
from tests.unit.training import (
    OPTIMIZERS,
    Training,
    W,
    X,
    batch,
    decisions,
    loss_of,
    network,
    probe_of,
    searched,
    train,
)

pytestmark = pytest.mark.usefixtures("same_seed")


class Frozen(HorizonController):
    """Looks at everything, and then does nothing: one learning rate after the first window."""

    def update(self, state: HorizonState, window: Window) -> HorizonDecision:
        value = 0.01 if state.windows == 0 else state.value
        return HorizonDecision(replace(state, value=value, windows=state.windows + 1), "hold", window.speed)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_looking_changes_nothing(kind: str) -> None:
    """With the factor frozen, weights, statistics and optimizer state are plain training's, bit for bit."""
    looked = Training(kind, rule=Frozen(), patience=None).run(200)
    ends = sum(math.isfinite(r.horizon[0].loss_end) for r in searched(looked.records))
    assert ends == 10, "it has looked"
    plain = Training(kind, auto=False)
    shape = WarmStableDecay.of(200)
    for step in range(200):
        for group in plain.optimizer.param_groups:
            group["lr"] = 1e-5 if step < 10 else 0.01 * shape(step)
        plain.backward()
    assert torch.equal(looked.flat(), plain.flat())
    for a, b in zip(looked.optimizer.state.values(), plain.optimizer.state.values(), strict=True):
        assert all(torch.equal(a[key], b[key]) for key in b)


# ---------------------------------------------------------------------- schedules


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
    late = [record.step for record in searched(run.records) if record.step > below]
    assert len(late) <= 1
    stopped = late[0] if late else searched(run.records)[-1].step
    assert factors[stopped:] == pytest.approx([factors[-1]] * (steps - stopped), rel=1e-6)
    assert len({round(math.log(f), 3) for f in factors[:stopped]}) > 5, "until then it has searched"
    assert max(lr for lr, _ in run.lrs) > 1e-3


def test_one_cycle_is_not_climbed_twice() -> None:
    """While the curve itself rises, factor times curve grows like t^growth at most."""
    steps = 2000
    run = Training(schedule="onecycle", total_steps=steps).run(590)
    judged = [r for r in run.records[1:-1] if r.horizon[0].action in ("up", "hold")]
    assert {r.horizon[0].action for r in judged} == {"up", "hold"}, "a steep curve is left alone"
    ends = [record.step for record in run.records]
    for record in judged:
        then = ends[ends.index(record.step) + 1]
        shape = SHAPES["onecycle"](steps)
        began = ends[ends.index(record.step) - 1]
        rise = math.log(shape(record.step - 1) / shape(began - 1))
        change = math.log(record.hyperparameters[0].base_after / record.hyperparameters[0].base_before)
        assert (
            change + rise <= HorizonController().growth * math.log(then / record.step) + 1e-9 or change == 0
        )


def test_a_schedule_that_falls_at_once_is_said_to_end_the_search(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    auto = AutoLR(optimizer, total_steps=300, probe=probe_of(model), schedule=ExponentialLR(optimizer, 0.97))
    train(model, optimizer, auto, 60)
    assert "the search for its size ends" in caplog.text


# ---------------------------------------------------------------------- another probe


def test_a_run_resumed_with_another_probe_compares_with_its_losses_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = Training().run(120)
    kept = before.auto.best
    assert kept is not None
    resumed = Training(auto=False)
    resumed.attach = lambda: None  # type: ignore[method-assign]
    probe = Probe(
        lambda x: 10 * loss_of(resumed.model, x), lambda k: batch(90_000 + k, 256), model=resumed.model
    )
    resumed.auto = AutoLR(resumed.optimizer, probe=probe, **resumed.settings)
    resumed.load(before.save()).run(200)
    best = resumed.auto.finish_()
    assert best is not None
    # On the old losses, a tenth of these, nothing would ever have been better.
    assert best.step > 120
    assert best.loss > kept.loss
    assert caplog.text.count("other batches than before the run was resumed") == 1


# ---------------------------------------------------------------------- groups


def test_the_ratio_of_groups_stays() -> None:
    run = Training(lrs=(1.0, 4.0)).run(200)
    assert all(second == 4 * first for first, second in run.lrs)


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


def test_a_group_added_within_a_window_survives_its_rollback(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    optimizer = AdamW(model[0].parameters(), lr=5.0)
    auto = AutoLR(optimizer, total_steps=300, probe=probe_of(model))

    def add(i: int) -> None:
        if i == 100:
            optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 1e-3})
        if i == 101:
            with torch.no_grad():
                model[0].weight.mul_(1e4)

    train(model, optimizer, auto, 300, at=add)
    assert optimizer.param_groups[1]["betas"] == (0.9, 0.999)
    assert "keeps its own lr, 0.001" in caplog.text


def test_nothing_to_train_is_refused() -> None:
    model = network().requires_grad_(False)
    with pytest.raises(ValueError, match="must train something"):
        AutoLR(AdamW(model.parameters()), total_steps=100, probe=probe_of(model))


def test_what_led_back_is_said_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """A weight that no batch of the probe uses is lost: its loss has not risen."""
    model = network()
    model.register_parameter("unused", nn.Parameter(torch.ones(2)))
    optimizer = SGD(model.parameters(), 0.1)
    auto = AutoLR(optimizer, total_steps=100, probe=probe_of(model))

    def lose(i: int) -> None:
        if i == 44:
            with torch.no_grad():
                model.unused.fill_(math.inf)  # type: ignore[operator, union-attr]

    train(model, optimizer, auto, 60, at=lose)
    (said,) = [record.message for record in caplog.records if "back to the weights" in record.message]
    assert "the last weights, or the probe's loss at them, are not finite: back to the weights of" in said


# ---------------------------------------------------------------------- half of a model


def half(second: SGD | None, at: int = 0) -> None:
    """AutoLR has an optimizer of the first layer; the ``second`` one steps beside it from step ``at`` on."""
    model = network()
    second = SGD(model[2].parameters(), 0.01) if second is None else second
    optimizer = SGD(model[0].parameters(), 0.1)
    auto = AutoLR(optimizer, total_steps=100, probe=probe_of(model))
    train(model, optimizer, auto, 60, at=lambda i: second.step() if i >= at else None)


@pytest.mark.parametrize("at", [0, 40])
def test_another_optimizer_on_the_same_model_is_refused(at: int) -> None:
    with pytest.raises(
        RuntimeError, match=r"2 parameters have changed .* such as '2\.weight'.*all optimizers"
    ):
        half(None, at)


def test_what_is_left_as_it_is_needs_no_optimizer() -> None:
    half(SGD([nn.Parameter(torch.ones(1))], 0.01))


# ---------------------------------------------------------------------- weights


def test_the_usual_rate_of_bfloat16_weights_is_that_of_float32() -> None:
    """At the first learning rate most of a step is rounded away: the pace seen there is far too low."""
    usual = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(50, 16), nn.Flatten(), nn.Linear(64, 5)).to(dtype)
        optimizer = torch.optim.AdamW(model.parameters())
        words, held_out = torch.randint(50, (40, 32, 4)), torch.randint(50, (8, 32, 4))

        def loss(batch: Tensor, model: nn.Module = model) -> Tensor:
            return nn.functional.cross_entropy(model(batch).float(), batch[:, 0] % 5)

        auto = hdet.AutoLR(optimizer, probe=hdet.Probe(loss, held_out, model=model), total_steps=400)
        for some in words:
            loss(some).backward()
            optimizer.step()
            optimizer.zero_grad()
            auto.step()
        usual[dtype] = auto._horizon._states[0].usual
    assert usual[torch.bfloat16] == pytest.approx(usual[torch.float32], rel=0.5)


@pytest.mark.parametrize("width", [8, 70_000])
def test_complex_weights(width: int) -> None:
    torch.manual_seed(0)
    model = nn.ParameterList([nn.Parameter(torch.randn(width, dtype=torch.cfloat))])
    optimizer = torch.optim.Adam(model.parameters())

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        away = next(model.parameters()) - x[0, 0] * 0.1 - 1j
        return (away * away.conj()).real.mean()

    auto = AutoLR(optimizer, total_steps=100, probe=probe_of(model, loss))
    train(model, optimizer, auto, 100, loss=loss)
    auto.load_state_dict(auto.state_dict())
    best = auto.finish_()
    assert best is not None
    assert best.estimate < 0.3 < loss(nn.ParameterList([torch.zeros(1)]), X[0]).item()


@pytest.mark.parametrize("at", [0, 13, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_cast_after_construction_is_refused(dtype: torch.dtype, at: int) -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.1)

    auto = AutoLR(optimizer, total_steps=100, probe=probe_of(model, cast_loss))
    with pytest.raises(TypeError, match=rf"some were torch.float32 on cpu .*, and are {dtype} on cpu; call"):
        train(model, optimizer, auto, 60, loss=cast_loss, at=lambda i: model.to(dtype) if i == at else None)
    assert auto.steps < at + 20


def cast_loss(model: nn.Module, x: Tensor) -> Tensor:
    """In whatever type the weights have."""
    y = model(x.to(next(model.parameters()).dtype))
    return (y - x.sum(1, keepdim=True)).square().mean()


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_bfloat16_weights(kind: str) -> None:
    """At the first learning rate they do not move at all: it grows until they do. Means are float16."""
    model = nn.Module()
    model.weight = weight = nn.Parameter((1 + torch.arange(64) / 64).to(torch.bfloat16))
    optimizer = OPTIMIZERS[kind]([weight], lr=1.0)

    def loss(samples: Tensor) -> Tensor:
        return 0.5 * (weight.float() - samples).square().mean()

    probe = hdet.Probe(loss, lambda k: 0.1 * torch.randn(64), model=model)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=300)
    assert [t.dtype for t in auto._horizon._window.mean.tensors] == [torch.float16]
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
    moved = next(r for r in records if r.horizon[0].why != "hardly moved")
    rate, speed = moved.hyperparameters[0], moved.horizon[0].speed
    assert 0.1 < rate.base_after / (rate.base_before * 2 / speed) < 1 + 1e-9, "to the speed of 2, or less"
    assert weight.dtype == torch.bfloat16
    assert weight.abs().max() < 0.2


def in_bfloat16(steps: int, first: int = 0, saved: Any = None) -> tuple[list[str], Any, AutoLR]:
    """Its decisions, and all that goes on from there."""
    torch.manual_seed(1)
    model = network().bfloat16()
    optimizer = AdamW(model.parameters())

    def loss(_: nn.Module, x: Tensor) -> Tensor:
        return (model(x.bfloat16()).float() - torch.tanh(x @ W)).square().mean()

    auto = AutoLR(optimizer, total_steps=200, probe=probe_of(model, loss))
    if saved is not None:
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        auto.load_state_dict(saved[2])
    records = []
    for i in range(first, steps):
        optimizer.zero_grad()
        loss(model, X[i]).backward()
        optimizer.step()
        record = auto.step()
        records += [record] if record else []
    state = deepcopy((model.state_dict(), optimizer.state_dict(), auto.state_dict()))
    return decisions(records), state, auto


@pytest.mark.parametrize("at", [3, 33, 104])
@pytest.mark.parametrize("kept_in", [torch.float16, torch.float32])
def test_a_run_in_bfloat16_goes_on(at: int, kept_in: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that an earlier version began, which kept means in float32."""
    if kept_in == torch.float32:
        monkeypatch.setattr(window, "as_mean", lambda weight: weight.detach().to(torch.float32, copy=True))
    whole, (weights, *_), _ = in_bfloat16(200)
    begun, saved, _ = in_bfloat16(at)
    monkeypatch.undo()
    rest, (after, *_), auto = in_bfloat16(200, at, saved)
    assert [*begun, *rest] == whole
    assert all(torch.equal(weights[name], after[name]) for name in weights)
    assert {mean.dtype for mean in auto._horizon._window.mean.tensors} == {kept_in}


def test_how_far_a_window_carried_is_not_rounded_as_the_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean that the model has held has come back with the precision of the weights."""
    precise = []
    displacements = WeightPath.displacements

    def watched(path: WeightPath) -> list[float]:
        means = path.window.mean.tensors
        precise.append(not all(torch.equal(mean, mean.bfloat16().half()) for mean in means))
        return displacements(path)

    monkeypatch.setattr(WeightPath, "displacements", watched)
    in_bfloat16(200)
    assert len(precise) > 8
    assert all(precise[2:])


@pytest.mark.parametrize("offload", [False, True])
def test_memory_is_what_is_said(offload: bool) -> None:
    """The mean, the best and their buffers; the window's start with the optimizer's state; the beginning."""
    run = Training(offload=offload).run(15)
    weights = sum(p.numel() * 4 for p in run.model.parameters())
    state = sum(t.numel() * t.element_size() for s in run.optimizer.state.values() for t in s.values())
    buffers = sum(b.numel() * b.element_size() for b in run.model.buffers())
    # So small a model is its own sketch, which after a window is that of p and of m alike.
    assert run.auto.extra_bytes() == 5 * weights + state + 3 * buffers


def test_a_large_model_takes_one_copy_beside_training() -> None:
    """What lies with the host apart."""
    model = nn.Linear(600, 600, bias=False)
    optimizer = AdamW(model.parameters())
    inputs = torch.randn(20, 4, 600, generator=torch.Generator().manual_seed(0))

    def loss_of(x: Tensor) -> Tensor:
        return model(x).square().mean()

    probe = Probe(loss_of, list(inputs[:8]), model=model)
    auto = AutoLR(optimizer, total_steps=60, probe=probe)
    for i in range(25):
        optimizer.zero_grad()
        loss_of(inputs[i % 20]).backward()
        optimizer.step()
        auto.step()
    assert 0 <= auto._horizon._path.bytes() - 4 * 360_000 <= 2 * 8 * 65_536


def test_weights_lost_after_the_last_window_are_not_lost_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    optimizer = AdamW(model.parameters())
    auto = AutoLR(optimizer, total_steps=200, probe=probe_of(model))

    def poison(i: int) -> None:
        if i == 197:
            with torch.no_grad():
                next(model.parameters()).fill_(float("nan"))

    train(model, optimizer, auto, 200, at=poison)
    assert "not finite at the end of training" in caplog.text
    assert caplog.records[-1].levelno == logging.ERROR


# ---------------------------------------------------------------------- fewer batches


class Counted:
    """A regression whose probe counts at how many batches AutoLR, or what is given, looks in each window.

    ``noise`` in the targets of the probe's batches makes these differ.
    """

    def __init__(
        self, noise: float = 0.0, *, norm: bool = False, door: Any = AutoLR, per_sync: int = 4, **options: Any
    ) -> None:
        self.model = network()
        if norm:
            self.model.insert(1, nn.BatchNorm1d(16))
        self.optimizer = AdamW(self.model.parameters())
        self.looked_at: list[int] = []
        self.passes: list[int] = []
        factors = 1 + noise * torch.randn(2 * per_sync, generator=torch.Generator().manual_seed(4))

        def loss(k: int) -> Tensor:
            self.looked_at.append(k)
            x = X[200 + 12 * k : 212 + 12 * k].flatten(0, 1)
            return (self.model(x) - factors[k] * torch.tanh(x @ W)).square().mean()

        by = {"choose_by": lambda k: -loss(k)} if options.pop("metric", False) else {}
        probe = Probe(loss, list(range(2 * per_sync)), model=self.model, per_sync=per_sync, **by)
        self.auto = door(self.optimizer, probe=probe, **{"total_steps": 600, **options})

    def run(self, begin: int, end: int) -> Counted:
        for i in range(begin, end):
            self.optimizer.zero_grad()
            (self.model(X[i % 200]) - torch.tanh(X[i % 200] @ W)).square().mean().backward()
            self.optimizer.step()
            if self.auto.step() is not None:
                self.passes.append(len(self.looked_at))
                self.looked_at.clear()
        return self


@pytest.mark.parametrize("per_sync", [4, 8])
def test_where_batches_agree_half_of_them_are_measured(per_sync: int) -> None:
    run = Counted(per_sync=per_sync).run(0, 600)
    assert max(run.passes) == per_sync + 2
    assert max(run.passes[-4:-1]) == 4, "two at the mean, two at the end"


@pytest.mark.parametrize(
    ("options", "agree"),
    [({"noise": 0.5}, 0.02), ({"norm": True}, 10), ({"metric": True}, 10), ({"door": hdet.AutoTune}, 10)],
    ids=["unlike", "batch norm", "metric", "AutoTune"],
)
def test_where_they_may_not_all_are_measured(
    options: dict[str, Any], agree: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what a metric or running statistics choose, and of what others compare, a loss says less, however
    well the batches agree on it."""
    monkeypatch.setattr("hdet.autolr.best._AGREE", agree)
    run = Counted(**options).run(0, 600)
    assert len(run.passes) > 10
    assert {*run.passes[1:-2]} == {run.passes[1]}


@pytest.mark.parametrize("at", [40, 250, 590])
def test_a_run_of_fewer_batches_goes_on(at: int) -> None:
    whole = Counted().run(0, at)
    state = deepcopy((whole.model.state_dict(), whole.optimizer.state_dict(), whole.auto.state_dict()))
    whole.passes.clear()
    whole.run(at, 600)
    again = Counted()
    for thing, one in zip((again.model, again.optimizer, again.auto), state, strict=True):
        thing.load_state_dict(one)
    again.run(at, 600)
    assert all(map(torch.equal, again.model.parameters(), whole.model.parameters()))
    assert again.passes[1:] == whole.passes[1:]


@pytest.mark.parametrize(("steps", "most"), [(600, 0.06), (2400, 0.02)])
def test_of_all_passes_the_probe_takes_few(steps: int, most: float) -> None:
    """A backward pass counts as two; batches as large as those of training."""
    run = Counted(total_steps=steps).run(0, steps)
    assert sum(run.passes) <= most * 3 * steps


# ---------------------------------------------------------------------- factors


@pytest.mark.parametrize(
    ("sizes", "names", "of_group", "highest"),
    [
        ((), ["lr"], [0, 0, 0], [5.0]),
        ((1, 2), ["lr/0", "lr/1-2"], [0, 1, 1], [2.0, 5.0]),
        ((2, 1), ["lr/0-1", "lr/2"], [0, 0, 1], [5.0, 1.0]),
    ],
)
def test_each_optimizer_has_its_own(
    sizes: tuple[int, ...], names: list[str], of_group: list[int], highest: list[float]
) -> None:
    made = Factors(sizes)
    assert made.names() == names
    assert [made.of_group(i) for i in range(3)] == of_group
    assert made.highest([2.0, 5.0, 1.0]) == highest


def decided(value: float, action: str, why: str = "", windows: int = 9) -> HorizonDecision:
    return HorizonDecision(HorizonState(value, windows=windows), action, 1.0, why=why)  # type: ignore[arg-type]


def after(*decisions: HorizonDecision) -> list[tuple[float, str]]:
    before = [HorizonState(1.0, windows=d.state.windows) for d in decisions]
    made = Factors((1,) * len(decisions)).as_one(before, decisions)
    return [(round(d.state.value, 9), d.action) for d in made]


def test_they_move_together() -> None:
    """By the mean of what each would have done, as a factor."""
    assert after(decided(4.0, "up"), decided(1.0, "hold", "not significant")) == [(2.0, "up")] * 2
    assert after(decided(0.25, "down"), decided(1.0, "hold", "no progress")) == [(0.5, "down")] * 2
    assert after(decided(8.0, "up"), decided(0.5, "down")) == [(2.0, "up")] * 2


def test_until_all_are_at_speed_each_moves_by_itself() -> None:
    own = [(3.0, "scale"), (1.5, "up")]
    assert after(decided(3.0, "scale"), decided(1.5, "up")) == own
    assert after(decided(0.3, "back"), decided(1.5, "up")) == [(0.3, "back"), (1.5, "up")]


def test_one_at_its_bound_or_that_does_not_move_stays() -> None:
    assert after(decided(4.0, "up"), decided(1.0, "hold")) == [(2.0, "up"), (1.0, "hold")]
    idle = decided(1.0, "hold", "nothing is trained", windows=0)
    assert after(decided(4.0, "up"), idle) == [(4.0, "up"), (1.0, "hold")]
