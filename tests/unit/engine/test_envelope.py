"""A state says what it is, and what cannot be taken is refused whole, before anything changes."""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

import hdet
from hdet.engine import envelope
from hdet.engine.envelope import digest

Make = Callable[..., "Made"]


class Made:
    """A door in training."""

    def __init__(self, kind: str, *, width: int = 4, optimizer: Any = Adam, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, width), nn.Linear(width, 1))
        self.optimizer: Optimizer = optimizer(self.model.parameters(), lr=0.01)
        probe = hdet.Probe(self.loss, list(torch.randn(8, 4, 3)), model=self.model)
        if kind == "AutoLR":
            options = {"total_steps": 400, "probe": probe, **options}
            self.door: Any = hdet.AutoLR(self.optimizer, **options)
        elif kind == "OneCycleAutoLR":
            options = {"max_lr": 0.1, "total_steps": 400, "cycle_momentum": False, **options}
            self.door = hdet.OneCycleAutoLR(self.optimizer, **options)
        elif kind == "Ensemble":
            self.door = hdet.Ensemble(self.optimizer, sync_every=10, model=self.model, **options)
        elif kind == "BestMean":
            self.door = hdet.BestMean(self.model, probe)
        else:
            self.door = hdet.Guard(self.optimizer, model=self.model, probe=probe, sync_every=10)
        self.kind = kind

    def loss(self, x: Tensor) -> Tensor:
        return (self.model(x) - x.sum(1, keepdim=True)).square().mean()

    def train(self, steps: int) -> Made:
        for _ in range(steps):
            loss = self.loss(torch.randn(4, 3))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.door.step() if self.kind == "BestMean" else self.door.step(loss)
        return self

    def state(self) -> dict[str, Any]:
        return deepcopy(self.door.state_dict())

    def refuses(self, state: Any, match: str) -> None:
        """The door, and the learning rates, are as they were before."""
        before, rates = self.state(), [group["lr"] for group in self.optimizer.param_groups]
        with pytest.raises(ValueError, match=match):
            self.door.load_state_dict(state)
        assert equal(self.state(), before)
        assert rates == [group["lr"] for group in self.optimizer.param_groups]


def equal(a: Any, b: Any) -> bool:
    """All values, and all tensors that somebody will read: their sums are among the values."""
    return digest([a, values_of(a)]) == digest([b, values_of(b)])


def values_of(state: Mapping[str, Any]) -> Any:
    return state.get("engine", state.get("hdet", state)).get("values")


def resealed(state: Mapping[str, Any], change: Callable[[Any], object]) -> dict[str, Any]:
    """As if it had been saved like that."""
    state = deepcopy(dict(state))
    (said,) = state.pop("envelope")
    change(state)
    inner = state.get("engine", state.get("hdet", state))
    if "values" in inner:
        (values,) = inner["values"]
        values["digest"] = digest({name: value for name, value in values.items() if name != "digest"})
    return envelope.sealed(said["class"], said["configuration"], state)


def engine_of(state: Any) -> Any:
    inner = state.get("engine", state.get("hdet", state))
    return inner["values"][0]["state"]


DOORS = ["AutoLR", "OneCycleAutoLR", "Ensemble", "BestMean", "Guard"]


@pytest.mark.parametrize("kind", DOORS)
def test_what_a_state_says_of_itself(kind: str) -> None:
    (said,) = Made(kind).train(15).state()["envelope"]
    assert (said["class"], said["format"], said["hdet"]) == (kind, 2, hdet.__version__)
    assert len(said["digest"]) == 64


@pytest.mark.parametrize("kind", DOORS)
def test_other_states_are_refused(kind: str) -> None:
    made = Made(kind).train(15)
    for other in DOORS:
        if other != kind:
            made.refuses(
                Made(other).train(15).state(), rf"{kind}.load_state_dict: the state must be {kind}'s"
            )
    cosine = CosineAnnealingLR(SGD([torch.ones(1)], lr=1.0), 10).state_dict()
    for state in (
        {},
        {"envelope": ()},
        cosine,
        made.optimizer.state_dict(),
        made.model.state_dict(),
        None,
        3,
    ):
        made.refuses(state, rf"{kind}.load_state_dict: the state (must be|is damaged)")


@pytest.mark.parametrize("kind", DOORS)
def test_a_later_format_is_refused(kind: str) -> None:
    made = Made(kind).train(15)
    state = made.state()
    state["envelope"] = ({**state["envelope"][0], "format": 3, "hdet": "9.1"},)
    made.refuses(state, r"written by hdet 9\.1, format 3; this one, .*, reads up to 2")


@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.parametrize("at", [15, 43])
def test_there_and_back_whatever_it_lies_in(kind: str, at: int) -> None:
    made = Made(kind).train(at)
    file = io.BytesIO()
    torch.save(made.door.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    fresh = Made(kind).train(at)
    fresh.door.load_state_dict(state)
    assert equal(fresh.state(), state)
    if kind in ("OneCycleAutoLR", "Ensemble", "Guard"):  # no tensors
        fresh.door.load_state_dict(json.loads(json.dumps(state)))


@pytest.mark.parametrize("kind", ["AutoLR", "OneCycleAutoLR", "Ensemble"])
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("steps", -5, "steps must be an integer of at least 0.*got -5"),
        ("steps", 10**9, "at most 400, got 1000000000"),
        ("steps", 12.5, "steps must be an integer"),
        ("round", -1, "round must be an integer"),
        ("factor", -1.0, "the factor of .*must be above 0, got -1.0"),
        ("factor", math.nan, "the factor of .*must be a finite number, got nan"),
        ("spread", math.nan, "the spread of .*must be a finite number"),
    ],
)
def test_numbers_that_no_run_has(kind: str, sealed: bool, name: str, value: Any, match: str) -> None:
    made = Made(kind, **({"total_steps": 400} if kind == "Ensemble" else {})).train(15)

    def change(state: Any) -> None:
        inner = engine_of(state)
        (inner if name in inner else inner["explored"][0])[name] = value

    state = resealed(made.state(), change)
    if not sealed:
        del state["envelope"]  # as one of before
    made.refuses(state, match)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("window_end", None, "window_end must be an integer"),
        ("window_end", -3, "window_end must be an integer"),
        ("began", 10**6, "the window's begin must be .*at most 15"),
        ("taken", 7, "taken must be True or False"),
        ("curve", [1.0, math.nan], "the schedule's now must be a finite number"),
        ("probe", {"draws": -2, "pass_began": 0}, "the probe's draws"),
        ("probe", {}, r"something is missing or of another kind \(KeyError"),
    ],
)
def test_numbers_that_no_horizon_has(name: str, value: Any, match: str) -> None:
    made = Made("AutoLR").train(15)
    change: Callable[[Any], object] = lambda s: engine_of(s)["policies"][0].update({name: value})  # noqa: E731
    made.refuses(resealed(made.state(), change), match)


def test_a_factor_that_is_no_number() -> None:
    made = Made("AutoLR").train(15)
    change: Callable[[Any], object] = lambda s: engine_of(s)["policies"][0]["states"][0].update(  # noqa: E731
        value=math.nan
    )
    made.refuses(resealed(made.state(), change), "the value of factor 0 must be a finite number, got nan")


@pytest.mark.parametrize("sealed", [True, False])
def test_other_runs_are_refused(sealed: bool) -> None:
    def state_of(**options: Any) -> dict[str, Any]:
        state = Made("AutoLR", **options).train(15).state()
        return state if sealed else {name: value for name, value in state.items() if name != "envelope"}

    made = Made("AutoLR").train(15)
    made.refuses(state_of(width=1), "same shapes|shapes .* must be")
    made.refuses(state_of(width=5), "same shapes|shapes .* must be")
    made.refuses(state_of(schedule="cosine"), "schedule must be")
    made.refuses(state_of(optimizer=SGD), "optimizer")
    made.refuses(state_of(spread=0.1), r"spread of .*must be above 0.*got 0")
    Made("AutoLR", optimizer=SGD).train(15).refuses(state_of(), "optimizer")
    Made("AutoLR", schedule="cosine").train(15).refuses(state_of(), "schedule must be")
    Made("AutoLR", spread=0.1).train(15).refuses(state_of(), r"spread of .*must be 0.*got 0\.1")


@pytest.mark.parametrize("sealed", [True, False])
def test_another_spread_is_refused_by_the_published_scheduler(sealed: bool) -> None:
    state = Made("OneCycleAutoLR", ensemble_lr_spread_ratio=1 / 9).train(15).state()
    if not sealed:
        del state["envelope"]
    made = Made("OneCycleAutoLR", ensemble_lr_spread_ratio=0.0).train(15)
    made.refuses(
        state, r"spread of .*must be above 0, as it was when the state was saved \(0\.111111\), got 0"
    )
    if sealed:  # a state of before does not say what the spread was when the run began
        other = Made("OneCycleAutoLR", ensemble_lr_spread_ratio=1 / 5).train(15)
        other.refuses(state, r"spread \(number 0\) must be as it was")


def test_total_steps_of_a_one_cycle() -> None:
    state = Made("OneCycleAutoLR").train(15).state()
    for length in (200, 800):
        made = Made("OneCycleAutoLR", total_steps=length).train(15)
        made.refuses(state, rf"total_steps must be .*400, got {length}: the whole curve follows from it")


def test_a_plain_one_cycles_state_is_taken() -> None:
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    plain = OneCycleLR(optimizer, 0.1, total_steps=400, cycle_momentum=False)
    for _ in range(7):
        optimizer.step()
        plain.step()
    made = Made("OneCycleAutoLR")
    made.door.load_state_dict(plain.state_dict())
    assert made.door.last_epoch == 7


# ---------------------------------------------------------------------- damage


@pytest.mark.parametrize("kind", DOORS)
def test_a_flipped_bit_is_found(kind: str) -> None:
    """200 files with one bit flipped: refused, or with the very same state in them."""
    made = Made(kind).train(43)
    file = io.BytesIO()
    torch.save(made.door.state_dict(), file)
    whole, good, chance = file.getvalue(), made.state(), random.Random(0)
    refused = 0
    for _ in range(200):
        bits = bytearray(whole)
        bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
        try:
            state = torch.load(io.BytesIO(bytes(bits)), weights_only=True)
            made.door.load_state_dict(state)
        except Exception:
            refused += 1
        assert equal(made.state(), good)
    assert refused > 50


def test_tensors_have_sums_of_their_own() -> None:
    made = Made("AutoLR").train(43)
    state = made.state()
    tensors = state["engine"]["tensors"]
    read = list(state["engine"]["values"][0]["sums"])
    assert len(read) > 10
    for key in read:
        changed = {**tensors, key: tensors[key].clone()}
        changed[key].view(torch.uint8).reshape(-1)[0] ^= 1
        damaged = {**state, "engine": {**state["engine"], "tensors": changed}}
        made.refuses(damaged, f"the state is damaged: the checksum of '{key}'")


# ---------------------------------------------------------------------- what is honoured


@pytest.mark.parametrize(("then", "now"), [(400, 800), (400, 200), (400, 120)])
def test_another_end_counts(then: int, now: int) -> None:
    """A run comes down to zero at the end it is given now, whatever was planned."""
    first = Made("AutoLR", total_steps=then).train(100)
    second = Made("AutoLR", total_steps=now)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.door.load_state_dict(first.state())
    second.train(now - 100 - 1)
    last = second.door.get_last_lr()[0]
    assert last > 0
    second.train(1)
    assert second.door.finished
    assert second.door.get_last_lr() == [0.0]
    # Over a quarter of the run, or over what was left of it, from the factor that was found.
    length = min(now - 100, round(0.25 * now))
    assert last == pytest.approx(second.door._horizon.axes[0].factor / length, rel=1e-6)
    assert not second.door.searching


def test_an_end_that_is_past_is_refused() -> None:
    state = Made("AutoLR").train(150).state()
    Made("AutoLR", total_steps=120).train(5).refuses(state, "at most|total_steps must be above the 150")
    Made("AutoLR", total_steps=150).train(5).refuses(state, "total_steps must be above the 150")


def test_the_probes_seed_is_in_the_state() -> None:
    torch.manual_seed(1)
    one, two = Made("AutoLR").train(15), Made("AutoLR").train(15)
    two.door._horizon._probe._seed = 7
    two.door.load_state_dict(one.state())
    assert two.door._horizon._probe._seed == one.door._horizon._probe._seed


def test_a_step_that_is_not_counted_yet_is_told(caplog: pytest.LogCaptureFixture) -> None:
    made = Made("AutoLR").train(15)
    made.state()
    assert "called after optimizer.step()" not in caplog.text
    made.optimizer.step()
    made.state()
    assert "called after optimizer.step() and before step(): the state is of step 15" in caplog.text
