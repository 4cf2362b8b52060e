"""What ``hdet demo`` trains, and the tables it prints.

1. A small language model on Python's help texts, in one process: a bad learning rate, the tuned one, and
   AutoLR, which is given none. Weights, steps and batches are the same.
2. 600 digits, a fifth of them mislabelled, on four replicas: OneCycleLR, HDET as published (OneCycleAutoLR)
   and AutoTune, which finds the rate, the weight decay and when to stop. All take as many steps and samples.

Every run leaves a history with its losses on the same held-out batches, so that the report compares them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from hdet.autolr.auto_lr import AutoLR
from hdet.autolr.schedule import WarmStableDecay
from hdet.cli.demo_tasks import Batch, Task, digits, help_texts
from hdet.history import File, of_note
from hdet.hyperparameters import WeightDecay
from hdet.published.one_cycle import OneCycleAutoLR
from hdet.replicas.launch import LocalProcesses
from hdet.report import Report
from hdet.tuning.auto_tune import AutoTune

__all__ = ["Outcome", "demo", "replicas_sentence", "train_hdet"]

REPLICAS = 4
#: A guess; and the best of four half-decades over 500 steps (docs/log.md).
BAD_RATE, TUNED_RATE = 0.1, 3.2e-3
#: Of OneCycleLR and HDET: AdamW's default rate.
MAX_LR = 1e-3
TIMEOUT_SECONDS = 300.0
#: So often the held-out loss of a run without a probe is measured, for the report.
_MEASURED = 40


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run, as a row of a table: what it was given, what it found, how it ended."""

    given: str
    found: str
    steps: int
    test_loss: float


#: Shows what is trained next.
Progress = Callable[[str], None]
#: A title, the rows of a table, and what they show.
Part = tuple[str, list[Outcome], str]


def demo(console: Console, *, steps: int, replica_steps: int, seed: int, output: Path) -> None:
    """Train everything, write the report, and print two tables with a sentence each.

    Args:
        steps: of each run of the language model.
        replica_steps: the budget of the runs on digits; AutoTune stops earlier if nothing improves.
        seed: of weights and batches.
        output: folder of the histories and the report; older ones in it are replaced.
    """
    language, replicas = output / "language-model", output / "replicas"
    for path in (*language.glob("*.jsonl"), *replicas.glob("*.jsonl")):
        path.unlink()
    torch.set_num_threads(1)  # tiny models: threads would wait for each other
    _quiet()
    with console.status("") as status, LocalProcesses(REPLICAS) as ranks:
        show: Progress = status.update if console.is_terminal else partial(console.print, highlight=False)
        parts = [
            _language_model(steps, seed, language, show),
            _replicas(ranks, replica_steps, seed, replicas, show),
        ]
    Report(*sorted(language.glob("*.jsonl")), *sorted(replicas.glob("*.jsonl"))).write(output / "report.html")
    for title, outcomes, _ in parts:
        console.print(f"\n{title}", style="bold", highlight=False)
        console.print(_table(outcomes))
    console.print(f"\nThe report: {output / 'report.html'}\n", soft_wrap=True, highlight=False)
    for *_, sentence in parts:
        console.print(sentence, highlight=False)


def _quiet() -> None:
    """Warnings are in the histories; on the terminal they would break the status line."""
    logging.getLogger("hdet").setLevel(logging.ERROR)


def _language_model(steps: int, seed: int, folder: Path, show: Progress) -> Part:
    task, outcomes = help_texts(), []
    shape, warm_up = WarmStableDecay.of(steps), max(1, round(0.05 * steps))

    def like_auto_lr(optimizer: AdamW) -> LRScheduler:
        return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm_up) * shape(step))

    for rate, why in ((BAD_RATE, "a bad guess"), (TUNED_RATE, "the tuned one")):
        given, path = f"rate {rate:g}, {why}", folder / f"rate-{rate:g}.jsonl"
        show(f"Python's help texts: {given}")
        outcomes.append(_plain(task, given, rate, like_auto_lr, task.batches(seed), steps, seed, path))
    show("Python's help texts: AutoLR, given nothing")
    model = task.model(seed)
    optimizer, path = AdamW(model.parameters()), folder / "autolr.jsonl"
    auto = AutoLR(optimizer, total_steps=steps, probe=task.probe(model, seed), history=path)
    found = f"rate {_search(auto, task, model, optimizer, islice(task.batches(seed), steps)):.2g}"
    auto.export(path.with_name("schedule.json"))
    bad, tuned, auto_lr = *outcomes, Outcome("nothing: AutoLR", found, auto.steps, task.test_loss(model))
    return (
        "A language model on Python's help texts, one process",
        [bad, tuned, auto_lr],
        f"AutoLR, given no learning rate, ended {_compared(auto_lr, tuned)} the tuned rate's loss; the bad "
        f"guess ended {_compared(bad, tuned)} it.",
    )


def _plain(
    task: Task,
    given: str,
    rate: float,
    schedule: Callable[[AdamW], LRScheduler],
    batches: Iterable[Batch],
    steps: int,
    seed: int,
    path: Path,
) -> Outcome:
    """A run at a given rate, with a history of the losses that the others' probe would see."""
    model = task.model(seed)
    optimizer = AdamW(model.parameters(), lr=rate)
    scheduler, history = schedule(optimizer), File(path)
    history.prepare()
    parameters = sum(p.numel() for p in model.parameters())
    history(of_note("run", total_steps=steps, optimizer="AdamW", parameters=parameters))
    for step, _ in enumerate(task.training(model, optimizer, islice(batches, steps)), 1):
        lr = float(optimizer.param_groups[0]["lr"])
        scheduler.step()
        if step == 1 or step % max(1, steps // _MEASURED) == 0 or step == steps:
            used = {"name": "lr/0", "base_before": lr, "base_after": lr}
            history({"step": step, "hyperparameters": [used], "held_out_mean": task.held_out(model, seed)})
    history(of_note("end", step=steps))
    return Outcome(given, "–", steps, task.test_loss(model))


def _search(
    auto: AutoLR | AutoTune, task: Task, model: nn.Module, optimizer: AdamW, batches: Iterable[Batch]
) -> float:
    """Train until the search ends, and load the best weights; the learning rate that led to them."""
    for _ in task.training(model, optimizer, batches):
        auto.step()
        if auto.finished:
            break
    best = auto.finish_()
    return math.nan if best is None else best.rate


def _replicas(ranks: LocalProcesses, steps: int, seed: int, folder: Path, show: Progress) -> Part:
    show(f"600 digits: AutoTune, given nothing, {REPLICAS} replicas")
    given = (seed, str(folder / "autotune.jsonl"))
    tuned: Outcome = ranks.run(train_auto_tune, steps, *given, timeout=TIMEOUT_SECONDS)[0]
    show(f"600 digits: HDET as published, {REPLICAS} replicas")
    given = (seed, str(folder / "hdet.jsonl"))
    published: Outcome = ranks.run(train_hdet, tuned.steps, *given, timeout=TIMEOUT_SECONDS)[0]
    show("600 digits: OneCycleLR")
    task = digits()
    streams = zip(*(task.batches(1000 * seed + rank) for rank in range(REPLICAS)), strict=True)
    joined = ((torch.cat([b[0] for b in each]), torch.cat([b[1] for b in each])) for each in streams)
    one_cycle = partial(OneCycleLR, max_lr=MAX_LR, total_steps=tuned.steps)
    name = f"OneCycleLR, max_lr {MAX_LR:g}"
    plain = _plain(task, name, MAX_LR, one_cycle, joined, tuned.steps, seed, folder / "onecycle.jsonl")
    return (
        f"600 digits, a fifth of them mislabelled, {REPLICAS} replicas",
        [plain, published, tuned],
        replicas_sentence(plain, published, tuned),
    )


def replicas_sentence(plain: Outcome, published: Outcome, tuned: Outcome) -> str:
    """How HDET and AutoTune ended, against the plain run."""
    return (
        f"HDET ended {_compared(published, plain)} OneCycleLR's loss from the same max_lr; AutoTune, given "
        f"nothing, ended {_compared(tuned, plain)} it, with 256 held-out digits to choose by."
    )


def train_hdet(rank: int, steps: int, seed: int, path: str) -> Outcome:
    """One replica of the published method, on its own batches and the shared gradient, in 40 rounds."""
    _quiet()
    task = digits()
    model = task.model(seed)
    parallel = DistributedDataParallel(model)
    optimizer, file = AdamW(parallel.parameters()), File(path)
    if rank == 0:
        file.prepare()

    def with_loss(line: Mapping[str, Any]) -> None:
        measured = {} if "kind" in line else {"held_out_mean": task.held_out(model, seed)}
        file({**line, **measured})

    scheduler = OneCycleAutoLR(
        optimizer,
        MAX_LR,
        steps,
        ensemble_lr_spread_ratio=1 / 9,
        model_sync_interval=max(1, steps // 40),
        enable_auto_lr=True,
        auto_lr_warmup_steps=steps // 3,
        seed=seed,
        model=parallel,
        history=with_loss,
    )
    for loss in task.training(parallel, optimizer, islice(task.batches(1000 * seed + rank), steps)):
        scheduler.step(loss)
    moves = [record.hyperparameters[0] for record in scheduler.history]
    found = f"rate ×{math.prod(move.base_after / move.base_before for move in moves):.2f}"
    return Outcome(f"HDET, max_lr {MAX_LR:g}", found, steps, task.test_loss(model))


def train_auto_tune(rank: int, steps: int, seed: int, path: str) -> Outcome:
    """One replica in its own process, on its own batches; rank 0 writes the history."""
    _quiet()
    task = digits()
    model = task.model(seed)
    optimizer, probe = AdamW(model.parameters()), task.probe(model, seed)
    tune = AutoTune(
        optimizer, [WeightDecay(spread=1.5)], probe=probe, total_steps=steps, gradients="none", history=path
    )
    rate = _search(tune, task, model, optimizer, islice(task.batches(1000 * seed + rank), steps))
    found = f"rate {rate:.2g}, decay {tune.values['weight_decay']:.2g}"
    return Outcome("nothing: AutoTune", found, tune.steps, task.test_loss(model))


# ---------------------------------------------------------------------- the tables


def _compared(one: Outcome, other: Outcome) -> str:
    ratio = one.test_loss / other.test_loss - 1
    return f"{abs(ratio):.1%} {'above' if ratio > 0 else 'below'}" if math.isfinite(ratio) else "far from"


def _table(outcomes: Sequence[Outcome]) -> Table:
    view = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("given", "found", "steps", "test loss"):
        view.add_column(heading, justify="left" if heading in ("given", "found") else "right", no_wrap=True)
    for one in outcomes:
        loss = f"{one.test_loss:.3f}" if math.isfinite(one.test_loss) else "not finite"
        view.add_row(one.given, one.found, f"{one.steps:,}", loss, style="" if one.found == "–" else "bold")
    return view
