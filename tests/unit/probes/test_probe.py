"""A probe compares points in weight space: nothing but the weights counts, and nothing of it is left."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdet.probes.probe import Probe
from tests.unit.probes.batches import nothing, numbered, numbers, shuffled_loader


def batch(k: int, size: int = 8) -> Tensor:
    return torch.randn(size, 4, generator=torch.Generator().manual_seed(k))


def probe_of(model: nn.Module, **settings: Any) -> Probe:
    return Probe(lambda x: model(x).square().mean(), batch, model=model, **settings)


# ---------------------------------------------------------------------- what losses() guarantees


def test_the_losses_are_those_of_the_weights_as_they_stand() -> None:
    model = nn.Linear(4, 2)
    probe = probe_of(model)
    batches = probe.draw()
    expected = [model(x).square().mean().item() for x in batches]
    assert probe.losses(batches) == expected
    with torch.no_grad():
        model.weight.mul_(2)
        model.bias.mul_(2)
    assert probe.losses(batches) == pytest.approx([4 * loss for loss in expected])


def test_no_gradient() -> None:
    model = nn.Linear(4, 2)
    graphs: list[Any] = []

    def loss_fn(x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().mean()
        graphs.append(loss.grad_fn)
        return loss

    probe = Probe(loss_fn, batch, model=model)
    model(batch(0)).sum().backward()
    gradient = model.weight.grad
    assert gradient is not None
    before = gradient.clone()
    probe.losses(probe.draw())
    assert graphs == [None] * 4
    assert model.weight.grad is gradient
    assert torch.equal(gradient, before)
    assert torch.is_grad_enabled()


class Stateful(nn.Module):
    """Writes one buffer in place and binds a new tensor to another, in any mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("ema", torch.zeros(4), persistent=False)
        self.count: Tensor
        self.ema: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.ema = 0.9 * self.ema + 0.1 * x.mean(0)
        return x


@pytest.fixture
def mixed() -> nn.Sequential:
    """Submodules in different modes, among them a norm layer that the user froze."""
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Dropout(0.5), Stateful()
    )
    model(batch(99))
    model[2].eval()
    model[4].eval()
    return model


def test_flags_and_buffers_are_as_before(mixed: nn.Sequential) -> None:
    """Also after a loss that raises."""

    def loss_fn(x: Tensor) -> Tensor:
        mixed(x)
        raise KeyError("the user's")

    probe = Probe(loss_fn, batch, model=mixed)
    flags = [module.training for module in mixed.modules()]
    buffers = dict(mixed.named_buffers())
    before = {name: (b.data_ptr(), b.clone()) for name, b in buffers.items()}
    with pytest.raises(KeyError, match="the user's"):
        probe.losses(probe.draw())
    assert not probe.measuring
    assert [module.training for module in mixed.modules()] == flags
    for name, buffer in mixed.named_buffers():
        assert buffer is buffers[name], name
        assert buffer.data_ptr() == before[name][0], name
        assert torch.equal(buffer, before[name][1]), name


def test_a_module_that_folds_its_weights_in_eval_is_left_alone() -> None:
    class Folding(nn.Linear):
        def train(self, mode: bool = True) -> Folding:
            if not mode:
                self.weight.data.mul_(2)
            return super().train(mode)

    model = Folding(4, 1)
    before = model.weight.clone()
    probe = probe_of(model)
    probe.losses(probe.draw())
    assert torch.equal(model.weight, before)
    assert model.training


def as_it_is(model: nn.Module) -> nn.Module:
    return model


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("wrap", [as_it_is, torch.jit.script])
def test_dropout_is_off(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = wrap(nn.Sequential(nn.Dropout(0.9)))
    probe = probe_of(model)
    batches = probe.draw()
    assert probe.losses(batches) == [x.square().mean().item() for x in batches]
    assert all(module.training for module in model.modules())
    assert model(batches[0]).count_nonzero() < batches[0].numel() / 2


def test_setting_flags_asks_no_layer_what_they_are() -> None:
    """Which takes longer than the rest: as an assignment, thirteen calls for each."""
    deep = nn.Sequential(*(nn.Dropout(0.5) for _ in range(100)))
    probe = Probe(lambda x: x.sum(), batch, model=deep)
    batches, calls = probe.draw(), 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += frame.f_code is nn.Module.__setattr__.__code__

    sys.setprofile(count)
    try:
        probe.losses(batches)
    finally:
        sys.setprofile(None)
    assert calls == 0


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_a_training_norm_uses_the_statistics_of_the_batch(kind: Callable[[int], nn.Module]) -> None:
    norm = kind(4)
    norm.running_mean.fill_(100.0)  # type: ignore[operator, union-attr]
    probe = Probe(lambda x: norm(x).abs().max(), batch, model=norm)
    batches = probe.draw()
    own = [F.batch_norm(x, None, None, training=True).abs().max().item() for x in batches]
    assert probe.losses(batches) == pytest.approx(own)
    norm.eval()
    assert min(probe.losses(batches)) > 50


def test_an_instance_norm_too() -> None:
    norm = nn.InstanceNorm1d(4, track_running_stats=True)
    norm.running_mean.fill_(100.0)  # type: ignore[union-attr]
    probe = Probe(lambda x: norm(x[None]).abs().max(), lambda k: batch(k, 4), model=norm)
    assert max(probe.losses(probe.draw())) < 50


def test_sync_batch_norm_does_not_wait_for_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a process group it would gather in training mode, which on a CPU is an error."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    norm = nn.SyncBatchNorm(4)
    with pytest.raises(ValueError, match="GPU"):
        norm(batch(0))
    probe = probe_of(norm)
    probe.losses(probe.draw())
    assert norm.training
    assert torch.equal(norm.running_mean, torch.zeros(4))  # type: ignore[arg-type]


def test_the_random_state_is_untouched_and_the_same_at_every_point() -> None:
    model = nn.Linear(4, 1)
    noise: list[Tensor] = []

    def loss_fn(x: Tensor) -> Tensor:
        noise.append(torch.randn(3))
        loss: Tensor = model(x + torch.randn_like(x)).square().mean()
        return loss

    probe = Probe(loss_fn, batch, model=model, per_sync=2)
    torch.manual_seed(7)
    torch.randn(5)
    state = torch.get_rng_state()
    first = probe.draw()
    at_one_point = probe.losses(first)
    assert probe.losses(first) == at_one_point
    assert torch.equal(noise[0], noise[2])
    assert torch.equal(noise[1], noise[3])
    assert not torch.equal(noise[0], noise[1])
    probe.losses(probe.draw())
    assert not torch.equal(noise[0], noise[4])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.initial_seed() == 7


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_random_state_of_cuda() -> None:
    model = nn.Linear(4, 1, device="cuda")

    def loss_fn(x: Tensor) -> Tensor:
        x = x.cuda()
        loss: Tensor = model(x + torch.randn_like(x)).square().mean()
        return loss

    probe = Probe(loss_fn, batch, model=model)
    torch.cuda.manual_seed(7)
    torch.randn(5, device="cuda")
    state = torch.cuda.get_rng_state()
    batches = probe.draw()
    assert probe.losses(batches) == probe.losses(batches)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_autocast_does_not_remember_the_last_point() -> None:
    model = nn.Linear(4, 1)
    probe = probe_of(model)
    batches = probe.draw()
    with torch.autocast("cpu", torch.bfloat16):
        before = probe.losses(batches)
        with torch.no_grad():
            model.weight.mul_(2)
        after = probe.losses(batches)
        assert all(a != b for a, b in zip(before, after, strict=True))
        with torch.no_grad():
            model.weight.div_(2)
        loss = model(batches[0]).square().mean()
        assert loss.item() == before[0], "training continues with a cast of the last point compared"
        loss.float().backward()
    assert model.weight.grad is not None


def test_casts_from_before_the_weights_moved_are_not_used() -> None:
    model = nn.Linear(4, 1)
    probe = probe_of(model)
    batches = probe.draw()
    with torch.autocast("cpu", torch.bfloat16):
        before = [model(x).square().mean().item() for x in batches]
        with torch.no_grad():
            model.weight.mul_(2)
        assert all(a != b for a, b in zip(before, probe.losses(batches), strict=True))


def test_a_compiled_model(mixed: nn.Sequential) -> None:
    compiled: Any = torch.compile(mixed[:4], backend="eager")
    plain, fast = probe_of(mixed[:4]), probe_of(compiled)
    compiled(batch(1))
    batches = plain.draw()
    assert fast.losses(batches) == plain.losses(batches)
    with torch.no_grad():
        mixed[0].weight.mul_(2)
    moved = fast.losses(batches)
    assert moved == plain.losses(batches)
    assert compiled.training


def test_values_that_are_not_finite_are_passed_on() -> None:
    values = iter(
        [torch.tensor(math.nan), torch.tensor([math.inf]), -math.inf, torch.tensor(2, dtype=torch.int32)]
    )
    probe = Probe(lambda _: next(values), batch, model=nn.Linear(1, 1))
    losses = probe.losses(probe.draw())
    assert math.isnan(losses[0])
    assert losses[1:] == [math.inf, -math.inf, 2.0]
    assert all(type(loss) is float for loss in losses)


def test_a_result_that_is_written_over_by_the_next_batch() -> None:
    """The static output of a CUDA graph."""
    static = torch.zeros(())
    probe = Probe(lambda x: static.copy_(x.sum()), batch, model=nn.Linear(1, 1))
    batches = probe.draw()
    assert probe.losses(batches) == [x.sum().item() for x in batches]


def test_one_wait_for_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 1)
    probe = probe_of(model)
    batches = probe.draw()
    waits = []
    for name in ("item", "tolist", "__float__"):
        real = getattr(Tensor, name)
        monkeypatch.setattr(Tensor, name, lambda self, real=real: (waits.append(1), real(self))[1])
    assert len(probe.losses(batches)) == 4
    assert len(waits) == 1


@pytest.mark.parametrize(
    ("result", "error", "words"),
    [
        (torch.zeros(3), ValueError, r"Probe.losses: loss_fn must .* shape \(3,\).*loss.mean\(\)"),
        (None, TypeError, "Probe.losses: loss_fn must return a scalar.*got NoneType; return the mean loss"),
    ],
)
def test_a_result_that_is_no_loss(result: Any, error: type[Exception], words: str) -> None:
    probe = Probe(lambda _: result, batch, model=nn.Linear(1, 1))
    with pytest.raises(error, match=words):
        probe.losses(probe.draw())


def test_arguments() -> None:
    model = nn.Linear(1, 1)
    for per_sync in (0, -1, 1.5, None):
        with pytest.raises(ValueError, match=r"Probe: per_sync must be an integer of at least 1, got"):
            Probe(nothing, batch, model=model, per_sync=per_sync)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Probe: model must be a torch nn.Module, got function"):
        Probe(nothing, batch, model=nothing)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"loss_fn must be a callable.*got NoneType"):
        Probe(None, batch, model=model)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"batches must be an iterable.*got TensorDataset; wrap"):
        Probe(nothing, numbered(3), model=model)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- drawing, and going on


def test_a_callable_gets_the_number_of_the_draw() -> None:
    probe = Probe(nothing, lambda k: k, model=nn.Linear(1, 1), per_sync=3)
    assert [probe.draw(), probe.draw()] == [[0, 1, 2], [3, 4, 5]]


def test_an_iterable_is_begun_anew() -> None:
    probe = Probe(nothing, range(5), model=nn.Linear(1, 1), per_sync=3)
    assert [probe.draw() for _ in range(3)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]


def test_an_iterator_that_ends_is_an_error() -> None:
    probe = Probe(nothing, iter(range(5)), model=nn.Linear(1, 1), per_sync=3)
    assert probe.draw() == [0, 1, 2]
    with pytest.raises(
        ValueError, match=r"Probe.draw: batches must not run out, got a range_iterator.*after 5"
    ):
        probe.draw()
    with pytest.raises(ValueError, match="got a list that ended after 0"):
        Probe(nothing, [], model=nn.Linear(1, 1)).draw()


class Reiterable:
    """Finite, without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


@pytest.mark.parametrize("source", [lambda: batch, Reiterable, shuffled_loader])
def test_a_resumed_probe_draws_what_the_unbroken_one_does(source: Callable[[], Any]) -> None:
    model = nn.Linear(1, 1)
    unbroken = Probe(nothing, source(), model=model, per_sync=3)
    for _ in range(5):
        unbroken.draw()
    torch.randn(3)  # training goes on in between
    resumed = Probe(nothing, source(), model=model, per_sync=3)
    resumed.draw()
    resumed.load_state_dict(unbroken.state_dict())
    for _ in range(3):
        for a, b in zip(unbroken.draw(), resumed.draw(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert unbroken.state_dict() == resumed.state_dict()


def test_a_resume_reads_no_more_than_one_pass() -> None:
    class Counted:
        read = 0

        def __iter__(self) -> Iterator[int]:
            for k in range(7):
                self.read += 1
                yield k

    unbroken = Probe(nothing, Counted(), model=nn.Linear(1, 1), per_sync=3)
    for _ in range(100):
        unbroken.draw()
    batches = Counted()
    Probe(nothing, batches, model=nn.Linear(1, 1)).load_state_dict(unbroken.state_dict())
    assert batches.read == 300 % 7


def test_an_iterator_is_taken_where_it_stands() -> None:
    probe = Probe(nothing, iter(range(10)), model=nn.Linear(1, 1), per_sync=2)
    probe.load_state_dict({"draws": 4, "pass_began": 0, "seed": 0, "rank": 0})
    assert probe.draw() == [0, 1]
    assert probe.state_dict() == {"draws": 6, "pass_began": 0, "seed": 0, "rank": 0}


def test_drawing_leaves_the_random_state_and_shuffles_every_pass_anew() -> None:
    probe = Probe(nothing, shuffled_loader(), model=nn.Linear(1, 1), per_sync=7)
    state = torch.get_rng_state()
    passes = [numbers(probe.draw()) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert [sorted(p) for p in passes] == [list(range(14))] * 2
    assert passes[0] != passes[1]


def test_ranks_that_are_seeded_differently_draw_differently() -> None:
    drawn = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        drawn.append(Probe(nothing, lambda _: torch.randn(1).item(), model=nn.Linear(1, 1)).draw())
    assert drawn[0] == drawn[2]
    assert not set(drawn[0]) & set(drawn[1])


@pytest.mark.parametrize(
    ("batches", "decides"),
    [
        ([batch(0, 1)], False),
        ([batch(0, 1), batch(1, 1)], False),  # the other one estimates
        ([batch(k, 1) for k in range(3)], True),
        ([batch(0, 2)], True),
        (lambda k: batch(k, 1), True),
        ([{"text": "no tensor"}], True),
    ],
)
def test_one_sample_decides_nothing(batches: Any, decides: bool) -> None:
    assert Probe(nothing, batches, model=nn.Linear(1, 1)).decides is decides


def test_the_size_of_a_batch() -> None:
    """Announced by a loader, or that of the first tensor, however deep it is."""
    model = nn.Linear(1, 1)
    probe = Probe(nothing, lambda k: {"id": "a", "x": [torch.tensor(1.0), batch(k, 1500)]}, model=model)
    assert probe.describe() == "4 batches a sync"
    probe.draw()
    assert probe.describe() == "4 batches of 1,500 samples a sync"
    announced = Probe(nothing, shuffled_loader(), model=model, per_sync=1)
    assert announced.describe() == "1 batch of 2 samples a sync"


# ---------------------------------------------------------------------- losses that draw noise


def noisy(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """As diffusion has it: the loss is one of many, by the noise that it draws."""
    return lambda x: (model(x + torch.randn_like(x)) - x).square().mean()


def test_each_batch_is_measured_with_several_draws_the_same_at_every_point() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    held = [batch(k) for k in range(8)]
    once, often = (Probe(noisy(model), held, model=model, repeats=repeats) for repeats in (1, 32))
    single, mean = once.losses(held, of="here"), often.losses(held, of="here")
    assert often.losses(held, of="here") == mean, "the noise is fixed"
    assert often.losses(held, of="there") != mean
    thousand = Probe(noisy(model), held, model=model, repeats=1000).losses(held, of="here")

    def error(losses: list[float]) -> float:
        return math.dist(losses, thousand)

    assert error(mean) < 0.4 * error(single), "32 draws have a fifth of the noise of one"
    with torch.no_grad():
        model.weight.mul_(1.01)
    moved = often.losses(held, of="here")
    assert all(0 < abs(b - a) < 0.1 * a for a, b in zip(mean, moved, strict=True)), "only the weights changed"


def test_one_draw_is_the_default_and_what_is_repeated_is_described() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    held = [batch(k) for k in range(8)]
    first, given = (Probe(noisy(model), held, model=model, **of) for of in ({}, {"repeats": 1}))
    assert first.losses(held, of="x") == given.losses(held, of="x")
    described = Probe(noisy(model), held, model=model, repeats=8).describe()
    assert described == "4 batches of 8 samples, each with 8 draws of noise, a sync"
    with pytest.raises(ValueError, match="Probe: repeats must be an integer of at least 1, got 0"):
        Probe(noisy(model), held, model=model, repeats=0)


def test_a_constant_loss_and_numbers_are_repeated_too() -> None:
    calls: list[int] = []
    probe = Probe(lambda x: calls.append(x) or float(x), [1, 2], model=nn.Linear(1, 1), repeats=3)
    assert probe.losses([1, 2]) == [1.0, 2.0]
    assert calls == [1, 1, 1, 2, 2, 2]
