"""Dropout, label smoothing and temperature: the forward pass reads the replica's own, compiled or not."""

from __future__ import annotations

import logging
import math
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

import hdet
from hdet.loop.levels import levels
from tests.fakes import Alike, Attention
from tests.unit.hyperparameters.scenes import Scene, explore, values_of


class Softmax(Attention):
    def forward(self, logits: Tensor) -> Tensor:
        return torch.softmax(super().forward(logits), -1)


class Functional(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.drop_rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.drop_rate, self.training)


KINDS = [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout]


def test_every_dropout_layer_has_the_replicas_probability() -> None:
    for rank in range(3):
        layers = [kind(0.2) for kind in KINDS]
        attention = nn.MultiheadAttention(4, 2, dropout=0.2)
        model = nn.Sequential(nn.Sequential(*layers[:3]), *layers[3:], attention, nn.Linear(2, 2))
        ensemble = explore(hdet.Dropout(model), rank, size=3, sync_every=1)
        standing = {attention.dropout, *(layer.p for layer in layers)}
        assert standing == {values_of(ensemble)[rank]}
        assert (standing == {0.2}) == (rank == 1)


def test_only_the_layers_named_are_explored() -> None:
    model = nn.ModuleDict({name: nn.Dropout(0.2) for name in "abc"})
    explore(hdet.Dropout(model, layers=["a", "c"]))
    assert model["a"].p == model["c"].p > 0.3  # type: ignore[operator]
    assert model["b"].p == 0.2


def test_as_many_activations_are_zero_as_the_replicas_probability_says() -> None:
    """Of functional dropout, by the attribute that holds its probability."""
    count = 100_000
    shares = []
    for rank in range(3):
        torch.manual_seed(rank)
        model = Functional(0.3)
        item = hdet.Dropout(model, attribute="drop_rate", bounds=(0.0, 0.6))
        ensemble = explore(item, rank, size=3, sync_every=1)
        shares.append(float((model(torch.ones(count)) == 0).double().mean()))
        p = values_of(ensemble)[rank]
        assert abs(shares[-1] - p) < 5 * math.sqrt(p * (1 - p) / count)
    assert shares[0] + 0.05 < shares[1] < shares[2] - 0.05


def test_the_loss_is_smoothed_by_the_replicas_share() -> None:
    """(1 − s)·(−log p_target) + s·mean(−log p), at logits that are known."""
    logits, target = torch.tensor([[2.0, 0.5, -1.0]], dtype=torch.float64), torch.tensor([0])
    log_p = torch.log_softmax(logits, -1)[0]
    losses = []
    for rank in range(3):
        criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        ensemble = explore(hdet.LabelSmoothing(criterion), rank, size=3, sync_every=1)
        losses.append(float(criterion(logits, target)))
        s = values_of(ensemble)[rank]
        assert losses[-1] == pytest.approx(float(-(1 - s) * log_p[0] - s * log_p.mean()), rel=1e-12)
    assert losses[0] < losses[1] < losses[2]


@pytest.mark.parametrize("held", ["a float", "a buffer of one element"])
def test_attention_multiplies_its_logits_by_the_replicas_temperature(held: str) -> None:
    """A buffer stays where it is in memory, so that captured graphs see what is written there."""
    for rank, level in enumerate(levels(3)):
        scale = 0.5 if held == "a float" else torch.full((1,), 0.5)
        model = nn.Sequential(Softmax(scale))
        ensemble = explore(hdet.Temperature(model), rank, size=3, sync_every=1)
        p = model(torch.tensor([3.0, 0.0]))
        expected = 0.5 * math.exp(0.5 * level)
        assert float(torch.log(p[0] / p[1]) / 3) == pytest.approx(expected, rel=1e-5)
        assert values_of(ensemble)[rank] == pytest.approx(expected)
        if isinstance(scale, Tensor):
            assert model[0].scale.data_ptr() == scale.data_ptr()


def test_a_buffer_that_somebody_loads_or_broadcasts_keeps_its_base() -> None:
    """DistributedDataParallel broadcasts buffers, a checkpoint holds another replica's value."""
    model = Attention(torch.tensor(1.0))
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    ensemble = hdet.Ensemble(
        optimizer, [hdet.Temperature(model)], gradients="none", process_group=Alike(1), sync_every=1
    )
    for _ in range(3):
        model.scale.fill_(0.607)  # type: ignore[operator]
        optimizer.step()
        ensemble.step(1.0)
    ensemble.detach()
    assert float(model.scale) == 1.0  # type: ignore[arg-type]


def test_stacked_recurrent_layers_drop_out_too() -> None:
    model = nn.ModuleList([nn.LSTM(4, 4, num_layers=2, dropout=0.3), nn.Dropout(0.3), nn.LSTM(4, 4)])
    (axis,) = hdet.Dropout(model).bind(SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    axis.fan_out(1.0)
    recurrent, layer, single = model
    assert recurrent.dropout == layer.p > 0.3  # type: ignore[union-attr]
    assert single.dropout == 0  # type: ignore[union-attr]


# ---------------------------------------------------------------------- in a compiled model

#: What torch 2.6 calls otherwise.
LIMIT = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"


@pytest.fixture
def dynamo() -> Any:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(**{LIMIT: 3}):
        yield torch._dynamo
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, when it first compiles
@pytest.mark.parametrize("what", ["dropout", "a buffer"])
def test_a_compiled_model_sees_every_new_value(dynamo: Any, what: str) -> None:
    """For more rounds than torch compiles a function anew."""
    if what != "a buffer" and sys.version_info[:3] == (3, 13, 0):
        pytest.skip("raises here")
    torch.manual_seed(0)
    scale = torch.tensor(0.5) if what == "a buffer" else 0.5
    model = nn.Sequential(nn.Dropout(0.3) if what == "dropout" else nn.Identity(), Attention(scale))
    compiled: Any = torch.compile(model, backend="eager")
    item = hdet.Dropout(compiled) if what == "dropout" else hdet.Temperature(compiled)
    scene = Scene()
    ensemble = scene.explore([item], sync_every=1, process_group=Alike(0, 16))
    count, seen = 20_000, set()
    while len(seen) < 6:
        output = compiled(torch.ones(count))
        p, own = getattr(model[0], "p", 0.0), float(model[1].scale)  # type: ignore[arg-type]
        share = float((output == 0).double().mean())
        assert abs(share - p) <= 5 * math.sqrt(p * (1 - p) / count)
        assert float(output.max()) == pytest.approx(own / (1 - p), rel=1e-5)
        seen.add((p, own))
        scene.step()
        ensemble.step(1.0)
    ensemble.detach()
    assert float(compiled(torch.ones(count)).max()) == pytest.approx(0.5 / (0.7 if what == "dropout" else 1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", ["inside", "model.compile()", "not compiled"])
def test_dropout_in_a_compiled_model_is_warned_of_once(
    dynamo: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 1))
    model: Any = nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.1))
    if how == "model.compile()":
        model.compile(backend="eager")
    elif how == "inside":
        model = nn.Sequential(torch.compile(model, backend="eager"))
    scene = Scene()
    with caplog.at_level(logging.WARNING, logger="hdet"):
        ensemble = scene.explore([hdet.Dropout(model)], sync_every=1, process_group=Alike(0))
        for _ in range(3):
            scene.step()
            ensemble.step(1.0)
    told = [record.getMessage() for record in caplog.records if "compile" in record.getMessage()]
    assert len(told) == (0 if how == "not compiled" else 1)
    assert all("torch._dynamo.config.recompile_limit" in line for line in told)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_code_that_keeps_its_first_value_is_refused(
    dynamo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written in place is seen all the same, and so is everything where nothing is compiled."""
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    number, buffer = (nn.Sequential(nn.Dropout(0.1), Attention(scale)) for scale in (0.5, torch.tensor(0.5)))
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    compiled: Any = torch.compile(number, backend="eager")
    with pytest.raises(
        RuntimeError, match=r"^Dropout: compiled code must .* Dropout.p again .* keeps the first"
    ):
        hdet.Dropout(compiled).bind(optimizer)
    with pytest.raises(RuntimeError, match=r"^Temperature: .* Attention.scale .* leave the model uncompiled"):
        hdet.Temperature(compiled).bind(optimizer)
    in_place: Any = torch.compile(buffer, backend="eager")
    for item in (hdet.Temperature(in_place), hdet.Dropout(number), hdet.Temperature(number)):
        assert item.bind(optimizer)
