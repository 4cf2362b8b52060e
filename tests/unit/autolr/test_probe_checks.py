"""Probes that say nothing: an error, or one warning."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

import hdet
from hdet import AutoLR
from hdet.autolr.probe_checks import ProbeChecks, other_loss
from hdet.loop.policy import Sample
from tests.unit.training import Net, Training, X, batch, decisions, loss_of, probe_of, train

pytestmark = pytest.mark.usefixtures("same_seed")


def with_probe(loss_fn: Callable[[Any], Any], batches: Any = batch) -> Training:
    run = Training(auto=False)
    probe = hdet.Probe(lambda x: loss_fn(run.model), batches, model=run.model)
    run.auto = hdet.AutoLR(run.optimizer, probe=probe, total_steps=200)
    return run


def test_a_probe_that_returns_nan_is_refused() -> None:
    run = with_probe(lambda model: math.nan).run(19)
    with pytest.raises(
        ValueError,
        match=r"AutoLR.step: step 20: the probe's loss must be finite .* got \[nan(, nan){3}\]",
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
    said = [r.getMessage() for r in caplog.records if "batches gives some twice" in r.getMessage()]
    assert len(said) == 1
    assert run.lrs[149][0] > 1e-4


def test_different_batches_are_not_remarked_upon(caplog: pytest.LogCaptureFixture) -> None:
    Training().run(200)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_run_that_is_solved_goes_on() -> None:
    """A hinge loss reaches exactly zero, and the probe then sees no difference between points."""

    def hinge(model: nn.Module, x: Tensor) -> Tensor:
        return F.relu(1 - model(torch.where(x > 0, 2.0, -2.0)) * torch.where(x[:, :1] > 0, 1.0, -1.0)).mean()

    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = AdamW(model.parameters())
    train(model, optimizer, AutoLR(optimizer, total_steps=400, probe=probe_of(model, hinge)), 400, hinge)
    assert hinge(model, X[300]).item() == 0


# ---------------------------------------------------------------------- a loss that has steps


@pytest.mark.parametrize("size", [8, 30, 128])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_share_of_samples_is_told_from_a_loss(
    size: int, sign: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with what to write instead."""
    run = Training(auto=False)

    def wrong(x: Tensor) -> Tensor:
        return sign * ((run.model(x) > 0) != (x[:, :1].sin() + x[:, 1:2] > 0)).float().mean()

    probe = hdet.Probe(wrong, lambda k: batch(90_000 + k, size), model=run.model)
    run.auto = hdet.AutoLR(run.optimizer, probe=probe, total_steps=200)
    run.run(200)
    (said,) = [r.getMessage() for r in caplog.records if "step function" in r.getMessage()]
    assert f"whole numbers of samples over {size}, the size of its batches" in said
    assert "hdet.Probe(loss_fn, batches, model=model, choose_by=metric)" in said


@pytest.mark.parametrize("size", [1, 8, 32, 100, 256, 1024])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 50.0])
def test_a_loss_is_never_taken_for_one(size: int, dtype: torch.dtype, scale: float) -> None:
    """Not where it has few digits, and lies on a grid itself: ten thousand losses that fall and stand."""
    probe = hdet.Probe(lambda x: 0.0, [torch.zeros(size, 1)] * 8, model=nn.Linear(1, 1))
    draw = torch.Generator().manual_seed(size)
    for _ in range(20):
        checks = ProbeChecks("AutoLR", probe)
        for k in range(125):
            losses = scale * (0.1 + math.exp(-k / 20)) * (1 + 0.3 * torch.randn(4, generator=draw))
            assert checks._steps(losses.to(dtype).tolist()) == ""


# ---------------------------------------------------------------------- another loss than that of training


def compared(
    factor: float = 1.0,
    shift: float = 0.0,
    *,
    until: int = 60,
    given: Any = lambda loss: loss,
    **options: Any,
) -> Training:
    """The probe's loss is ``factor`` times that of training, on inputs that are ``shift``ed."""
    run = Training(auto=False)
    probe = hdet.Probe(
        lambda x: factor * loss_of(run.model, x + shift), lambda k: batch(50_000 + k, 256), model=run.model
    )
    run.auto = hdet.AutoLR(run.optimizer, probe=probe, total_steps=200, **options)
    while run.step < until:
        loss = run.backward()
        record = run.auto.step(given(loss))
        run.records += [record] if record else []
    return run


def told(run: Training) -> dict[int, str]:
    return {r.step: event for r in run.records for event in r.events if "at the same weights" in event}


@pytest.mark.parametrize(("factor", "shift"), [(16.0, 0.0), (1 / 16, 0.0), (1.0, 10.0)])
def test_another_loss_is_said_once_with_both_numbers(
    factor: float, shift: float, caplog: pytest.LogCaptureFixture
) -> None:
    run = compared(factor, shift)
    ((step, event),) = told(run).items()
    assert step == 20
    known = run.records[0].losses[0], run.records[1].horizon[0].loss_previous
    assert event.startswith(
        f"at the same weights the training loss is {known[0]:.4g} and that of the probe {known[1]:.4g}: "
    )
    assert event.endswith("harmless if intended")
    lines = [record for record in caplog.records if "at the same weights" in record.getMessage()]
    assert [line.levelno for line in lines] == [logging.WARNING]


def test_the_same_loss_is_not_remarked_upon(caplog: pytest.LogCaptureFixture) -> None:
    """Nor one that was not given, nor one that is not finite."""
    assert not told(compared())
    assert not told(compared(16.0, given=lambda loss: None))
    assert not told(compared(16.0, given=lambda loss: math.nan))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_it_is_said_after_a_resume_as_without() -> None:
    whole = compared(16.0)
    saved = compared(16.0, until=15).save()
    rest = compared(16.0, until=0).load(saved)
    while rest.step < 60:
        loss = rest.backward()
        record = rest.auto.step(loss)
        rest.records += [record] if record else []
    assert list(told(rest)) == [20]
    assert decisions(rest.records) == decisions(whole.records)[1:]


def test_how_far_apart_losses_must_be() -> None:
    training = Sample(1.0, 0.2, 10)
    assert not other_loss(training, Sample(1.24, 0.01, 4)), "less than a quarter"
    assert not other_loss(Sample(1.0, 0.5, 10), Sample(1.6, 0.5, 4)), "less than five errors"
    assert other_loss(training, Sample(1.6, 0.1, 4))
    assert other_loss(Sample(-1.6, 0.2, 10), Sample(-1.0, 0.1, 4)), "of either sign"
    assert not other_loss(training, Sample(1.6, 0.0, 2)), "two batches may be alike by chance"
    assert not other_loss(Sample(1.0, 0.0, 10), Sample(1.9, 0.1, 4)), "one batch again and again"
    assert other_loss(Sample(1.0, 0.0, 10), Sample(16.0, 0.1, 4))
    assert not other_loss(Sample(), Sample(16.0, 0.1, 4))
    assert not other_loss(training, Sample.of([16.0])), "of one batch there is no error"
    assert not other_loss(training, Sample.of([16.0, math.inf]))
