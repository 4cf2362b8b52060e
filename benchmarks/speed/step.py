"""What hdet adds to a training step: the scheduler's call, the optimizer hooks, the sync, the whole.

Everything is a ratio or a difference within one run. Blocks of steps with and without hdet take turns in
the order A B B A, each such quad gives one value, and what is reported is the median of the quads and
their quartiles. Two gloo processes are the replicas, so that the fan-out has multipliers other than 1.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks import machine
from benchmarks.machine import rounded, summary
from hdet.published.one_cycle import OneCycleAutoLR
from hdet.replicas.launch import LocalProcesses

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["run", "table"]

_RATIO_GOAL = 1.5
_OVERHEAD_GOALS = {100: 0.005, 1000: 0.001}
_TIMEOUT_SECONDS = 400.0


class _Plan(NamedTuple):
    """How much is measured. A quad is four blocks, a block so many steps."""

    call_quads: int
    call_block: int
    training_quads: int
    training_block: int
    syncs: int
    direct_block: int


_FULL = _Plan(40, 25, training_quads=30, training_block=4, syncs=40, direct_block=100)
_QUICK = _Plan(8, 10, training_quads=4, training_block=2, syncs=5, direct_block=5)


def run(
    quick: bool = False, device: str = "cpu", on_progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Measure all parts on ``device`` and hold them against the goals; the result is plain JSON."""
    say = on_progress or (lambda _: None)
    plan = _QUICK if quick else _FULL
    rows: list[dict[str, Any]] = []
    with LocalProcesses(2) as ranks:
        for kind in ("SGD", "AdamW"):
            for groups in (1, 4):
                say(f"scheduler call: {kind}, parameter groups: {groups}")
                rows += ranks.run(_calls, kind, groups, device, plan, timeout=_TIMEOUT_SECONDS)[0]
        if torch.device(device).type == "cuda":
            for size in (1, 2):
                say(f"waits for the device, replicas: {size}")
                rows += ranks.run(_waits, device, size=size, timeout=_TIMEOUT_SECONDS)[0]
        say("training under DDP")
        measured = ranks.run(_training, device, plan, timeout=_TIMEOUT_SECONDS)[0]
    rows.append(_overhead(measured, rows))
    about = machine.about("step", quick=quick, device=device)
    result: dict[str, Any] = rounded({**about, "goals": _goals(rows), "rows": rows})
    return result


class _Times(NamedTuple):
    """Microseconds of one step: all of it, and its parts."""

    whole: float
    optimizer: float
    scheduler: float
    tail: float  # from the scheduler's call until the device is done


class _Control(OneCycleLR):
    """OneCycleLR again. Beside it even an empty subclass is up to a tenth slower or faster, as CPython
    specialises torch's methods for one of the two: what a ratio of calls may be off by."""


@dataclass
class _Loop:
    """A training loop with OneCycleLR (``sync_every=None``), the control (0), or OneCycleAutoLR."""

    model: nn.Module
    optimizer: Optimizer
    forward: Callable[[], Tensor]
    sync_every: int | None
    finish: Callable[[], object] = lambda: None  # waits for the device

    def __post_init__(self) -> None:
        settings: dict[str, Any] = {"optimizer": self.optimizer, "max_lr": 1e-3, "total_steps": 100_000}
        if not self.sync_every:
            self._scheduler = _Control(**settings) if self.sync_every == 0 else OneCycleLR(**settings)
            return
        settings |= {"ensemble_lr_spread_ratio": 1 / 9, "model_sync_interval": self.sync_every}
        settings |= {"enable_auto_lr": True, "auto_lr_warmup_steps": 0, "model": self.model}
        self._scheduler = OneCycleAutoLR(**settings)

    def step(self) -> _Times:
        """Take one step; only the calls themselves lie between the readings of the clock."""
        began = time.perf_counter_ns()
        loss: Any = self.forward()
        arguments = (loss,) if self.sync_every else ()
        before = time.perf_counter_ns()
        self.optimizer.step()
        between = time.perf_counter_ns()
        self._scheduler.step(*arguments)
        after = time.perf_counter_ns()
        self.finish()
        end = time.perf_counter_ns()
        return _Times(*(ns / 1e3 for ns in (end - began, between - before, after - between, end - between)))

    def take(self, steps: int) -> list[_Times]:
        return [self.step() for _ in range(steps)]


_Quads = list[tuple[_Times, _Times]]


def _interleave(plain: _Loop, hdet: _Loop, quads: int, block: int) -> _Quads:
    """The medians of both loops, quad by quad, the blocks in the order A B B A."""
    measured = []
    for _ in range(quads):
        first, second, third, fourth = (loop.take(block) for loop in (plain, hdet, hdet, plain))
        measured.append((_medians(first + fourth), _medians(second + third)))
    return measured


def _medians(times: Iterable[_Times]) -> _Times:
    return _Times(*(statistics.median(column) for column in zip(*times, strict=True)))


def _calls(rank: int, kind: str, groups: int, device: str, plan: _Plan) -> list[dict[str, Any]]:
    """Rank 0 measures in the first interval and, once auto-LR has moved, in the second. Rank 1 is there for
    the multipliers and the sync; otherwise it waits, and leaves the machine alone."""
    warm_up = 10
    sync_every = warm_up + plan.call_quads * 2 * plan.call_block + 1
    plain, hdet, control = (_tiny(kind, groups, device, rank, every) for every in (None, sync_every, 0))
    if rank > 0:
        hdet.take(sync_every)
        return []
    plain.take(warm_up)
    hdet.take(warm_up)
    about = {"part": "scheduler call", "optimizer": kind, "groups": groups}
    rows = []
    for interval in ("first", "later"):
        costs = _call_costs(_interleave(plain, hdet, plan.call_quads, plan.call_block))
        rows.append({**about, "interval": interval, **costs})
        hdet.step()  # after the first interval, the sync
    costs = _call_costs(_interleave(plain, control, plan.call_quads, plan.call_block))
    return [*rows, {**about, "part": "control", "ratio": costs["ratio"], "ratio_iqr": costs["ratio_iqr"]}]


def _tiny(kind: str, groups: int, device: str, rank: int, sync_every: int | None) -> _Loop:
    """Four weights per group and a gradient that stays: next to nothing but the calls."""
    weights = nn.ParameterList(torch.ones(4, device=device) for _ in range(groups))
    each = [{"params": [weight]} for weight in weights]
    for weight in weights:
        weight.grad = torch.full_like(weight, 1e-3)
    optimizer = SGD(each, lr=1e-3, momentum=0.9) if kind == "SGD" else AdamW(each, lr=1e-3)
    # A new loss at every step, as in training: a storage that is used again is a special case.
    return _Loop(weights, optimizer, lambda: weights[0].sum() * (1 + rank), sync_every)


def _call_costs(measured: _Quads) -> dict[str, Any]:
    plain, hdet = (_medians(side) for side in zip(*measured, strict=True))
    hooks = summary("hooks_us", (b.optimizer - a.optimizer for a, b in measured))
    return {
        "one_cycle_us": plain.scheduler,
        "hdet_us": hdet.scheduler,
        **summary("ratio", (b.scheduler / a.scheduler for a, b in measured)),
        "optimizer_step_us": plain.optimizer,
        **hooks,
        "hooks_relative": hooks["hooks_us"] / plain.optimizer,
        "added_us": hdet.scheduler - plain.scheduler + hooks["hooks_us"],
    }


def _waits(rank: int, device: str) -> list[dict[str, Any]]:
    """Between syncs with ``torch.cuda.set_sync_debug_mode("error")``: a wait for the device raises, all but
    some rare ones, as torch warns."""
    # The instrument itself: reading a value must raise.
    works = _error_of(torch.ones(1, device=device).item) != ""
    rows = []
    for lr in ("float", "tensor"):
        for sync_every in (None, 80):
            loop = _squares(lr, device, rank, sync_every)
            # Losses are summed 32 at a time: each interval holds two such sums.
            error = _error_of(loop.take, 79)
            loop.step()  # the sync, which may wait
            error = error or _error_of(loop.take, 79)
            about = {"part": "device waits", "lr": lr, "replicas": torch.distributed.get_world_size()}
            about["scheduler"] = "OneCycleLR" if sync_every is None else "OneCycleAutoLR"
            rows.append({**about, "never_waits": not error, "error": error, "detector_works": works})
    return rows


def _squares(lr: str, device: str, rank: int, sync_every: int | None) -> _Loop:
    torch.manual_seed(0)  # replicas begin as one model
    model = nn.Linear(64, 64, device=device)
    value = torch.tensor(1e-3, device=device) if lr == "tensor" else 1e-3
    optimizer = AdamW(model.parameters(), lr=value, capturable=lr == "tensor")
    forward = _with_backward(optimizer, lambda: (model.weight**2).mean() * (1 + rank))
    return _Loop(model, optimizer, forward, sync_every)


def _with_backward(optimizer: Optimizer, loss_of: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def forward() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return forward


def _error_of(action: Callable[..., object], *arguments: object) -> str:
    torch.cuda.set_sync_debug_mode("error")
    try:
        action(*arguments)
    except RuntimeError as error:
        return str(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return ""


def _training(rank: int, device: str, plan: _Plan) -> dict[str, Any]:
    torch.manual_seed(rank)
    # On a GPU the batch is what makes a step as long as on a CPU; the model stays the same.
    batch = 65536 if torch.device(device).type == "cuda" else 48
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))
    ddp, inputs = DistributedDataParallel(model.to(device)), torch.randn(batch, 1024, device=device)
    # All loops share the model and the optimizer's state: in other memory a twin's speed is another.
    state: dict[Any, Any] = defaultdict(dict)
    plain, hdet, syncing = (_loop_on(ddp, inputs, state, every) for every in (None, 10**6, 2))
    quads = _interleave(plain, hdet, plan.training_quads, plan.training_block)
    tails = [times.tail for times in syncing.take(2 * plan.syncs)]
    syncs = ((after - before) / 1e3 for before, after in zip(tails[::2], tails[1::2], strict=True))
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "batch": batch,
        **summary("step_ms", (a.whole / 1e3 for a, _ in quads)),
        **summary("hdet_step_ms", (b.whole / 1e3 for _, b in quads)),
        **summary("difference_us", (b.whole - a.whole for a, b in quads)),
        **summary("scheduler_difference_us", (b.scheduler - a.scheduler for a, b in quads)),
        **summary("sync_ms", syncs),
        **_direct(plain, _loop_on(ddp, inputs, state, plan.direct_block), plan.direct_block),
    }


def _loop_on(model: nn.Module, inputs: Tensor, state: dict[Any, Any], sync_every: int | None) -> _Loop:
    """The model learns to give back its inputs; the first steps, which make plans, are taken."""
    optimizer = AdamW(model.parameters(), lr=1e-3)
    optimizer.state = state  # type: ignore[assignment]
    forward = _with_backward(optimizer, lambda: (model(inputs) - inputs).square().mean())
    loop = _Loop(model, optimizer, forward, sync_every)
    if inputs.is_cuda:
        loop.finish = torch.cuda.synchronize
    loop.take(4)
    return loop


def _direct(plain: _Loop, hdet: _Loop, block: int) -> dict[str, Any]:
    """Wall-clock of whole intervals, one sync in each. For the record: its noise is larger than the cost."""
    seconds = [sum(times.whole for times in loop.take(block)) / 1e6 for loop in (plain, hdet, hdet, plain)]
    return {
        "direct_sync_every": block,
        "direct_seconds_abba": seconds,
        "direct_overhead": (seconds[1] + seconds[2]) / (seconds[0] + seconds[3]) - 1,
    }


def _overhead(measured: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """(what a step costs more + t_sync / T) / t_step, with the first term measured in two ways.

    *By difference* is the difference of whole steps, which is mostly noise. *By parts* is the scheduler's
    call and the hooks; of the call timed alone and the call timed within training the larger counts.
    """
    alike = [row for row in rows if row.get("interval") and (row["optimizer"], row["groups"]) == ("AdamW", 1)]
    step_us, sync_us = measured["step_ms"] * 1e3, measured["sync_ms"] * 1e3
    within = measured["scheduler_difference_us"] + max(row["hooks_us"] for row in alike)
    added = max(within, *(row["added_us"] for row in alike))
    row = {"part": "training", "replicas": 2, **measured, "added_us": added, "sync_steps": sync_us / step_us}
    for every in _OVERHEAD_GOALS:
        row[f"overhead_by_difference_T{every}"] = (measured["difference_us"] + sync_us / every) / step_us
        row[f"overhead_by_parts_T{every}"] = (added + sync_us / every) / step_us
    return row


def _goals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Each goal, the worst that was measured, and whether it is met."""
    found = {"step(loss) over OneCycleLR's": (_RATIO_GOAL, max(r["ratio"] for r in rows if "hooks_us" in r))}
    for every, limit in _OVERHEAD_GOALS.items():
        found[f"overhead by parts, T={every}"] = (limit, rows[-1][f"overhead_by_parts_T{every}"])
    goals: dict[str, Any] = {}
    for name, (limit, value) in found.items():
        goals[name] = {"at_most": limit, "measured": value, "met": value <= limit}
    if waits := [row for row in rows if row.get("scheduler") == "OneCycleAutoLR"]:
        met = all(row["never_waits"] and row["detector_works"] for row in waits)
        goals["no wait for the device between syncs"] = {"met": met}
    return goals


#: The lines of the table for each part: what, measured, quartiles.
_LINES = {
    "scheduler call": """\
step(loss): {optimizer}, groups: {groups}, {interval} interval|\
{hdet_us} µs, × {ratio} of OneCycleLR's {one_cycle_us} µs|× {ratio_iqr[0]} – {ratio_iqr[1]}
  its hooks in optimizer.step()|\
+ {hooks_us} µs on {optimizer_step_us} µs|{hooks_us_iqr[0]} – {hooks_us_iqr[1]} µs""",
    "control": """\
an empty subclass of OneCycleLR: {optimizer}, groups: {groups}|× {ratio}|× {ratio_iqr[0]} – {ratio_iqr[1]}""",
    "device waits": """\
between syncs: {scheduler}, {lr} lr, replicas: {replicas}|never waits: {never_waits} {error}|""",
    "training": """\
step under DDP, OneCycleLR|{step_ms} ms|{step_ms_iqr[0]} – {step_ms_iqr[1]} ms
step under DDP, OneCycleAutoLR between syncs|\
{hdet_step_ms} ms|{hdet_step_ms_iqr[0]} – {hdet_step_ms_iqr[1]} ms
  their difference|{difference_us} µs|{difference_us_iqr[0]} – {difference_us_iqr[1]} µs
  the calls and hooks alone|{added_us} µs|
sync|{sync_ms} ms, {sync_steps} steps|{sync_ms_iqr[0]} – {sync_ms_iqr[1]} ms
overhead by difference, T=100, T=1000|{overhead_by_difference_T100}, {overhead_by_difference_T1000}|
overhead by parts, T=100, T=1000|{overhead_by_parts_T100}, {overhead_by_parts_T1000}|
wall-clock, T={direct_sync_every}|{direct_overhead}|""",
}


def table(result: dict[str, Any]) -> Table:
    """What was measured, a line each, with its noise."""
    from rich.table import Table

    view = Table("what", "measured", "quartiles")
    for row in result["rows"]:
        for line in _LINES[row["part"]].splitlines():
            view.add_row(*line.format(**row).split("|"))
    for name, goal in result["goals"].items():
        limit = f": {goal['measured']} ≤ {goal['at_most']}" if "measured" in goal else ""
        view.add_row(f"goal: {name}", ("met" if goal["met"] else "missed") + limit, "")
    return view
