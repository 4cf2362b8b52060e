"""The published method beside plain OneCycleLR: real processes, real data, under a minute.

Every pair of runs shares its seed, its steps and its batches, and differs in the scheduler alone. The
maximum learning rates are a decade apart, so that both can be seen where it is well chosen and where not.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR

from hdet import history
from hdet.bench.workloads import digits
from hdet.bench.workloads.digits import Digits
from hdet.demos.progress import Progress
from hdet.history import SyncRecord
from hdet.one_cycle import OneCycleAutoLR
from hdet.replicas.launch import LocalProcesses

__all__ = ["MAX_LRS", "Outcome", "Run", "demo", "table", "train", "verdict"]

#: Too low for so few steps, sensible, too high.
MAX_LRS = (0.01, 0.1, 1.0)
PER_REPLICA = 16
SYNCS = 24
_REPORT_EVERY = 10
#: Made up for a wrong learning rate: at most this far above the best OneCycleLR run.
_CLOSE = 1.1


@dataclass(frozen=True, slots=True)
class Run:
    """One training run; ``history`` is None for plain OneCycleLR."""

    max_lr: float
    steps: int
    replicas: int
    spread: float
    seed: int
    history: Path | None

    @property
    def name(self) -> str:
        return "OneCycleLR" if self.history is None else "OneCycleAutoLR"

    @property
    def sync_every(self) -> int:
        return max(1, self.steps // SYNCS)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to. ``lr`` is the base learning rate at the last step, after its sync."""

    run: Run
    lr: float
    train_loss: float
    test_loss: float
    test_accuracy: float


def demo(
    console: Console,
    *,
    replicas: int = 4,
    steps: int = 240,
    spread: float = 1 / 9,
    seed: int = 0,
    output: Path = Path("runs/demo"),
    timeout: float = 120.0,
) -> list[Outcome]:
    """Train six times, show the progress, print the table and what it says.

    Args:
        replicas: N, the number of processes.
        steps: of each run.
        spread: α of Eq. 1.
        seed: of weights, batches and reassignments.
        output: folder of the histories, one JSONL file per maximum learning rate, written anew.
        timeout: the longest that one run may take, in seconds.
    """
    data = digits.load()
    histories = [output / f"max_lr-{max_lr:g}.jsonl" for max_lr in MAX_LRS]
    for path in histories:
        path.unlink(missing_ok=True)
    runs = [
        Run(max_lr, steps, replicas, spread, seed, chosen)
        for max_lr, path in zip(MAX_LRS, histories, strict=True)
        for chosen in (None, path)
    ]
    outcomes = _train_all(console, runs, data, timeout)
    console.print(table(outcomes))
    console.print(f"Histories: {', '.join(map(str, histories))}", soft_wrap=True, highlight=False)
    events = sum(len(record.events) for path in histories for record in history.read(path))
    if events:
        console.print(f'The histories tell of {events} departures from the published path, in "events".')
    console.print(verdict(outcomes), highlight=False)
    return outcomes


def _train_all(console: Console, runs: Sequence[Run], data: Digits, timeout: float) -> list[Outcome]:
    size = runs[0].replicas
    outcomes: list[Outcome] = []
    with Progress(console, sum(run.steps for run in runs)) as progress, LocalProcesses(size) as ranks:
        begun: set[str] = set()

        def advance(rank: int, title: str) -> None:
            if title not in begun:
                begun.add(title)
                progress.begin(title)
            progress.advance(_REPORT_EVERY)

        progress.begin(f"starting {size} processes")
        for run in runs:
            outcomes.append(ranks.run(train, run, data, timeout=timeout, on_report=advance)[0])
    return outcomes


def train(rank: int, run: Run, data: Digits, report: Callable[[str], None]) -> Outcome:
    """One rank of one run; rank 0 reports every few steps."""
    # What they say is in the history; on the terminal it would tear the progress bar.
    logging.getLogger("hdet").setLevel(logging.ERROR)
    model = digits.build_model(run.seed)
    parallel = DistributedDataParallel(model)
    optimizer = SGD(parallel.parameters(), lr=run.max_lr, momentum=0.9)
    scheduler = _scheduler(run, optimizer, parallel)
    lr = math.nan
    mine = digits.batches(
        data.train_images,
        data.train_labels,
        rank=rank,
        size=run.replicas,
        per_replica=PER_REPLICA,
        seed=run.seed,
    )
    for step, (images, labels) in enumerate(islice(mine, run.steps), 1):
        loss = digits.cross_entropy(parallel(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        lr = optimizer.param_groups[0]["lr"]
        if isinstance(scheduler, OneCycleAutoLR):
            record = scheduler.step(loss)
            lr = record.hyperparameters[0].base_after if record else lr
        else:
            scheduler.step()
        if rank == 0 and step % _REPORT_EVERY == 0:
            report(f"{run.name}, max_lr {run.max_lr:g}")
    return _evaluate(run, model, data, lr)


def _scheduler(run: Run, optimizer: SGD, model: nn.Module) -> OneCycleLR:
    if run.history is None:
        return OneCycleLR(optimizer, run.max_lr, run.steps)
    return OneCycleAutoLR(
        optimizer,
        run.max_lr,
        run.steps,
        ensemble_lr_spread_ratio=run.spread,
        model_sync_interval=run.sync_every,
        enable_auto_lr=True,
        auto_lr_warmup_steps=run.steps // 10,
        # Losses fall from 2.3 to 0.03 here: no fixed σ suits them all.
        loss_scale="auto",
        seed=run.seed,
        model=model,
        history=run.history,
    )


@torch.no_grad()
def _evaluate(run: Run, model: nn.Module, data: Digits, lr: float) -> Outcome:
    """The averaged model, as the last sync left it, on all images."""
    model.eval()
    logits = model(data.test_images)
    return Outcome(
        run=run,
        lr=lr,
        train_loss=float(digits.cross_entropy(model(data.train_images), data.train_labels)),
        test_loss=float(digits.cross_entropy(logits, data.test_labels)),
        test_accuracy=float((logits.argmax(1) == data.test_labels).float().mean()),
    )


def table(outcomes: Sequence[Outcome]) -> Table:
    """One line per run, the two schedulers of a maximum learning rate together."""
    first = outcomes[0].run
    view = Table(  # 78 columns: it must fit a terminal of 80
        title=f"8×8 digits, {first.replicas} replicas, {first.steps} steps, spread {first.spread:.3g}",
        box=SIMPLE_HEAD,
    )
    view.add_column("max_lr", justify="right", no_wrap=True)
    view.add_column("scheduler", no_wrap=True)
    for heading in ("LR\nfound", "train\nloss", "test\nloss", "test\nacc."):
        view.add_column(heading, justify="right", no_wrap=True)
    view.add_column("replicas apart\n(predicted)", justify="right", no_wrap=True)
    for plain, auto in _pairs(outcomes):
        for outcome in (plain, auto):
            view.add_row(
                f"{outcome.run.max_lr:g}" if outcome is plain else "",
                outcome.run.name,
                f"×{outcome.lr / plain.lr:.2f}",
                f"{outcome.train_loss:.3f}",
                f"{outcome.test_loss:.3f}",
                f"{outcome.test_accuracy:.1%}",
                _distances(outcome.run),
                end_section=outcome is auto,
            )
    return view


def verdict(outcomes: Sequence[Outcome]) -> str:
    """What the table says of the method, computed from it."""
    pairs = _pairs(outcomes)
    factors = [auto.lr / plain.lr for plain, auto in pairs]
    changes = ", ".join(f"{auto.test_loss / plain.test_loss - 1:+.1%}" for plain, auto in pairs)
    best = min((plain for plain, _ in pairs), key=_held_out)
    elsewhere = [auto for plain, auto in pairs if plain is not best]
    rescued = [auto for auto in elsewhere if _held_out(auto) <= _CLOSE * _held_out(best)]
    listed = " and ".join(f"{auto.test_loss:.3f} from {auto.run.max_lr:g}" for auto in rescued or elsewhere)
    return (
        f"OneCycleAutoLR moved the base learning rate to ×{min(factors):.2f}…×{max(factors):.2f} of the "
        f"schedule's; its test loss differs from OneCycleLR's by {changes}. It "
        f"{'made' if rescued else 'did not make'} up for a wrong max_lr: {listed}, where OneCycleLR at "
        f"{best.run.max_lr:g} has {best.test_loss:.3f}. One seed: small differences are noise."
    )


def _pairs(outcomes: Sequence[Outcome]) -> list[tuple[Outcome, Outcome]]:
    """OneCycleLR and OneCycleAutoLR at each maximum learning rate."""
    return list(zip(outcomes[::2], outcomes[1::2], strict=True))


def _held_out(outcome: Outcome) -> float:
    return outcome.test_loss if math.isfinite(outcome.test_loss) else math.inf


def _distances(run: Run) -> str:
    """The farthest replica's distance from the mean at the sync where the replicas were farthest apart."""
    if run.history is None:
        return "–"
    farthest = max(history.read(run.history), key=_predicted)
    measured, predicted = max(farthest.distance_measured), _predicted(farthest)
    digits_shown = ".3g" if measured < 1000 else ".0f"
    return f"{measured:{digits_shown}} ({predicted:{digits_shown}})"


def _predicted(record: SyncRecord) -> float:
    distance = max(record.distance_predicted)
    return distance if math.isfinite(distance) else 0.0
