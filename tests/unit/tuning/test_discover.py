"""``explore="auto"``: what is found in a model, its optimizer and its loss, and that it is what changes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hdet
from benchmarks.zoo.catalogue import TASKS
from benchmarks.zoo.models import Encoder, images_net, mlp
from hdet.tuning.discover import criteria_of, discover
from tests.standing import standing

Loss = Callable[[Any], Tensor]
Training = tuple[nn.Module, Callable[[], Any], Loss, list[Any]]


def classes(seed: int, count: int = 32) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=draw), torch.randint(3, (count,), generator=draw)


def net(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), *more, nn.Linear(8, 3))


def probe_of(model: nn.Module, loss: Loss) -> hdet.Probe:
    return hdet.Probe(loss, [classes(seed) for seed in range(90, 98)], model=model)


def found_in(optimizer: torch.optim.Optimizer, probe: hdet.Probe, **options: Any) -> tuple[list[str], str]:
    found = discover(optimizer, probe, **{"own_gradients": True, "most": None, **options})
    return [begins.split()[0] for begins in found.begins], str(found)


# ---------------------------------------------------------------------- the criterion that training calls

GLOBAL = nn.CrossEntropyLoss()


class Task:
    def __init__(self) -> None:
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def loss(self, batch: Any) -> Any:
        return self.criterion(*batch)

    __call__ = loss


TASK = Task()


def by_global(batch: Any) -> Any:
    return GLOBAL(*batch)


def by_attribute(batch: Any) -> Any:
    return TASK.criterion(*batch)


def with_criterion(criterion: nn.Module, batch: Any) -> Any:
    return criterion(*batch)


def enclosing(criterion: nn.Module) -> Loss:
    return lambda batch: criterion(*batch)


def not_yet() -> Loss:
    def loss(batch: Any) -> Any:
        return later(*batch)

    if TASK is None:
        later = GLOBAL
    return loss


def test_a_criterion_is_found_where_the_loss_refers_to_it() -> None:
    own, plain = nn.CrossEntropyLoss(), nn.Linear(2, 2)
    assert criteria_of(plain, by_global) == [GLOBAL]
    assert criteria_of(plain, by_attribute) == [TASK.criterion]
    assert criteria_of(plain, TASK.loss) == criteria_of(plain, TASK) == [TASK.criterion]
    assert criteria_of(plain, enclosing(own)) == [own]
    assert criteria_of(plain, functools.partial(with_criterion, own)) == [own]
    assert criteria_of(plain, functools.partial(with_criterion, criterion=own)) == [own]
    assert criteria_of(plain, own) == [own], "a module that is the loss"
    assert criteria_of(plain, lambda batch: by_global(batch)) == [GLOBAL], "a function that it calls"
    assert criteria_of(nn.ModuleDict({"criterion": own}), by_global) == [own, GLOBAL], "and in the model"
    assert criteria_of(nn.ModuleDict({"criterion": own}), own) == [own], "once"


def test_what_the_loss_does_not_refer_to_does_not_count() -> None:
    plain = nn.Linear(2, 2)
    assert criteria_of(plain, lambda batch: F.cross_entropy(*batch)) == []
    assert criteria_of(plain, not_yet()) == [], "a variable without a value"
    assert criteria_of(plain, enclosing(nn.MSELoss())) == []


# ---------------------------------------------------------------------- what is taken, and in which order


def test_decay_then_dropout_then_smoothing() -> None:
    model = net(nn.Dropout(0.25))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    names, said = found_in(optimizer, probe_of(model, enclosing(nn.CrossEntropyLoss())))
    assert names == ["weight_decay", "dropout", "label_smoothing"], "also where the decay is 0"
    assert said == "explores weight_decay from 0, dropout from 0.25, label_smoothing from 0"


def test_what_replicas_cannot_tell_apart_is_left_out() -> None:
    model = net(nn.Dropout(0.25))
    optimizer, probe = torch.optim.AdamW(model.parameters()), probe_of(model, by_global)
    names, said = found_in(optimizer, probe, most=2)
    assert names == ["weight_decay", "dropout"]
    assert said.endswith("; left out: label_smoothing (3 replicas tell 2 apart)")


def test_on_a_shared_gradient_only_what_the_optimizer_reads() -> None:
    model = net(nn.Dropout(0.25))
    optimizer, probe = torch.optim.AdamW(model.parameters()), probe_of(model, by_global)
    names, said = found_in(optimizer, probe, own_gradients=False, most=3)
    assert names == ["weight_decay"]
    assert "left out: dropout (it acts through the gradient" in said
    assert "label_smoothing (it acts through the gradient" in said


def test_several_criteria_have_names_of_their_own() -> None:
    model = nn.ModuleDict({"net": net(), "a": nn.CrossEntropyLoss(), "b": nn.CrossEntropyLoss()})
    names, _ = found_in(torch.optim.Rprop(model.parameters()), probe_of(model, lambda batch: batch))
    assert names == ["label_smoothing/0", "label_smoothing/1"]


def test_layers_with_different_values_are_left_out_and_told() -> None:
    model = net(nn.Dropout(0.25), nn.Dropout(0.5))
    names, said = found_in(torch.optim.AdamW(model.parameters()), probe_of(model, by_global))
    assert names == ["weight_decay", "label_smoothing"]
    assert "left out: dropout: one hyperparameter has one value, got 0.25, 0.5" in said


# ---------------------------------------------------------------------- AutoTune


def test_it_is_the_default_and_equals_the_list_that_it_stands_for() -> None:
    def run(**explore: Any) -> list[str]:
        model, criterion = net(nn.Dropout(0.25)), nn.CrossEntropyLoss()
        if explore.get("explore") == []:
            explore = {
                "explore": [
                    hdet.WeightDecay(spread=1.5),
                    hdet.Dropout(model),
                    hdet.LabelSmoothing(criterion),
                ],
            }
        optimizer = torch.optim.AdamW(model.parameters())
        loss = lambda batch: criterion(model(batch[0]), batch[1])  # noqa: E731
        tune = hdet.AutoTune(optimizer, probe=probe_of(model, loss), total_steps=48, **explore)
        standing(tune)
        records = []
        for step in range(48):
            loss(classes(step)).backward()
            optimizer.step()
            optimizer.zero_grad()
            records.append(tune.step())
        return [str(record.hyperparameters) for record in records if record is not None]

    assert run() == run(explore="auto") == run(explore=[])


def test_a_line_says_what_is_explored_and_another_what_is_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hdet")
    model = net()
    hdet.AutoTune(torch.optim.AdamW(model.parameters()), probe=probe_of(model, by_global), total_steps=40)
    (first,) = (line for line in caplog.messages if "explores" in line)
    assert "; explores weight_decay from 0.01, label_smoothing from 0; finds the learning rate; " in first
    assert not any("left out" in line for line in caplog.messages)
    model = net(nn.Dropout(0.1), nn.Dropout(0.3))
    hdet.AutoTune(torch.optim.AdamW(model.parameters()), probe=probe_of(model, by_global), total_steps=40)
    (left_out,) = (line for line in caplog.messages if "left out" in line)
    assert left_out.startswith("AutoTune: left out: dropout: one hyperparameter has one value, got 0.1, 0.3")


def test_nothing_to_explore_says_what_was_looked_for() -> None:
    model = net()
    probe = probe_of(model, lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
    with pytest.raises(
        ValueError, match=r"explore='auto' must find weight_decay .*, got Rprop and Sequential"
    ):
        hdet.AutoTune(torch.optim.Rprop(model.parameters()), probe=probe)
    with pytest.raises(ValueError, match=r"hdet\.AutoLR finds the learning rate alone"):
        hdet.AutoTune(torch.optim.Rprop(model.parameters()), probe=probe)


def test_another_word_is_refused() -> None:
    model = net()
    with pytest.raises(ValueError, match=r"explore must be 'auto' or a list of hyperparameters .* got 'all'"):
        hdet.AutoTune(
            torch.optim.AdamW(model.parameters()),
            "all",  # type: ignore[arg-type]
            probe=probe_of(model, by_global),
        )
    with pytest.raises(TypeError, match=r"probe must be a hdet\.Probe"):
        hdet.AutoTune(torch.optim.AdamW(model.parameters()), probe=None)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- ten kinds of models


def of_zoo(name: str) -> Training:
    setting = TASKS[name].build(0, "cpu")
    return setting.model, setting.batches, setting.loss_fn, setting.held_out


def made(
    build: Callable[[], nn.Module], inputs: Callable[[torch.Generator], Tensor], *, criterion: bool = True
) -> Training:
    """A classifier of three classes; without a criterion its loss is a function."""
    torch.manual_seed(0)
    model, smooth, draw = build(), nn.CrossEntropyLoss(), torch.Generator().manual_seed(0)

    def batch() -> Any:
        x = inputs(draw)
        return x, torch.randint(3, (len(x),), generator=draw)

    def by_module(given: Any) -> Tensor:
        loss: Tensor = smooth(model(given[0]), given[1])
        return loss

    def by_function(given: Any) -> Tensor:
        return F.cross_entropy(model(given[0]), given[1])

    return model, batch, by_module if criterion else by_function, [batch() for _ in range(8)]


class Attends(nn.Module):
    """Torch's own layer: three dropout layers, and attention's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x).mean(1))
        return out


class Remembers(nn.Module):
    """Drops between its two recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(4, 8, 2, dropout=0.1, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.gru(x)[0][:, -1])
        return out


class Judges(nn.Module):
    """Has its criterion within."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.criterion = mlp(6, 8, 3), nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, batch: Any) -> Tensor:
        loss: Tensor = self.criterion(self.net(batch[0]), batch[1])
        return loss


def judged() -> Training:
    torch.manual_seed(0)
    model = Judges()
    seeds = iter(range(1000))
    return model, lambda: classes(next(seeds)), model, [classes(seed) for seed in range(2000, 2008)]


def numbers(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda draw: torch.randn(16, *shape, generator=draw)


def tokens(draw: torch.Generator) -> Tensor:
    return torch.randint(1, 9, (16, 12), generator=draw)


DECAY, DROPS, SMOOTHS = "weight_decay", "dropout", "label_smoothing"
KINDS: dict[str, tuple[Callable[[], Training], list[str]]] = {
    "regression": (lambda: of_zoo("tails-regression"), [DECAY]),
    "recurrent": (lambda: of_zoo("adding-recurrent"), [DECAY]),
    "flow": (lambda: of_zoo("moons-flow"), [DECAY]),
    "deep linear": (lambda: of_zoo("linear-layers-full-batch"), [DECAY]),
    "a table of scikit-learn": (lambda: of_zoo("diabetes-raw-target"), [DECAY]),
    "mlp with dropout": (
        lambda: made(lambda: mlp(6, 16, 16, 3, dropout=0.3), numbers(6)),
        [DECAY, DROPS, SMOOTHS],
    ),
    "attention of the zoo": (
        lambda: made(lambda: Encoder(16, 3, 12, tokens=9, dropout=0.1), tokens, criterion=False),
        [DECAY, DROPS],
    ),
    "attention of torch": (lambda: made(Attends, numbers(5, 8)), [DECAY, DROPS, SMOOTHS]),
    "stacked recurrent": (lambda: made(Remembers, numbers(7, 4), criterion=False), [DECAY, DROPS]),
    "convolutions": (
        lambda: made(lambda: images_net(1, 4, 8, outputs=3), numbers(1, 8, 8)),
        [DECAY, SMOOTHS],
    ),
    "a criterion within": (judged, [DECAY, SMOOTHS]),
}


def dropped(model: nn.Module) -> set[float]:
    own = {m.p for m in model.modules() if isinstance(m, nn.Dropout)}
    between = (nn.GRU, nn.MultiheadAttention)
    return own | {m.dropout for m in model.modules() if isinstance(m, between)}


@pytest.mark.parametrize("kind", KINDS)
def test_ten_kinds_of_models_explore_what_is_said(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """What the optimizer's step and the forward pass read, in the first windows in which it explores."""
    caplog.set_level(logging.INFO, "hdet")
    build, expected = KINDS[kind]
    model, batches, loss, held_out = build()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    tune = hdet.AutoTune(optimizer, probe=hdet.Probe(loss, held_out, model=model), total_steps=160)
    (said,) = (line for record in caplog.records if "explores" in (line := record.getMessage()))
    assert [name for name in (DECAY, DROPS, SMOOTHS) if name in said] == expected
    assert set(tune.values) == {"lr/0", *expected}
    begin = dict(tune.values)
    standing(tune)
    seen: dict[str, set[float]] = {name: set() for name in (DECAY, DROPS, SMOOTHS)}
    optimizer.register_step_pre_hook(lambda *_: seen[DECAY].add(optimizer.param_groups[0]["weight_decay"]))
    criteria = criteria_of(model, loss)
    for _ in range(45):
        loss(batches()).backward()
        seen[DROPS] |= dropped(model)
        seen[SMOOTHS] |= {criterion.label_smoothing for criterion in criteria}
        optimizer.step()
        optimizer.zero_grad()
        tune.step()
    for name in expected:
        assert len(seen[name] - {begin[name]}) >= 1, name
        assert max(seen[name]) > begin[name], name
