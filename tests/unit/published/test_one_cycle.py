"""OneCycleAutoLR in one process: equal to torch where α = 0, tidy where it is not."""

from __future__ import annotations

import inspect
import itertools
import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

import hdet
from hdet import OneCycleAutoLR
from hdet.published.softmax import SoftmaxController

pytestmark = pytest.mark.usefixtures("same_seed")

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
}


def groups() -> list[dict[str, Any]]:
    return [{"params": [nn.Parameter(torch.ones(2))]}, {"params": [nn.Parameter(torch.ones(3))]}]


def follow(scheduler: Any, steps: int) -> list[Any]:
    seen = []
    for step in range(steps + 1):
        for group in scheduler.optimizer.param_groups:
            seen.append((group["lr"], group.get("momentum"), group.get("betas")))
        seen.append(list(scheduler.get_last_lr()))
        if step < steps:
            scheduler.optimizer.step()
            scheduler.step()
    return seen


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("spread", [0.0, 0.25])
@pytest.mark.parametrize(
    "options",
    [
        {"anneal_strategy": a, "three_phase": t, "cycle_momentum": c, "max_lr": m, **length}
        for a, t, c, m, length in itertools.product(
            ["cos", "linear"],
            [False, True],
            [True, False],
            [0.3, [0.3, 0.05]],
            [{"total_steps": 37}, {"epochs": 3, "steps_per_epoch": 11}],
        )
    ],
)
def test_equals_torch_bit_for_bit(optimizer: str, spread: float, options: dict[str, Any]) -> None:
    """For a single replica ρ = 1, so α > 0 shows torch's base values too."""
    steps = options.get("total_steps", 33)
    plain = OneCycleLR(OPTIMIZERS[optimizer](groups()), **options)
    ours = OneCycleAutoLR(
        OPTIMIZERS[optimizer](groups()),
        **options,
        ensemble_lr_spread_ratio=spread,
        model_sync_interval=5,
    )
    assert isinstance(ours, OneCycleLR)
    assert follow(ours, steps) == follow(plain, steps)


def test_signature_is_the_authors() -> None:
    """Their README's names, order and defaults after torch's own; ours are keyword-only."""
    ours = inspect.signature(OneCycleAutoLR.__init__).parameters
    torchs = dict(inspect.signature(OneCycleLR.__init__).parameters)
    torchs.pop("verbose", None)  # deprecated in torch 2.6, gone in later ones
    names = list(ours)
    assert names[: len(torchs)] == list(torchs)
    assert all(ours[n].default == torchs[n].default for n in torchs)
    added = {
        "auto_lr_warmup_steps": 100_000,
        "ensemble_lr_spread_ratio": 0.0,
        "model_sync_interval": 1000,
        "rank": 0,
        "world_size": 1,
        "enable_auto_lr": False,
        "loss_scale": 0.002,
        "lr_of_lr": 0.5,
        "momentum_of_lr": 0.9,
    }
    assert names[len(torchs) : len(torchs) + 9] == list(added)
    assert {n: ours[n].default for n in added} == added
    assert all(ours[n].kind is inspect.Parameter.KEYWORD_ONLY for n in names[len(torchs) + 9 :])
    assert ours["seed"].default == inspect.signature(hdet.Ensemble).parameters["seed"].default == 0


def build(steps: int = 20, **options: Any) -> tuple[nn.Parameter, OneCycleAutoLR]:
    weight = nn.Parameter(torch.ones(3))
    defaults: dict[str, Any] = {
        "max_lr": 0.1,
        "total_steps": steps,
        "ensemble_lr_spread_ratio": 0.2,
        "model_sync_interval": 5,
    }
    optimizer = options.pop("optimizer", None) or torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    return weight, OneCycleAutoLR(optimizer, **(defaults | options))


def take(weight: nn.Parameter, scheduler: OneCycleAutoLR, loss: Any = "own") -> Any:
    value = (weight**2).sum()
    value.backward()
    scheduler.optimizer.step()
    scheduler.optimizer.zero_grad()
    return scheduler.step(value if isinstance(loss, str) else loss)


def test_global_random_states_are_left_alone() -> None:
    def states() -> tuple[Any, ...]:
        return torch.random.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]

    before = states()
    weight, scheduler = build(enable_auto_lr=True, auto_lr_warmup_steps=0)
    for _ in range(20):
        take(weight, scheduler)
    hdet.warm_start_([weight])
    assert states() == before


def test_a_float_stays_a_float() -> None:
    weight, scheduler = build(enable_auto_lr=True, auto_lr_warmup_steps=0)
    for _ in range(20):
        take(weight, scheduler)
        assert type(scheduler.optimizer.param_groups[0]["lr"]) is float
        assert type(scheduler.get_last_lr()[0]) is float


class Twice(hdet.replicas.SoloReplica):
    """Rank 1 of two whose other half is absent: multipliers other than 1 without processes."""

    rank, size = 1, 2

    def gather(self, row: Any) -> list[list[float]]:
        return [[*row[:3], row[3] + row[4], *row[4:]], list(row)]  # its mean loss is 1 higher


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hdet.published.one_cycle.replicas_of", lambda *_, **__: Twice())


@pytest.mark.usefixtures("two")
def test_a_tensor_is_filled_in_place() -> None:
    """The same run with the learning rate as a tensor and as a float."""
    options: Any = {"enable_auto_lr": True, "auto_lr_warmup_steps": 0, "loss_scale": 0.1}
    a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    _, tensors = build(optimizer=torch.optim.Adam([a], lr=torch.tensor(1.0)), **options)
    _, floats = build(optimizer=torch.optim.Adam([b], lr=1.0), **options)
    held = tensors.optimizer.param_groups[0]["lr"]
    plain = torch.optim.lr_scheduler.LambdaLR(torch.optim.Adam([b], lr=torch.tensor(1.0)), lambda step: 1.0)
    lent = plain.get_last_lr()[0] is plain.optimizer.param_groups[0]["lr"]  # torch 2.6 hands out the tensor
    for _ in range(20):
        take(a, tensors)
        take(b, floats)
        assert tensors.optimizer.param_groups[0]["lr"] is held
        assert held.item() == pytest.approx(floats.get_last_lr()[0], rel=1e-5)
        assert (tensors.get_last_lr()[0] is held) == lent
        assert tensors.replica_lrs == pytest.approx(floats.replica_lrs, rel=1e-5)
    assert torch.allclose(a, b, rtol=1e-4)


@pytest.mark.usefixtures("two")
def test_the_base_value_shows_except_while_the_optimizer_steps() -> None:
    weight, scheduler = build()
    group = scheduler.optimizer.param_groups[0]
    during: list[float] = []

    def closure() -> torch.Tensor:
        during.append(group["lr"])
        return (weight**2).sum()

    base = group["lr"]
    scheduler.optimizer.step(closure)
    assert during == [base * 1.2]
    assert group["lr"] == base == scheduler.get_last_lr()[0]
    assert scheduler.replica_lrs == [base * 1.2]


@pytest.mark.usefixtures("two")
def test_an_optimizer_step_that_raises_leaves_the_base_value() -> None:
    _, scheduler = build()
    group = scheduler.optimizer.param_groups[0]
    base = group["lr"]

    def fail() -> torch.Tensor:
        raise KeyError("the user's own")

    with pytest.raises(KeyError):
        scheduler.optimizer.step(fail)
    assert scheduler.optimizer.state_dict()["param_groups"][0]["lr"] == base
    with pytest.raises(KeyError):
        scheduler.optimizer.step(fail)
    scheduler.optimizer.step()
    assert group["lr"] == base


@pytest.mark.usefixtures("two")
def test_a_second_scheduler_replaces_the_first() -> None:
    weight, first = build()
    _, second = build(optimizer=first.optimizer)
    during: list[float] = []

    def closure() -> torch.Tensor:
        during.append(second.optimizer.param_groups[0]["lr"])
        return (weight**2).sum()

    second.optimizer.step(closure)
    assert during == [pytest.approx(1.2 * second.get_last_lr()[0])]


@pytest.mark.usefixtures("two")
def test_get_last_lr_shows_the_moved_base() -> None:
    weight, scheduler = build(enable_auto_lr=True, auto_lr_warmup_steps=0, loss_scale=0.1)
    plain = OneCycleLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1, momentum=0.9), 0.1, 20)
    moved = []
    for _ in range(19):
        take(weight, scheduler)
        plain.optimizer.step()
        plain.step()
        assert scheduler.get_last_lr()[0] == scheduler.optimizer.param_groups[0]["lr"]
        moved.append(scheduler.get_last_lr()[0] / plain.get_last_lr()[0])
    assert moved[:4] == [1.0] * 4
    assert 1 < moved[4] < moved[9] < moved[14], "the faster replica is the better one here"
    assert moved[9:14] == pytest.approx([moved[9]] * 5)


def test_state_can_be_saved_without_pickle(tmp_path: Any) -> None:
    weight, scheduler = build(enable_auto_lr=True, auto_lr_warmup_steps=0)
    for _ in range(7):
        take(weight, scheduler)
    torch.save(scheduler.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    _, other = build(enable_auto_lr=True, auto_lr_warmup_steps=0)
    other.load_state_dict(state)
    assert other.state_dict() == scheduler.state_dict()


def test_a_plain_schedulers_state_is_taken_up() -> None:
    plain = OneCycleLR(torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=1, momentum=0.9), 0.1, 20)
    for _ in range(7):
        plain.optimizer.step()
        plain.step()
    weight, scheduler = build()
    scheduler.load_state_dict(plain.state_dict())
    records = [take(weight, scheduler) for _ in range(13)]
    assert [(r.step, r.round) for r in records if r] == [(10, 1), (15, 2), (20, 3)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ensemble_lr_spread_ratio": -0.1}, "ensemble_lr_spread_ratio.*-0.1"),
        ({"ensemble_lr_spread_ratio": 1.0}, r"\[0, 1\).*1.0"),
        ({"model_sync_interval": 0}, "model_sync_interval.*0"),
        ({"model_sync_interval": 2.5}, "model_sync_interval.*2.5"),
        ({"loss_scale": 0.0}, "loss_scale.*0.0"),
        ({"loss_scale": -1.0}, "loss_scale.*-1.0"),
        ({"momentum_of_lr": 1.0}, r"momentum_of_lr.*1.0"),
        ({"momentum_of_lr": -0.5}, r"momentum_of_lr.*-0.5"),
        ({"lr_of_lr": -1.0}, "lr_of_lr.*-1.0"),
        ({"auto_lr_warmup_steps": -1}, "auto_lr_warmup_steps.*-1"),
        ({"decay": "slow"}, "decay.*'slow'"),
        ({"rules": "mine"}, "rules must be 'corrected' or 'printed', got 'mine'"),
        ({"ensemble_lr_spread_ratio": [0.1, 0.2]}, "spread must be one number, or one for each of .* got 2"),
        ({"world_size": 2}, "world_size.*process group.*init_process_group"),
        ({"rank": 1, "world_size": 2}, "world_size=2"),
        ({"total_steps": None}, "total_steps"),
        ({"total_steps": -3}, "-3"),
    ],
)
def test_bad_arguments(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(**options)


def test_not_an_optimizer() -> None:
    with pytest.raises(TypeError, match="OneCycleAutoLR: optimizer must be a torch Optimizer, got Linear"):
        OneCycleAutoLR(nn.Linear(1, 1), max_lr=0.1, total_steps=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_a_step_beyond_the_end_stays_there_and_is_said_once(
    spread: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Where OneCycleLR raises: the last step of a long run is no place for it."""
    weight, scheduler = build(steps=6, ensemble_lr_spread_ratio=spread)
    for _ in range(6):
        take(weight, scheduler)
    last = scheduler.get_last_lr()
    for _ in range(3):
        take(weight, scheduler)
    assert scheduler.get_last_lr() == last == [group["lr"] for group in scheduler.optimizer.param_groups]
    assert scheduler.last_epoch == 6
    (said,) = [r.getMessage() for r in caplog.records if "the run has ended" in r.getMessage()]
    assert said.startswith("OneCycleAutoLR: step: the run has ended at step 6 (total_steps)")
    assert f"the learning rate stays at {last[0]:.4g}" in said


def test_auto_lr_needs_the_loss_at_once() -> None:
    weight, scheduler = build(enable_auto_lr=True)
    with pytest.raises(ValueError, match=r"step\(loss\)"):
        take(weight, scheduler, loss=None)
    without, other = build()
    assert take(without, other, loss=None) is None


def test_a_loss_must_be_a_scalar() -> None:
    weight, scheduler = build()
    with pytest.raises(ValueError, match=r"scalar.*\(3,\)"):
        take(weight, scheduler, loss=torch.ones(3))


def test_waiting_for_the_optimizer_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    weight, scheduler = build()
    first = scheduler.get_last_lr()
    for _ in range(3):
        scheduler.step(1.0)
    assert scheduler.get_last_lr() == first
    assert sum("schedule waits" in r.message for r in caplog.records) == 1
    take(weight, scheduler)
    assert scheduler.get_last_lr() != first


def test_auto_lr_that_never_acts_is_said(caplog: pytest.LogCaptureFixture) -> None:
    build(enable_auto_lr=True)
    assert any("auto_lr_warmup_steps=100000, total_steps=20" in r.getMessage() for r in caplog.records)


# ---------------------------------------------------------------------- to the letter


def to_the_letter(**changed: Any) -> tuple[nn.Parameter, OneCycleAutoLR]:
    """Of 60 steps auto-LR has 36, and six decisions before the last round."""
    weight = nn.Parameter(torch.ones(3))
    short: dict[str, Any] = {"total_steps": 60, "model_sync_interval": 6, "auto_lr_warmup_steps": 24}
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    return weight, OneCycleAutoLR.paper(optimizer, 0.01, **(short | changed))


def test_paper_has_the_papers_values_and_what_is_given_wins(caplog: pytest.LogCaptureFixture) -> None:
    """Those of auto-LR are held against Algorithm 1 on real ranks."""
    optimizer = torch.optim.Adam(groups())
    scheduler = OneCycleAutoLR.paper(optimizer, total_steps=2000)
    assert (scheduler.spread, scheduler.sync_every) == (1 / 9, 1000)
    assert optimizer.param_groups[0]["max_lr"] == 9e-4
    assert "auto_lr_warmup_steps=100000" in caplog.text
    optimizer.step()
    with pytest.raises(ValueError, match=r"enable_auto_lr.* call step\(loss\)"):
        scheduler.step()
    other = OneCycleAutoLR.paper(
        optimizer, [0.1, 0.2], 2000, ensemble_lr_spread_ratio=0.5, model_sync_interval=7, enable_auto_lr=False
    )
    assert (other.spread, other.sync_every) == (0.5, 7)
    assert [group["max_lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    optimizer.step()
    other.step()


@pytest.mark.parametrize(("f_final", "left"), [(5.0, 0.2), (25.0, 1.0), (50.0, 2.0), (1e4, 400.0)])
def test_eq_8_as_printed_multiplies_the_rate_by_f_final_over_f_div(
    f_final: float, left: float, caplog: pytest.LogCaptureFixture
) -> None:
    """One replica alone has nothing to compare: the decay is all there is."""
    _, scheduler = to_the_letter(final_div_factor=f_final)
    rates = []
    for _ in range(60):
        rates.append(scheduler.get_last_lr()[0])
        scheduler.optimizer.step()
        scheduler.step(1.0)
    assert rates[-1] / rates[23] == pytest.approx(left)
    said = [r.getMessage() for r in caplog.records if "decay='literal'" in r.getMessage()]
    assert len(said) == (left > 1)
    if left > 1:
        assert f"got 25 and {f_final:g}: by the end it will have grown {left:g}-fold since step 24" in said[0]
        assert "Give final_div_factor=5, which leaves a fifth" in said[0]


@pytest.mark.parametrize(
    "options", [{"decay": "schedule"}, {"decay": "geometric"}, {"enable_auto_lr": False}]
)
def test_where_eq_8_as_printed_does_not_act_nothing_is_said(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    to_the_letter(**options)
    assert "decay" not in caplog.text


@pytest.mark.usefixtures("two")
def test_a_state_under_the_printed_rules_goes_round() -> None:
    weight, scheduler = to_the_letter()
    for _ in range(13):
        take(weight, scheduler)
    state = scheduler.state_dict()
    again, other = to_the_letter()
    other.load_state_dict(state)
    assert other.state_dict() == state
    again.data.copy_(weight.data)
    other.optimizer.load_state_dict(scheduler.optimizer.state_dict())
    for _ in range(47):
        take(weight, scheduler)
        take(again, other)
    assert other.state_dict() == scheduler.state_dict()


def test_a_state_under_the_corrected_rules_is_refused_by_the_printed_ones() -> None:
    _, corrected = to_the_letter(rules="corrected")
    _, printed = to_the_letter()
    with pytest.raises(ValueError, match="lacks 'vote/accumulated'"):
        printed.load_state_dict(corrected.state_dict())


@pytest.mark.usefixtures("two")
def test_each_group_may_have_a_spread_of_its_own() -> None:
    optimizer = torch.optim.SGD(groups(), lr=1.0, momentum=0.9)
    scheduler = OneCycleAutoLR(
        optimizer, [0.1, 0.2], 20, ensemble_lr_spread_ratio=[0.0, 0.25], model_sync_interval=5
    )
    first, second = scheduler.get_last_lr()
    assert scheduler.replica_lrs == [first, pytest.approx(1.25 * float(second))]


def test_without_a_spread_it_steps_when_told_as_torch_does() -> None:
    """Such as to draw the schedule, without ever stepping the optimizer."""
    _, ours = build(ensemble_lr_spread_ratio=0.0)
    plain = OneCycleLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1, momentum=0.9), 0.1, 20)
    for scheduler in (ours, plain):
        scheduler.optimizer._opt_called = True  # or torch warns of the order
    for _ in range(20):
        ours.step()
        plain.step()
        assert ours.get_last_lr() == plain.get_last_lr()


def test_decay_without_auto_lr_is_ignored() -> None:
    build(decay="geometric", auto_lr_warmup_steps=20)


@pytest.mark.usefixtures("two")
def test_a_group_added_later_keeps_its_own_value() -> None:
    weight, scheduler = build(enable_auto_lr=True, auto_lr_warmup_steps=0, loss_scale=0.1)
    for _ in range(7):
        take(weight, scheduler)
    first = scheduler.optimizer.param_groups[0]
    added = {k: v for k, v in first.items() if k != "params"} | {"params": [nn.Parameter(torch.ones(2))]}
    scheduler.optimizer.add_param_group(added)
    take(weight, scheduler)
    factor = first["lr"] / scheduler.optimizer.param_groups[1]["lr"]
    assert factor > 1.001


def test_the_authors_names_are_aliases_of_ours() -> None:
    """Each of their arguments stands in the table once, and what it is an alias of is an argument."""
    rows = re.findall(
        r"^([a-z][a-z_, ]*\w)  +(\w+)\((\w+)=\)", hdet.published.one_cycle.__doc__ or "", re.MULTILINE
    )
    theirs = [name for names, _, _ in rows for name in names.split(", ")]
    arguments = list(inspect.signature(hdet.OneCycleAutoLR.__init__).parameters)
    first = arguments.index("last_epoch") + 1
    assert sorted(theirs) == sorted(arguments[first : first + 9])
    for _, ours, argument in rows:
        owner = SoftmaxController if ours == "SoftmaxController" else getattr(hdet, ours)
        assert argument in inspect.signature(owner).parameters
