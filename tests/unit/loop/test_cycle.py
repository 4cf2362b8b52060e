"""The cycle and the one protocol it knows, by a policy of the test's own; what every door shows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet.history import SyncRecord
from hdet.loop import cycle as loop
from hdet.loop.comparison import Fixed
from hdet.loop.cycle import Cycle
from hdet.loop.policy import Decided, Policy, Seen
from hdet.loop.windows import Every
from tests.fakes import Alike, Thread, on_threads
from tests.states import inside
from tests.unit.training import X, network, probe_of, squared


class Scribe(Policy):
    """Moves nothing, asks for a sync every ``every`` steps, and writes down what it is asked."""

    kind = "scribe"
    follows_weights = True

    def __init__(self, name: str, every: int, said: list[str], *, back: bool = False) -> None:
        super().__init__([])
        self.name, self.every, self.said, self.back = name, every, said, back
        self.fails = self.void = False

    def say(self, what: str) -> None:
        self.said.append(f"{self.name} {what}")

    def start(self, step: int) -> None:
        self.window_end = step + self.every

    def judges(self, step: int) -> bool:
        return self.window_end is not None and step >= self.window_end

    def before_step(self) -> None:
        self.say("before")

    def after_step(self) -> None:
        self.say("after")

    def at_own(self) -> tuple[float]:
        self.say("own")
        if self.fails:
            raise KeyError(self.name)
        return (1.0,)

    def at_mean(self) -> tuple[float, float]:
        self.say("mean")
        return 2.0, 3.0

    def decide(self, seen: Seen) -> Callable[[], Decided]:
        self.say(f"decides {list(map(list, seen.rows))}")

        def apply() -> Decided:
            self.start(seen.step)
            return Decided((), went_back=self.back, void=self.void)

        return apply

    def observe(self, levels: Any) -> Decided:
        self.say("observes")
        return super().observe(levels)

    def missed(self, step: int) -> None:
        self.say(f"missed {step}")

    def state_dict(self) -> dict[str, Any]:
        return {"end": self.window_end}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.window_end = state["end"]


def build(*policies: Policy, total_steps: int | None = None, rank: int = 1) -> tuple[Any, Cycle]:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    cycle = Cycle(optimizer, policies, Alike(rank), total_steps=total_steps)

    def step() -> SyncRecord | None:
        weight.grad = torch.ones(2)
        optimizer.step()
        return cycle.step()

    return step, cycle


def test_a_policy_is_asked_in_this_order() -> None:
    said: list[str] = []
    step, _ = build(Scribe("a", 2, said))
    assert step() is None
    assert said == ["a before", "a after"]
    said.clear()
    record = step()
    assert record is not None
    assert said == ["a after", "a own", "a mean", "a decides [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]"]
    said.clear()
    step()
    assert said == ["a before", "a after"], "before the first step of a round"


def test_a_sync_is_due_when_the_first_window_ends_and_the_others_only_observe() -> None:
    said: list[str] = []
    step, _ = build(Scribe("a", 3, said), Scribe("b", 2, said))
    syncs = [record.step for _ in range(6) if (record := step())]
    assert syncs == [2, 3, 4, 6]
    spoken = [line.split()[1] for line in said if line.startswith("a ")]
    assert spoken == [
        *("before", "after", "after", "observes"),
        *("before", "after", "own", "mean", "decides"),
        *("before", "after", "observes"),
        *("before", "after", "after", "own", "mean", "decides"),
    ]


def test_who_comes_after_one_that_undid_the_window_does_not_decide() -> None:
    said: list[str] = []
    first = Scribe("a", 2, said, back=True)
    first.void = True
    step, _ = build(first, Scribe("b", 2, said))
    step(), step()
    assert [line for line in said if "decides" in line or "missed" in line or "observes" in line] == [
        "a decides [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]",
        "b observes",
        "b missed 2",
    ]


def test_who_comes_after_one_that_went_back_for_another_reason_does() -> None:
    """What was compared in the window holds, wherever training goes on from."""
    said: list[str] = []
    step, _ = build(Scribe("a", 2, said, back=True), Scribe("b", 2, said))
    step(), step()
    assert [line.split(" [")[0] for line in said if "decides" in line] == ["a decides", "b decides"]
    assert not any("missed" in line for line in said)


def test_a_sync_that_failed_is_tried_again_or_given_up_as_the_policy_likes() -> None:
    """A window that stays open is tried again at the next step, a comparison waits for its next round."""
    said: list[str] = []
    scribe = Scribe("a", 2, said)
    step, cycle = build(scribe)
    step()
    scribe.fails = True
    with pytest.raises(KeyError):
        step()
    scribe.fails = False
    assert cycle.steps == 2
    assert "a missed 2" in said
    record = step()
    assert record is not None
    assert record.step == 3

    clock = Every(4)
    fixed = Fixed([hdet.LearningRate(spread=0.5)], clock)
    build(fixed)
    fixed.missed(8)
    assert fixed.window_end == 12


def test_a_policy_that_stopped_asks_for_nothing_and_explores_nothing() -> None:
    said: list[str] = []
    step, cycle = build(Scribe("a", 2, said), Fixed([hdet.LearningRate(spread=0.5)], Every(3)))
    assert cycle.replica_lrs != [0.1]
    cycle.end_search()
    assert cycle.replica_lrs == [0.1]
    assert [step() for _ in range(6)] == [None] * 6


def test_a_state_goes_on_where_it_was() -> None:
    step, cycle = build(Scribe("a", 5, []))
    step(), step()
    saved = cycle.state_dict()
    assert inside(saved)["policies"] == [{"kind": "scribe", "end": 5}]
    step, cycle = build(Scribe("a", 7, []))
    cycle.load_state_dict(saved)
    assert [record.step for _ in range(4) if (record := step())] == [5]


def test_a_step_taken_before_a_state_is_loaded_is_another_runs() -> None:
    """torch.distributed.checkpoint takes one, to have an optimizer make the state that it then loads."""
    step, cycle = build(Scribe("a", 5, []))
    step(), step()
    saved = cycle.state_dict()
    cycle.optimizer.step()
    cycle.load_state_dict(saved)
    cycle.step()
    assert cycle.steps == 2


def test_no_step_beyond_the_last_is_counted() -> None:
    said: list[str] = []
    step, cycle = build(Scribe("a", 2, said), total_steps=3)
    step(), step(), step()
    said.clear()
    assert [step(), step()] == [None, None]
    assert cycle.steps == 3
    assert "a after" not in said


def test_a_call_after_the_last_step_that_follows_no_other_is_no_step_beyond_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A framework that steps once for every process ends with one."""
    step, cycle = build(Scribe("a", 2, []), total_steps=3, rank=0)  # the one that speaks
    weight = cycle.optimizer.param_groups[0]["params"][0]
    for _ in range(3):
        weight.grad = torch.ones(2)
        cycle.optimizer.step()
        cycle.step(), cycle.step()
    assert "the run has ended" not in caplog.text
    step()
    assert "the run has ended" in caplog.text


def test_what_a_policy_finds_wrong_at_the_end_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scribe, "check_end", lambda _: "the ink has run out")
    step, _ = build(Scribe("a", 3, []), total_steps=3, rank=0)  # the one that speaks
    step(), step()
    assert not caplog.text
    step()
    assert [r.levelname for r in caplog.records if "the ink has run out" in r.getMessage()] == ["ERROR"]


def test_a_state_of_replicas_that_differ_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def said(at: int, size: int, spread: float) -> list[str]:
        caplog.clear()
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
        explore = [hdet.LearningRate(spread=spread)]
        ensemble = hdet.Ensemble(optimizer, explore, sync_every=5, process_group=Alike(0, size))
        for _ in range(at):
            optimizer.step()
            ensemble.step(1.0)
        for _ in range(2):
            ensemble.state_dict()
        ensemble.converge()
        ensemble.state_dict()
        return [r.getMessage() for r in caplog.records if "state_dict: called" in r.getMessage()]

    (once,) = said(7, 2, 0.5)
    assert "2 steps after the last sync" in once
    assert "call converge() on every rank" in once
    assert said(10, 2, 0.5) == said(7, 1, 0.5) == said(7, 2, 0.0) == []


def on_own_gradients(replicas: Any, **options: Any) -> tuple[nn.Parameter, hdet.Ensemble]:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    options = {"sync_every": 3, "gradients": "none", "process_group": replicas, **options}
    return weight, hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], **options)


def test_a_step_that_one_rank_alone_skips_counts_on_gradients_of_its_own() -> None:
    """Else it would fall behind the others, who wait for it at the sync."""

    def act(rank: Thread) -> list[int]:
        _, ensemble = on_own_gradients(rank)
        records = []
        for step in range(6):
            if (rank.rank, step) != (1, 1):  # GradScaler skips it
                ensemble.optimizer.step()
            records.append(ensemble.step(1.0 + rank.rank))
        return [record.step for record in records if record]

    assert on_threads(2, act) == [[3, 6], [3, 6]]


def test_who_trains_on_after_the_end_on_gradients_of_its_own_is_apart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, ensemble = on_own_gradients(Alike(rank=0), total_steps=3)
    for _ in range(3):
        ensemble.optimizer.step()
        ensemble.step(1.0)
    assert not ensemble.apart
    ensemble.optimizer.step()
    ensemble.step(1.0)
    assert ensemble.apart
    assert "replicas on gradients of their own stay apart: call converge() when you stop" in caplog.text


def test_weights_that_are_lost_on_all_ranks_are_told_and_not_set_to_zero() -> None:
    weight, ensemble = on_own_gradients(Alike(rank=0))
    for _ in range(3):
        weight.grad = torch.full((2,), float("nan"))
        ensemble.optimizer.step()
        record = ensemble.step(1.0)
    assert record is not None
    assert any("no replica can enter the mean, the weights are lost" in event for event in record.events)
    assert bool(weight.isnan().all())


def test_what_a_rollback_leaves_on_each_rank_is_averaged() -> None:
    """The weights that all went back to are equal; their buffers were each rank's own."""

    def act(rank: Thread) -> float:
        model = nn.LayerNorm(1)  # begins alike on all ranks
        model.register_buffer("statistic", torch.zeros(()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        class Back(Scribe):
            def start(self, step: int) -> None:
                super().start(step)
                if step:
                    model.statistic.fill_(1.0 + 2.0 * rank.rank)  # type: ignore[operator]

        policies = [Back("a", 2, [], back=True), Fixed([hdet.LearningRate(spread=0.5)], Every(2))]
        cycle = Cycle(optimizer, policies, rank, model=model)
        for _ in range(2):
            optimizer.step()
            cycle.step(1.0 + rank.rank)
        return float(model.statistic)  # type: ignore[arg-type]

    assert on_threads(2, act) == [2.0, 2.0]


def test_the_ranks_of_one_sharded_model_cannot_diverge() -> None:
    replicas = Alike(rank=0, size=1)
    replicas.ranks_per_replica = 2
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.0)], process_group=replicas)
    with pytest.raises(TypeError, match=r"all 2 ranks together hold one: each has a shard of the same model"):
        hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], process_group=replicas)


def test_rows_of_one_process_are_saved_together(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(3, 1)
    stacked = hdet.StackedReplicas(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    ensemble = hdet.Ensemble(stacked.optimizer, sync_every=5)
    losses = stacked.losses(lambda m, batch: m(batch).square().mean(), torch.randn(4, 3))
    stacked.backward(losses)
    stacked.optimizer.step()
    ensemble.step(losses)
    ensemble.state_dict()
    assert not any("state_dict: called" in r.getMessage() for r in caplog.records)


def test_a_clip_is_not_explored_where_each_rank_has_a_part_of_a_flat_gradient() -> None:
    """FullyShardedDataParallel's parts have no norm of the whole; any other hyperparameter is explored."""
    weight = nn.Parameter(torch.ones(2))
    weight._fsdp_flattened = True  # type: ignore[attr-defined]
    replicas = Alike()
    replicas.ranks_per_replica = 2
    build: Any = partial(hdet.Ensemble, process_group=replicas, gradients="none")
    build(torch.optim.SGD([weight], lr=0.1, weight_decay=0.1), [hdet.WeightDecay()])
    with pytest.raises(TypeError, match=r"Ensemble: gradient_clip is taken over the whole gradient"):
        build(torch.optim.SGD([weight], lr=0.1), [hdet.GradientClip(1.0)])


# ---------------------------------------------------------------------- what every door shows

DOORS: dict[str, Callable[[Any, nn.Module], Any]] = {
    "AutoLR": lambda o, m: hdet.AutoLR(o, probe=probe_of(m), total_steps=100),
    "AutoTune": lambda o, m: hdet.AutoTune(o, [hdet.WeightDecay()], probe=probe_of(m), total_steps=100),
    "OneCycleAutoLR": lambda o, _: hdet.OneCycleAutoLR(
        o, 0.01, 100, ensemble_lr_spread_ratio=0.1, model_sync_interval=20
    ),
    "Ensemble": lambda o, _: hdet.Ensemble(
        o, [hdet.LearningRate(spread=0.1)], total_steps=100, sync_every=20
    ),
}


@pytest.mark.usefixtures("same_seed")
@pytest.mark.parametrize("door", DOORS)
def test_every_door_says_the_same_of_its_run(door: str) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = DOORS[door](optimizer, model)
    assert run.optimizer is optimizer
    search = door in ("AutoLR", "AutoTune")
    assert (run.steps, run.total_steps, run.history) == (0, 100, [])
    assert (run.sync_every, run.spread) == ((None, 0.0) if search else (20, 0.1))
    assert run.replicas.size == 1
    records = []
    for i in range(40):
        optimizer.zero_grad()
        squared(model, X[i % 200]).backward()
        optimizer.step()
        record = run.step(1.0)
        records += [record] if record else []
    assert run.steps == 40
    assert run.history == records
    assert [record.step for record in records] == ([10, 20, 30, 40] if search else [20, 40])
    assert records[-1].lr == records[-1].hyperparameters[0].base_after
    assert run.replica_lrs == pytest.approx([optimizer.param_groups[0]["lr"]], rel=0.11)
    assert run.values["lr/0"] == optimizer.param_groups[0]["lr"]
    assert not run.apart
    with run.at_base():
        pass
    run.converge()
    run.detach()


def test_no_more_records_are_kept_than_memory_should_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loop._RECORDS == 1000
    monkeypatch.setattr(loop, "_RECORDS", 5)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    run = hdet.Ensemble(optimizer, sync_every=1)
    for _ in range(8):
        optimizer.step()
        run.step(1.0)
    assert [record.step for record in run.history] == [4, 5, 6, 7, 8]
