"""``method=``: what its names build, and what they are given."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hdet
from hdet.integrations import methods


def test_names_build_what_they_say() -> None:
    assert methods.builder_of("Caller", "autolr") is hdet.AutoLR
    assert methods.builder_of("Caller", "autotune") is hdet.AutoTune
    model = nn.Linear(2, 1)
    groups = [{"params": [model.weight], "lr": 0.2}, {"params": [model.bias], "lr": 0.1}]
    optimizer = torch.optim.AdamW(groups)
    named = methods.build(
        methods.builder_of("Caller", "published"), optimizer, total_steps=40, model=model, probe="not taken"
    )
    assert isinstance(named, hdet.OneCycleAutoLR)
    assert [group["max_lr"] for group in optimizer.param_groups] == [0.2, 0.1], "the optimizer's own"
    again = methods.published(optimizer, 40, model)  # the lr stands where the curve begins
    assert [group["max_lr"] for group in again.optimizer.param_groups] == [0.2, 0.1]


@pytest.mark.parametrize(("steps", "every"), [(1, 1), (250, 2), (60_000, 600), (300_000, 1000)])
def test_published_is_the_papers_method_fitted_to_the_run(
    monkeypatch: pytest.MonkeyPatch, steps: int, every: int
) -> None:
    monkeypatch.setattr(methods, "OneCycleAutoLR", lambda *_, **given: given)
    model = nn.Linear(2, 1)
    made: Any = partial(methods.published, torch.optim.AdamW(model.parameters()), steps, model, "h.jsonl")
    assert made() == {
        "model": model,
        "history": "h.jsonl",
        "ensemble_lr_spread_ratio": 1 / 9,
        "model_sync_interval": every,
        "enable_auto_lr": True,
        "auto_lr_warmup_steps": steps // 3,
        "loss_scale": 0.1,
    }
    given = {"model_sync_interval": 7, "auto_lr_warmup_steps": 3, "enable_auto_lr": False, "seed": 2}
    assert {name: made(**given)[name] for name in given} == given


@pytest.mark.parametrize("method", ["auto_lr", "", None, 3])
def test_other_names_are_refused(method: object) -> None:
    with pytest.raises(
        ValueError, match=r"^Caller: method must be 'autolr', 'autotune', 'published' or a callable .*, got "
    ):
        methods.builder_of("Caller", method)


def test_a_callable_is_given_what_it_names_and_has_not_bound() -> None:
    def make(optimizer: str, probe: Any, total_steps: int = 3, **_: Any) -> tuple[Any, ...]:
        return optimizer, probe, total_steps

    assert methods.build(make, "adam", probe="p", total_steps=9, model="m") == ("adam", "p", 9)
    bound = partial(make, total_steps=5)
    assert methods.build(bound, "adam", probe="p", total_steps=9) == ("adam", "p", 5)
    assert methods.needs(make, "probe")
    assert not methods.needs(make, "total_steps")
    assert not methods.wants(bound, "total_steps")
    assert not methods.needs(partial(make, probe="mine"), "probe")


def test_the_paper_to_the_letter_is_a_callable_like_others() -> None:
    model = nn.Linear(2, 1)
    make = partial(hdet.OneCycleAutoLR.paper, max_lr=0.3, final_div_factor=5)
    assert all(methods.wants(make, name) for name in ("total_steps", "model", "history"))
    door = methods.build(make, torch.optim.AdamW(model.parameters()), total_steps=40, model=model, probe=None)
    assert (door.spread, door.total_steps, door.optimizer.param_groups[0]["max_lr"]) == (1 / 9, 40, 0.3)


def test_published_needs_an_end_and_one_optimizer() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match="needs a number of steps, got none"):
        methods.published(optimizer, None, model)
    with pytest.raises(ValueError, match="takes one optimizer, got 2; 'autolr' takes several"):
        methods.published([optimizer, optimizer], 40, model)


ALONE = SimpleNamespace(trains_alone=True, switches=False)
LATER = SimpleNamespace(trains_alone=False, switches=True)
NEVER = SimpleNamespace(trains_alone=False, switches=False)


@pytest.mark.parametrize("door", [ALONE, LATER])
def test_a_step_that_one_process_may_skip_alone_is_refused(door: Any) -> None:
    with pytest.raises(ValueError, match=r"Caller: gradients of their own need steps .* use bf16"):
        methods.begin_own_gradients("Caller", door, 0, 2, scaler=object())


def test_who_shares_gradients_throughout_may_skip_steps_and_is_told_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "hdet")
    methods.begin_own_gradients("Caller", NEVER, 0, 2, scaler=object())
    methods.begin_own_gradients("Caller", object(), 0, 2, scaler=object())
    assert caplog.messages == []


def test_the_first_process_says_from_when_on_each_has_its_own_gradient(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "hdet")
    for rank in (0, 1):
        methods.begin_own_gradients("Caller", ALONE, rank, 2)
        methods.begin_own_gradients("Caller", LATER, rank, 2)
    said = "each of 2 processes trains on gradients of its own, which DDP does not average"
    now, later = caplog.messages
    assert now.startswith(f"Caller: {said}")
    assert later.startswith(f"Caller: from the first window on that does not improve {said}")


def test_autotune_is_told_of_a_ddp_that_it_does_not_see() -> None:
    switch = {"gradients": "switch"}
    assert methods.sharing_of(hdet.AutoTune) == switch
    assert methods.sharing_of(partial(hdet.AutoTune, patience=None)) == switch
    assert methods.sharing_of(partial(hdet.AutoTune, gradients="all")) == {}, "what was chosen stays"
    assert methods.sharing_of(hdet.AutoLR) == {}
    assert methods.sharing_of(lambda optimizer, gradients=None: None) == {}, "nor is a callable told"


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_gradients_are_shared_until_the_door_has_switched() -> None:
    model = nn.Linear(2, 1)
    ddp = nn.parallel.DistributedDataParallel(model)
    door = SimpleNamespace(trains_alone=False, switches=True)
    for alone in (False, True, False):
        door.trains_alone = alone
        with methods.own_gradients(ddp, door):
            assert ddp.require_backward_grad_sync is not alone
        assert ddp.require_backward_grad_sync
    with methods.own_gradients(model, ALONE):  # no DDP: nothing to do
        pass


@pytest.mark.parametrize(
    ("kind", "wraps"), [("MULTI_GPU", True), ("MULTI_CPU", True), ("NO", False), ("FSDP", False)]
)
def test_which_kinds_of_accelerate_are_in_ddp(kind: str, wraps: bool) -> None:
    assert methods.in_ddp(SimpleNamespace(distributed_type=SimpleNamespace(value=kind))) == wraps
