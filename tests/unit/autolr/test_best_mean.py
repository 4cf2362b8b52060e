"""The best weights of a run, early ones where those were best; training does not see that it is watched."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdet import BestMean, Probe
from hdet.autolr.best import Best

Batch = tuple[Tensor, Tensor]


class Run:
    """A model, its optimizer, what is trained on, and a probe."""

    def __init__(
        self, model: nn.Module, train: list[Batch], held_out: list[Batch], *, lr: float = 0.1, **settings: Any
    ) -> None:
        self.model, self.train = model, train
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.probe = Probe(self.loss, held_out, model=model)
        self.best = BestMean(model, self.probe, **settings)
        self.taken = 0

    def loss(self, batch: Batch) -> Tensor:
        x, y = batch
        out = self.model(x)
        return F.mse_loss(out, y) if y.is_floating_point() else F.cross_entropy(out, y)

    def go(self, steps: int, *, watched: bool = True) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.loss(self.train[self.taken % len(self.train)]).backward()
            self.optimizer.step()
            self.taken += 1
            if watched:
                self.best.step()

    def finish(self) -> Best:
        found = self.best.finish_()
        assert found is not None
        return found

    def saved(self) -> Any:
        file = io.BytesIO()
        parts = (self.model.state_dict(), self.optimizer.state_dict(), self.best.state_dict(), self.taken)
        torch.save(parts, file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    def resume(self, saved: Any) -> None:
        model, optimizer, best, self.taken = saved
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.best.load_state_dict(best)


@torch.no_grad()
def loss_on(run: Run, batches: list[Batch]) -> float:
    """In evaluation mode."""
    flags = [(module, module.training) for module in run.model.modules()]
    run.model.eval()
    found = sum(run.loss(batch).item() for batch in batches) / len(batches)
    for module, training in flags:
        module.training = training
    return found


def standing(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def linear_data(count: int, seed: int, noise: float = 0.0, size: int = 16) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, size, 6, generator=generator)
    y = x.sum(2, keepdim=True) + noise * torch.randn(count, size, 1, generator=generator)
    return list(zip(x, y, strict=True))


def random_labels(samples: int, seed: int, batches: int = 1) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batches, samples, 30, generator=generator)
    y = torch.randint(0, 2, (batches, samples), generator=generator)
    return list(zip(x, y, strict=True))


def busy_model() -> nn.Module:
    """Everything that a probe could disturb."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))


def busy_run(**settings: Any) -> Run:
    return Run(busy_model(), linear_data(20, 1, 1.0), linear_data(8, 2, 1.0), lr=0.05, **settings)


# ---------------------------------------------------------------------- what is found over


def test_a_run_that_overfits_hands_over_an_early_mean() -> None:
    torch.manual_seed(0)
    model = nn.Linear(30, 2)
    nn.init.zeros_(model.weight)
    run = Run(model, random_labels(20, 1), random_labels(100, 2, batches=8))
    run.go(400)
    fresh = random_labels(1000, 3, batches=4)
    at_the_end = loss_on(run, fresh)
    found = run.finish()
    assert found.step <= 20
    assert found.kind in ("mean", "iterate")
    assert loss_on(run, fresh) < at_the_end - 0.5
    assert run.best.best == found
    assert abs(found.estimate - loss_on(run, fresh)) < 4 * found.error


@pytest.mark.parametrize("steps", [7, 60, 75])
def test_a_run_that_improves_to_the_last_step_hands_over_its_end(steps: int) -> None:
    run = Run(nn.Linear(6, 1), linear_data(20, 1), linear_data(8, 2), lr=0.001)
    run.go(steps)
    before = standing(run.model)
    found = run.finish()
    assert (found.step, found.kind) == (steps, "end")
    assert_equal(standing(run.model), before)
    assert found.estimate == pytest.approx(loss_on(run, linear_data(8, 2)[4:]), rel=1e-5)


def test_where_iterates_jump_their_mean_is_loaded() -> None:
    run = Run(nn.Linear(6, 1), linear_data(40, 1, 10.0, size=2), linear_data(8, 2, 1.0, size=200), lr=0.01)
    run.go(200)
    at_the_end = loss_on(run, fresh := linear_data(8, 3, 1.0, size=200))
    found = run.finish()
    assert found.kind == "mean"
    assert loss_on(run, fresh) < at_the_end


def test_a_run_that_is_lost_hands_over_what_was_before() -> None:
    run = Run(nn.Linear(6, 1), linear_data(20, 1), linear_data(8, 2), lr=0.01)
    run.go(40)
    with torch.no_grad():
        next(run.model.parameters()).fill_(math.nan)
    run.go(40)
    found = run.finish()
    assert found.step <= 40
    assert math.isfinite(loss_on(run, linear_data(8, 3)))


def finished_early() -> tuple[Run, Best]:
    model = nn.Linear(30, 2)
    run = Run(model, random_labels(20, 1), random_labels(100, 2, batches=8))
    run.go(100)
    return run, run.finish()


def test_finishing_twice_is_finishing_once() -> None:
    run, found = finished_early()
    before = standing(run.model)
    assert run.finish() == found
    assert_equal(standing(run.model), before)


def test_the_best_is_known_before_the_end() -> None:
    run = Run(nn.Linear(6, 1), linear_data(20, 1), linear_data(8, 2), lr=0.01)
    assert run.best.best is None
    run.go(9)
    assert run.best.best is None
    run.go(1)
    assert run.best.best is not None
    assert run.best.best.step == 10
    assert math.isnan(run.best.best.estimate)


def test_without_a_step_the_weights_stay_and_are_measured() -> None:
    run = Run(nn.Linear(6, 1), linear_data(1, 1), linear_data(8, 2))
    before = standing(run.model)
    found = run.finish()
    assert (found.step, found.kind) == (0, "end")
    assert_equal(standing(run.model), before)


# ---------------------------------------------------------------------- what training does not see


def test_training_with_and_without_it_is_bit_equal() -> None:
    ends = []
    for watched in (True, False):
        run = busy_run()
        torch.manual_seed(7)
        run.go(70, watched=watched)
        ends.append((standing(run.model), torch.get_rng_state(), run.optimizer.state_dict()["state"]))
    assert_equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])
    for mine, other in zip(ends[0][2].values(), ends[1][2].values(), strict=True):
        assert torch.equal(mine["momentum_buffer"], other["momentum_buffer"])


def test_a_loss_that_raises_at_the_mean_leaves_the_weights_of_the_iterate() -> None:
    run = Run(nn.Linear(6, 1), linear_data(20, 1), linear_data(8, 2), lr=0.01)
    run.go(9)
    calls = iter(range(99))

    def fails(batch: Batch) -> Tensor:
        if next(calls) == 5:
            raise KeyError("the user's")
        return run.loss(batch)

    run.best = BestMean(run.model, Probe(fails, linear_data(8, 2), model=run.model))
    run.go(9)
    run.go(1, watched=False)
    before = standing(run.model)
    with pytest.raises(KeyError, match="the user's"):
        run.best.step()
    assert_equal(standing(run.model), before)


def test_the_host_keeps_the_same_as_the_device() -> None:
    ends = []
    for offload in (False, True):
        run = busy_run(offload=offload)
        torch.manual_seed(7)
        run.go(50)
        ends.append((run.finish(), standing(run.model)))
    assert ends[0][0] == ends[1][0]
    assert_equal(ends[0][1], ends[1][1])


def test_where_training_does_not_call_the_model_nothing_is_hooked_into_it_for_long() -> None:
    """A compiled step or a CUDA graph: that the probe's samples are trained on could not be seen."""
    run = Run(nn.Linear(6, 1), linear_data(20, 1), linear_data(8, 2), lr=0.01)
    hooks = run.model._forward_pre_hooks
    for step in range(10):
        assert len(hooks) == (step > 0)
        x, y = run.train[step]
        F.mse_loss(F.linear(x, *run.model.parameters()), y).backward()
        run.optimizer.step()
        run.best.step()
    assert not hooks, "once the probe has measured"


# ---------------------------------------------------------------------- going on


@pytest.mark.parametrize("broken_at", [0, 1, 5, 10, 13, 20, 47])
def test_a_resumed_run_equals_the_unbroken_one(broken_at: int) -> None:
    unbroken = Run(nn.Linear(6, 1), linear_data(20, 1, 3.0), linear_data(8, 2, 1.0), lr=0.02)
    resumed = Run(nn.Linear(6, 1), linear_data(20, 1, 3.0), linear_data(8, 2, 1.0), lr=0.02)
    unbroken.go(broken_at)
    resumed.resume(unbroken.saved())
    assert resumed.best.best == unbroken.best.best
    assert resumed.best.steps == broken_at
    for run in (unbroken, resumed):
        run.go(60 - broken_at)
    assert unbroken.finish() == resumed.finish()
    assert_equal(standing(unbroken.model), standing(resumed.model))


# ---------------------------------------------------------------------- frozen and freed


def layered() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1))


def layered_run(**settings: Any) -> Run:
    return Run(layered(), linear_data(20, 1, 1.0), linear_data(8, 2, 1.0), lr=0.01, **settings)


def test_frozen_weights_are_neither_averaged_nor_moved() -> None:
    run = layered_run()
    run.model.get_submodule("0").requires_grad_(False)
    before = standing(run.model)
    run.go(40)
    run.finish()
    assert torch.equal(run.model.get_parameter("0.weight"), before["0.weight"])
    assert not torch.equal(run.model.get_parameter("1.weight"), before["1.weight"])


def test_weights_that_no_gradient_reaches() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(6, 1), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.used(x)
            return out

    run = Run(Unused(), linear_data(20, 1, 1.0), linear_data(8, 2, 1.0), lr=0.01)
    before = standing(run.model)
    run.go(40)
    run.finish()
    assert torch.equal(run.model.get_parameter("unused.weight"), before["unused.weight"])


def test_a_model_of_which_nothing_is_trained() -> None:
    model = nn.Linear(6, 1).requires_grad_(False)
    best = BestMean(model, Probe(lambda _: model.weight.sum(), [1, 2], model=model))
    with pytest.raises(ValueError, match="must train something"):
        best.step()


@torch.no_grad()
def ruin(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter += 100


def freed_and_ruined(freed_at: int, steps_between: int) -> Run:
    """A run whose first layer is freed, and then everything gets worse."""
    run = layered_run()
    run.model.get_submodule("0").requires_grad_(False)
    run.go(freed_at)
    run.model.get_submodule("0").requires_grad_(True)
    for _ in range(steps_between):
        run.best.step()
    for _ in range(30):
        ruin(run.model)
        run.best.step()
    return run


@pytest.mark.parametrize(
    ("freed_at", "steps_between"),
    [
        (10, 1),
        pytest.param(
            10,
            0,
        ),
        pytest.param(
            15,
            0,
        ),
    ],
)
def test_where_a_layer_is_freed_the_choice_begins_anew(freed_at: int, steps_between: int) -> None:
    """Weights from before that would be found over without what that layer was."""
    run = freed_and_ruined(freed_at, steps_between)
    found = run.finish()
    assert found.step > freed_at
    assert loss_on(run, linear_data(8, 2, 1.0)[:4]) == pytest.approx(found.loss, rel=1e-4)


def test_layers_freed_and_frozen_on_the_way() -> None:
    run = layered_run()
    for layer, trained in [("0", False), ("0", True), ("1", False), ("1", True)]:
        run.model.get_submodule(layer).requires_grad_(trained)
        run.go(25)
    found = run.finish()
    others = linear_data(8, 2, 1.0)[4:]
    assert found.estimate == pytest.approx(loss_on(run, others), rel=1e-4)


@pytest.mark.parametrize("steps", [5, 10])
def test_a_run_in_which_a_layer_was_just_freed_resumes(steps: int) -> None:
    run, other = layered_run(), layered_run()
    run.model.get_submodule("0").requires_grad_(False)
    run.go(steps)
    run.model.get_submodule("0").requires_grad_(True)
    other.resume(run.saved())
    run.go(30)
    other.go(30)
    assert run.finish() == other.finish()


# ---------------------------------------------------------------------- batch norm


@pytest.mark.parametrize("lr", [0.0005, 0.05])
def test_a_model_with_batch_norm_is_worth_what_is_said(lr: float) -> None:
    run = busy_run()
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    torch.manual_seed(3)
    run.go(150)
    at_the_end = loss_on(run, fresh := linear_data(50, 4, 1.0))
    found = run.finish()
    assert found.estimate == pytest.approx(loss_on(run, linear_data(8, 2, 1.0)[4:]), rel=1e-5)
    assert loss_on(run, fresh) < at_the_end + 0.1
    assert all(module.training for module in run.model.modules())


# ---------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m, p: BestMean(None, p), TypeError, "model must be a torch nn.Module, got NoneType"),
        (lambda m, p: BestMean(m.parameters(), p), TypeError, "must be a torch nn.Module, got generator"),
        (lambda m, p: BestMean(m, [1]), TypeError, r"must be a hdet.Probe, got list; hdet.Probe\(.* makes"),
        (lambda m, p: BestMean(m, p, offload="host"), TypeError, "offload must be True or False, got 'host'"),
        (lambda m, p: BestMean(m, p, process_group=object()), ValueError, "not initialised"),
    ],
)
def test_arguments(call: Callable[..., object], error: type[Exception], words: str) -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(error, match=f"BestMean: .*{words}"):
        call(model, Probe(lambda _: 0.0, [1, 2], model=model))


def test_one_sample_chooses_nothing() -> None:
    """Where four would choose an early mean, the end is returned."""
    for samples, kinds in ((1, {"end"}), (4, {"mean", "iterate"})):
        torch.manual_seed(0)
        run = Run(nn.Linear(30, 2), random_labels(16, 0), random_labels(samples, 5), lr=0.5)
        run.go(60)
        assert run.finish().kind in kinds
