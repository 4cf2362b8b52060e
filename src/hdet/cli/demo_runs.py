"""What ``hdet demo`` trains, and the tables it prints.

1. A small language model on Python's help texts, in one process: a bad learning rate, the tuned one, and
   AutoLR, which is given none. Weights, steps and batches are the same.
2. 150 digits, a fifth of them mislabelled, on four replicas: AutoTune finds the rate, the weight decay and
   when to stop. The plain run that it is compared with sees as many samples.
3. The published method (OneCycleAutoLR) and OneCycleLR, on four replicas, from three maximum rates.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from hdet.autolr.auto_lr import AutoLR
from hdet.autolr.schedule import WarmStableDecay
from hdet.cli.demo_tasks import Batch, Task, digits, help_texts
from hdet.hyperparameters import WeightDecay
from hdet.published.one_cycle import OneCycleAutoLR
from hdet.replicas.launch import LocalProcesses
from hdet.report import Report
from hdet.tuning.auto_tune import AutoTune

__all__ = ["MAX_LRS", "Outcome", "demo", "published_sentence"]

REPLICAS = 4
#: A guess; and the best of four half-decades over 500 steps (docs/log.md).
BAD_RATE, TUNED_RATE = 0.1, 3.2e-3
#: Too low for so few steps, sensible, too high.
MAX_LRS = (0.01, 0.1, 1.0)
PUBLISHED_STEPS = 240
TIMEOUT_SECONDS = 300.0


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
    """Train everything, print three tables with a sentence each, and write the report.

    Args:
        steps: of each run of the language model.
        replica_steps: the budget of the runs on digits; AutoTune stops earlier if nothing improves.
        seed: of weights and batches.
        output: folder of the histories and the report; older ones in it are replaced.
    """
    output.mkdir(parents=True, exist_ok=True)
    histories = [output / "autolr.jsonl", output / "autotune.jsonl"]
    for path in histories:
        path.unlink(missing_ok=True)
    torch.set_num_threads(1)  # tiny models: threads would wait for each other
    _quiet()
    with console.status("") as status, LocalProcesses(REPLICAS) as ranks:
        show: Progress = status.update if console.is_terminal else partial(console.print, highlight=False)
        parts = [
            _language_model(steps, seed, histories[0], show),
            _auto_tune(ranks, replica_steps, seed, histories[1], show),
            _published(ranks, min(replica_steps, PUBLISHED_STEPS), seed, show),
        ]
    for title, outcomes, sentence in parts:
        console.print(f"\n{title}", style="bold", highlight=False)
        console.print(_table(outcomes))
        console.print(sentence, highlight=False)
    Report(*histories).write(output / "report.html")
    console.print("\nOne seed: small differences are noise.")
    console.print(f"The report: {output / 'report.html'}", soft_wrap=True, highlight=False)


def _quiet() -> None:
    """Warnings are in the histories; on the terminal they would break the status line."""
    logging.getLogger("hdet").setLevel(logging.ERROR)


def _language_model(steps: int, seed: int, path: Path, show: Progress) -> Part:
    task, outcomes = help_texts(), []
    for rate, why in ((BAD_RATE, "a bad guess"), (TUNED_RATE, "the tuned one")):
        given = f"rate {rate:g}, {why}"
        show(f"Python's help texts: {given}")
        outcomes.append(_plain(task, given, rate, islice(task.batches(seed), steps), steps, seed))
    show("Python's help texts: AutoLR, given nothing")
    model = task.model(seed)
    optimizer = AdamW(model.parameters())
    auto = AutoLR(optimizer, total_steps=steps, probe=task.probe(model, seed), history=path)
    found = f"rate up to {_search(auto, task, model, optimizer, islice(task.batches(seed), steps)):.2g}"
    auto.export(path.with_name("schedule.json"))
    bad, tuned, auto_lr = *outcomes, Outcome("nothing: AutoLR", found, auto.steps, task.test_loss(model))
    return (
        "A language model on Python's help texts, one process",
        [bad, tuned, auto_lr],
        f"AutoLR, given no learning rate, ended {_compared(auto_lr, tuned)} the tuned rate's loss, the bad "
        f"guess {_compared(bad, tuned)} it.",
    )


def _plain(task: Task, given: str, rate: float, batches: Iterable[Batch], steps: int, seed: int) -> Outcome:
    """AdamW with AutoLR's schedule and the usual warm-up."""
    model = task.model(seed)
    optimizer = AdamW(model.parameters(), lr=rate)
    shape, warm_up = WarmStableDecay.of(steps), max(1, round(0.05 * steps))
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm_up) * shape(step))
    for _ in task.training(model, optimizer, batches):
        schedule.step()
    return Outcome(given, "–", steps, task.test_loss(model))


def _search(
    auto: AutoLR | AutoTune, task: Task, model: nn.Module, optimizer: AdamW, batches: Iterable[Batch]
) -> float:
    """Train until the search ends, and load the best weights; the highest rate it used."""
    highest = 0.0
    for _ in task.training(model, optimizer, batches):
        highest = max(highest, auto.get_last_lr()[0])
        auto.step()
        if auto.finished:
            break
    auto.finish_()
    return highest


def _auto_tune(ranks: LocalProcesses, steps: int, seed: int, path: Path, show: Progress) -> Part:
    show(f"150 digits: AutoTune, given nothing, {REPLICAS} replicas")
    tuned: Outcome = ranks.run(train_auto_tune, steps, seed, str(path), timeout=TIMEOUT_SECONDS)[0]
    show("150 digits: AdamW with torch's defaults")
    task = digits(150, mislabelled=0.2, batch=32)
    streams = zip(*(task.batches(1000 * seed + rank) for rank in range(REPLICAS)), strict=True)
    joined = ((torch.cat([b[0] for b in each]), torch.cat([b[1] for b in each])) for each in streams)
    plain = _plain(task, "rate 0.001, decay 0.01", 1e-3, islice(joined, tuned.steps), tuned.steps, seed)
    return (
        f"150 digits, a fifth of them mislabelled, {REPLICAS} replicas",
        [plain, tuned],
        f"AutoTune, given nothing, took {tuned.steps:,} of {steps:,} steps and ended "
        f"{_compared(tuned, plain)} the loss of torch's defaults on as many samples.",
    )


def train_auto_tune(rank: int, steps: int, seed: int, path: str) -> Outcome:
    """One replica in its own process, on its own batches; rank 0 writes the history."""
    _quiet()
    task = digits(150, mislabelled=0.2, batch=32)
    model = task.model(seed)
    optimizer, probe = AdamW(model.parameters()), task.probe(model, seed)
    tune = AutoTune(
        optimizer, [WeightDecay(spread=1.5)], probe=probe, total_steps=steps, gradients="none", history=path
    )
    highest = _search(tune, task, model, optimizer, islice(task.batches(1000 * seed + rank), steps))
    found = f"rate up to {highest:.2g}, decay {tune.values['weight_decay']:.2g}"
    return Outcome("nothing: AutoTune", found, tune.steps, task.test_loss(model))


def _published(ranks: LocalProcesses, steps: int, seed: int, show: Progress) -> Part:
    outcomes: list[Outcome] = []
    for max_lr in MAX_LRS:
        show(f"Digits: OneCycleLR and OneCycleAutoLR from {max_lr:g}, {REPLICAS} replicas")
        outcomes += ranks.run(train_published, max_lr, steps, seed, timeout=TIMEOUT_SECONDS)[0]
    return f"The published method: digits, {REPLICAS} replicas", outcomes, published_sentence(outcomes)


def train_published(rank: int, max_lr: float, steps: int, seed: int) -> list[Outcome]:
    """One replica of a run with OneCycleLR, and of one with OneCycleAutoLR."""
    _quiet()
    task, lrs, outcomes = digits(1092, mislabelled=0.0, batch=16), [], []
    for name in ("OneCycleLR", "OneCycleAutoLR"):
        model = task.model(seed)
        parallel = DistributedDataParallel(model)
        optimizer = SGD(parallel.parameters(), lr=max_lr, momentum=0.9)
        if name == "OneCycleLR":
            scheduler = OneCycleLR(optimizer, max_lr, steps)
        else:
            scheduler = OneCycleAutoLR(
                optimizer,
                max_lr,
                steps,
                ensemble_lr_spread_ratio=1 / 9,
                model_sync_interval=max(1, steps // 24),
                enable_auto_lr=True,
                auto_lr_warmup_steps=steps // 10,
                loss_scale="auto",  # losses fall from 2.3 to 0.03: no fixed σ suits them all
                seed=seed,
                model=parallel,
            )
        lr = predicted = measured = 0.0
        for loss in task.training(parallel, optimizer, islice(task.batches(1000 * seed + rank), steps)):
            lr = optimizer.param_groups[0]["lr"]
            if not isinstance(scheduler, OneCycleAutoLR):
                scheduler.step()
            elif record := scheduler.step(loss):
                lr = record.hyperparameters[0].base_after
                if max(record.distance_predicted) > predicted:
                    predicted, measured = max(record.distance_predicted), max(record.distance_measured)
        lrs.append(lr)
        found = f"×{lr / lrs[0]:.2f}, apart {measured:.3g} ({predicted:.3g})" if predicted else "–"
        outcomes.append(Outcome(f"max_lr {max_lr:g}, {name}", found, steps, task.test_loss(model)))
    return outcomes


def published_sentence(outcomes: Sequence[Outcome]) -> str:
    """Whether OneCycleAutoLR made up for a wrong max_lr; from pairs of OneCycleLR and OneCycleAutoLR."""

    def finite(outcome: Outcome) -> float:
        return outcome.test_loss if math.isfinite(outcome.test_loss) else math.inf

    best = min(outcomes[::2], key=finite)
    elsewhere = [auto for plain, auto in zip(outcomes[::2], outcomes[1::2], strict=True) if plain is not best]
    rescued = [auto for auto in elsewhere if finite(auto) <= 1.1 * finite(best)]
    listed = " and ".join(
        f"{auto.test_loss:.3f} from {auto.given.split(',')[0]}" for auto in rescued or elsewhere
    )
    return (
        f"OneCycleAutoLR {'made' if rescued else 'did not make'} up for a wrong max_lr: {listed}; OneCycleLR "
        f"has {best.test_loss:.3f} from {best.given.split(',')[0]}. Found: the rate at the end in units of "
        "the schedule's, and how far the farthest replica was from the mean (as Eq. 2 predicts)."
    )


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
