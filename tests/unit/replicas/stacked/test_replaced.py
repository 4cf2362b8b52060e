"""Replicas that differ in what the forward pass reads train as models of their own with those values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import hdet
from benchmarks.workloads.charlm import GPT
from tests.fakes import Attention
from tests.stacks import batches, rows_of

SIZE, SAMPLES = 4, 6


class Classifier(nn.Module):
    """Everything that a forward pass reads: rates of dropout, a temperature, label smoothing."""

    def __init__(self, scale: float | Tensor, rate: float = 0.0, plain: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.drop = nn.Dropout(rate)
        self.attention = Attention(scale)
        if plain:  # a tensor that is no buffer
            del self.attention._buffers["scale"]
            self.attention.__dict__["scale"] = scale
        self.last = nn.Linear(8, 5)
        self.criterion = nn.CrossEntropyLoss(
            torch.tensor([1.0, 0.5, 2.0, 1.0, 1.0]), ignore_index=3, label_smoothing=0.1
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.drop(self.attention(self.first(x)).tanh()))
        return out


def classify(model: Any, x: Tensor) -> Tensor:
    loss: Tensor = model.criterion(model(x), (x[:, 0] * 4).long().remainder(5))
    return loss


def speak(model: nn.Module, x: Tensor) -> Tensor:
    text = (x.abs() * 10).long().remainder(7)
    return F.cross_entropy(model(text).flatten(0, 1), text.roll(1, 1).flatten())


@dataclass(frozen=True)
class Case:
    make: Callable[[], Any]
    explore: Callable[[Any], Any]
    write: Callable[[Any, float], object]
    loss_fn: Callable[[Any, Tensor], Tensor] = classify


def write_temperature(model: GPT, value: float) -> None:
    for block in model.blocks:
        block.temperature = value  # type: ignore[assignment]


CASES = {
    "a float": Case(
        lambda: Classifier(2.0),
        lambda m: hdet.Temperature(m),
        lambda m, v: setattr(m.attention, "scale", v),
    ),
    "a buffer": Case(
        lambda: Classifier(torch.tensor(2.0)),
        lambda m: hdet.Temperature(m),
        lambda m, v: m.attention.scale.fill_(v),
    ),
    "a buffer of one element": Case(
        lambda: Classifier(torch.tensor([2.0])),
        lambda m: hdet.Temperature(m),
        lambda m, v: m.attention.scale.fill_(v),
    ),
    "a tensor": Case(
        lambda: Classifier(torch.tensor(2.0), plain=True),
        lambda m: hdet.Temperature(m),
        lambda m, v: m.attention.scale.fill_(v),
    ),
    "fused attention's": Case(
        lambda: GPT(7, layers=2, width=8, heads=2, context=4),
        lambda m: hdet.Temperature(m, "temperature"),
        write_temperature,
        speak,
    ),
    "smoothing": Case(
        lambda: Classifier(1.0),
        lambda m: hdet.LabelSmoothing(m.criterion, spread=1.0),
        lambda m, v: setattr(m.criterion, "label_smoothing", v),
    ),
    "clip": Case(
        lambda: Classifier(1.0),
        lambda m: hdet.GradientClip(0.1, spread=1.5),
        lambda m, v: setattr(m, "clip", v),
    ),
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda model: SGD(groups(model), lr=0.3, momentum=0.5),
    "adamw": lambda model: AdamW(groups(model), lr=0.01, weight_decay=0.1, eps=1e-4),
}


def groups(model: nn.Module) -> list[Any]:
    every = list(model.parameters())
    return [{"params": every[::2]}, {"params": every[1::2]}]


def made(case: Case) -> Any:
    torch.manual_seed(0)
    return case.make()


def step(replicas: hdet.StackedReplicas, loss_fn: Any, x: Tensor) -> Tensor:
    replicas.optimizer.zero_grad()
    losses = replicas.losses(loss_fn, x)
    replicas.backward(losses)
    replicas.optimizer.step()
    return losses


def values_of(ensemble: hdet.Ensemble, k: int = 0) -> tuple[float, ...]:
    fan_out = ensemble._fan_out
    return fan_out.axes[k].values(fan_out.levels[k])


def alone(case: Case, make: Callable[[Any], Any], value: float, parts: Tensor) -> tuple[Tensor, list[float]]:
    model = made(case)
    case.write(model, value)
    optimizer = make(model)
    losses = []
    for x in parts:
        optimizer.zero_grad()
        loss = case.loss_fn(model, x)
        loss.backward()
        if hasattr(model, "clip"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), model.clip)
        optimizer.step()
        losses.append(loss.item())
    return torch.cat([p.detach().flatten() for p in model.parameters()]), losses


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_rows_train_as_models_of_their_own(name: str, kind: str) -> None:
    case, make = CASES[name], OPTIMIZERS[kind]
    model = made(case)
    replicas = hdet.StackedReplicas(model, make(model), SIZE, gradients="none")
    ensemble = hdet.Ensemble(replicas.optimizer, [case.explore(model)], gradients="none", sync_every=100)
    values = values_of(ensemble)
    assert len(set(values)) == SIZE
    data = batches(8, SIZE * SAMPLES)
    seen = [step(replicas, case.loss_fn, x).tolist() for x in data]
    ends = rows_of(replicas)
    for r, value in enumerate(values):
        weights, losses = alone(case, make, value, data.view(8, SIZE, SAMPLES, 3)[:, r])
        torch.testing.assert_close(ends[r], weights, rtol=1e-4, atol=1e-5)
        assert losses == pytest.approx([step[r] for step in seen], rel=1e-4)
    assert (ends[0] - ends[-1]).abs().max() > 1e-3, "or equality says nothing"
    assert replicas.losses(case.loss_fn, data[0]).dtype == torch.float32


@pytest.mark.parametrize("gradients", ["all", "none"])
def test_each_replica_s_own_norm_over_all_groups_is_clipped(gradients: Any) -> None:
    case = CASES["clip"]
    model = made(case)
    replicas = hdet.StackedReplicas(model, SGD(groups(model), lr=1.0), SIZE, gradients=gradients)
    ensemble = hdet.Ensemble(
        replicas.optimizer, [hdet.GradientClip(0.1, spread=1.0)], gradients=gradients, sync_every=100
    )
    before = rows_of(replicas)
    replicas.backward(replicas.losses(classify, batches(1, SIZE * SAMPLES)[0]))
    norms = torch.cat([m.grad for m in replicas.optimizer.matrices if m.grad is not None], 1).norm(dim=1)
    replicas.optimizer.step()
    limits = torch.tensor(values_of(ensemble))
    assert (norms > limits).any()
    torch.testing.assert_close((rows_of(replicas) - before).norm(dim=1), norms.minimum(limits))
    ensemble.detach()
    replicas.optimizer.step()
    assert rows_of(replicas).isfinite().all(), "and what was clipped is no longer"


# ---------------------------------------------------------------------- dropout


def test_each_replica_drops_at_its_own_rate() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.3))
    replicas = hdet.StackedReplicas(model, SGD(model.parameters(), lr=0.1), SIZE, gradients="none")
    ensemble = hdet.Ensemble(replicas.optimizer, [hdet.Dropout(model)], gradients="none", sync_every=3)
    count = 20_000

    def kept(model: Any, x: Tensor) -> Tensor:
        ones = model[1](torch.ones(count) + 0 * x.sum())
        return (ones != 0).float().mean() + 1000 * (ones.max() - 1)

    seen = replicas.losses(kept, torch.zeros(SIZE, 3))
    for p, one in zip(values_of(ensemble), seen.tolist(), strict=True):
        scaled = 1 / (1 - p) - 1
        assert abs(one - 1000 * scaled - (1 - p)) < 5 * (p * (1 - p) / count) ** 0.5 + 1e-3
    assert len(set(values_of(ensemble))) == SIZE
    assert model[1].p == 0.3, "outside of the pass the base stands"
    with ensemble.at_base():
        ones = replicas.losses(lambda m, x: m[1](torch.ones(3) + 0 * x.sum()).max(), torch.zeros(SIZE, 3))
        torch.testing.assert_close(ones.max(), torch.tensor(1 / 0.7))
    model.eval()
    same = replicas.losses(kept, torch.zeros(SIZE, 3))
    assert torch.equal(same, torch.ones(SIZE)), "evaluation drops nothing"


# ---------------------------------------------------------------------- where the base stands


def values_of_scale(value: float = 0.5) -> tuple[Any, hdet.StackedReplicas, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 1), Attention(value))
    replicas = hdet.StackedReplicas(model, SGD(model.parameters(), lr=0.1), 2, gradients="none")
    return model, replicas, replicas.values_of(model[1], "scale")


def scale_of(model: Any, x: Tensor) -> Tensor:
    return model[1](torch.ones(1) + 0 * x.sum()).sum()  # type: ignore[no-any-return]


X = torch.zeros(2, 3)


def test_a_number_that_is_written_outside_is_followed() -> None:
    model, replicas, values = values_of_scale()
    assert replicas.losses(scale_of, X).tolist() == [0.5, 0.5]
    model[1].scale = 0.25
    assert replicas.losses(scale_of, X).tolist() == [0.25, 0.25]
    values.set_(torch.tensor([1.0, 2.0]))
    model[1].scale = 0.125
    assert replicas.losses(scale_of, X).tolist() == [1.0, 2.0], "each has its own"
    values.reset_()
    assert replicas.losses(scale_of, X).tolist() == [0.125, 0.125]


def test_a_pass_that_raises_leaves_the_number_there() -> None:
    model, replicas, values = values_of_scale()
    values.set_(torch.tensor([1.0, 2.0]))

    def fails(model: Any, x: Tensor) -> Tensor:
        assert isinstance(model[1].scale, Tensor)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        replicas.losses(fails, X)
    assert model[1].scale == 0.5


def test_the_values_stay_where_they_are_in_memory() -> None:
    """So a recorded pass reads what was written since, also for another ensemble."""
    model, replicas, values = values_of_scale()
    where, modes = values.rows.data_ptr(), replicas.modes
    for _ in range(2):
        ensemble = hdet.Ensemble(
            replicas.optimizer, [hdet.Temperature(model)], gradients="none", sync_every=1
        )
        for _ in range(3):
            ensemble.step(step(replicas, lambda m, x: m(x).sum(), X).detach())
            assert replicas.losses(scale_of, X).tolist() == pytest.approx(values_of(ensemble))
        ensemble.detach()
        assert replicas.losses(scale_of, X).tolist() == [0.5, 0.5]
    assert replicas.values_of(model[1], "scale") is values
    assert (values.rows.data_ptr(), replicas.modes) == (where, modes)
    replicas.values_of(Attention(1.0), "scale")
    assert replicas.modes != modes, "a pass with one more is another recording"


def test_a_copy_is_free_of_what_moves_the_original() -> None:
    _, replicas, values = values_of_scale()
    values.set_(torch.tensor([1.0, 2.0]))
    twin = copy.deepcopy(replicas)
    assert twin.losses(scale_of, X).tolist() == [0.5, 0.5]
    assert replicas.losses(scale_of, X).tolist() == [1.0, 2.0]


def test_a_buffer_is_at_the_base_when_rows_are_averaged_and_written() -> None:
    model = made(CASES["a buffer"])
    replicas = hdet.StackedReplicas(model, SGD(groups(model), lr=0.3), SIZE, gradients="none")
    with hdet.Ensemble(
        replicas.optimizer, [hdet.Temperature(model)], gradients="none", sync_every=2
    ) as ensemble:
        for x in batches(4, SIZE * SAMPLES):
            ensemble.step(step(replicas, classify, x))
            own = replicas.state_dict()["attention.scale"].tolist()
            assert own == pytest.approx(values_of(ensemble), rel=1e-6)
    replicas.write_()
    assert float(model.attention.scale) == 2.0


# ---------------------------------------------------------------------- an ensemble of all of it


def everything(model: Classifier) -> list[Any]:
    return [
        hdet.Dropout(model),
        hdet.WeightDecay(),
        hdet.LabelSmoothing(model.criterion),
        hdet.Temperature(model),
        hdet.GradientClip(0.5),
    ]


def test_a_resumed_run_goes_on_bit_for_bit() -> None:
    data = batches(12, SIZE * SAMPLES * 2)

    def build() -> tuple[hdet.StackedReplicas, hdet.Ensemble]:
        torch.manual_seed(0)
        model = Classifier(torch.tensor(1.0), rate=0.2)
        replicas = hdet.StackedReplicas(model, AdamW(model.parameters(), lr=0.05), 8, gradients="none")
        held_out = list(batches(4, 8 * SAMPLES, seed=2))
        probe = hdet.Probe(lambda x: replicas.losses(classify, x), held_out, model=model)
        explore = everything(model)
        return replicas, hdet.Ensemble(
            replicas.optimizer, explore, gradients="none", sync_every=4, probe=probe
        )

    def go_on(replicas: Any, ensemble: Any, data: Tensor) -> list[Any]:
        return [r for x in data if (r := ensemble.step(step(replicas, classify, x)))]

    unbroken, ensemble = build()
    go_on(unbroken, ensemble, data[:6])
    saved = copy.deepcopy(
        (unbroken.state_dict(), unbroken.optimizer.state_dict(), ensemble.state_dict(), torch.get_rng_state())
    )
    records = go_on(unbroken, ensemble, data[6:])
    resumed, second = build()
    resumed.load_state_dict(saved[0])
    resumed.optimizer.load_state_dict(saved[1])
    second.load_state_dict(saved[2])
    torch.set_rng_state(saved[3])
    again = go_on(resumed, second, data[6:])
    assert torch.equal(rows_of(resumed), rows_of(unbroken))
    assert [r.losses for r in again] == [r.losses for r in records]
    moved = [[h.base_after for h in r.hyperparameters] for r in records]
    assert [[h.base_after for h in r.hyperparameters] for r in again] == moved
    assert moved[0] != moved[-1]


# ---------------------------------------------------------------------- what cannot be


def test_a_frozen_parameter_is_refused() -> None:
    model = Attention(1.0)
    del model.scale
    model.scale = nn.Parameter(torch.tensor(1.0), requires_grad=False)
    whole = nn.Sequential(nn.Linear(3, 1), model)
    replicas = hdet.StackedReplicas(whole, SGD(whole[0].parameters(), lr=0.1), 2, gradients="none")
    with pytest.raises(
        TypeError, match=r"must be a number or a buffer, got an nn.Parameter in Attention\.scale"
    ):
        hdet.Ensemble(replicas.optimizer, [hdet.Temperature(whole)], gradients="none")


class Hesitant(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.rate, self.how = 0.5, how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "decides":
            return F.dropout(x, self.rate) if self.rate > 0 else x
        return x * float(self.rate)


@pytest.mark.parametrize(
    ("how", "reason"), [("decides", "decides by a value of a tensor"), ("reads", "reads a value of a tensor")]
)
def test_a_module_that_asks_what_the_number_is(how: str, reason: str) -> None:
    model = nn.Sequential(nn.Linear(3, 1), Hesitant(how))
    replicas = hdet.StackedReplicas(model, SGD(model.parameters(), lr=0.1), 2, gradients="none")
    hdet.Ensemble(replicas.optimizer, [hdet.Dropout(model, attribute="rate")], gradients="none")
    with pytest.raises(TypeError, match=f"{reason}.*one process per replica"):
        replicas.losses(lambda m, x: m(x).sum(), X)
    assert model[1].rate == 0.5
