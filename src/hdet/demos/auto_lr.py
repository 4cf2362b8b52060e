"""No learning rate beside guessed ones: one process, real data, a few seconds.

All runs share their weights, steps and batches. The guesses are plain training with warm-up, a constant
stretch and a decay; AutoLR gets the same optimizer and is not told a size.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hdet import history
from hdet.auto_lr import AutoLR
from hdet.bench.workloads import WORKLOADS, Workload
from hdet.controllers.horizon import COMES_DOWN
from hdet.history import SyncRecord
from hdet.probes.probe import Probe
from hdet.schedules.shapes import WarmStableDecay

__all__ = ["GUESSES", "Outcome", "demo", "story", "table", "verdict"]

#: From far too low to far too high. The second is torch's default, the third would be found by a sweep.
GUESSES = (1e-5, 1e-3, 1e-2, 1.0)
_WARM_UP = 0.05
_CLOSE = 1.15
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to; ``guess`` is None for AutoLR. ``lr`` is the highest learning rate it used."""

    guess: float | None
    lr: float
    held_out: float


def demo(
    console: Console, *, steps: int = 600, seed: int = 0, output: Path = Path("runs/demo")
) -> list[Outcome]:
    """Train five times, print the table, what AutoLR did window by window, and what it came to.

    Args:
        steps: of each run.
        seed: of weights and batches.
        output: folder of AutoLR's history (JSONL) and of the schedule it found (JSON), written anew.
    """
    workload = WORKLOADS["digits-mlp"]()
    path = output / "autolr.jsonl"
    path.unlink(missing_ok=True)
    output.mkdir(parents=True, exist_ok=True)
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn())
    outcomes: list[Outcome] = []
    with _silence(), Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=len(GUESSES) + 1)
        for guess in (*GUESSES, None):
            name = "AutoLR, no learning rate" if guess is None else f"AdamW at {guess:g}"
            progress.update(bar, description=name)
            outcomes.append(_train(workload, guess, steps, seed, path))
            progress.advance(bar)
        progress.update(bar, description=f"{len(outcomes)} runs done")
    console.print(table(outcomes, steps))
    console.print(story(history.read(path)))
    console.print(verdict(outcomes), highlight=False)
    console.print(
        f"History: {path}; the schedule it found, for a plain LambdaLR: {output / 'schedule.json'}",
        soft_wrap=True,
        highlight=False,
    )
    return outcomes


@contextmanager
def _silence() -> Iterator[None]:
    """What AutoLR says is in the history; on the terminal it would tear the progress bar."""
    logger = logging.getLogger("hdet")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _train(workload: Workload, guess: float | None, steps: int, seed: int, path: Path) -> Outcome:
    model = workload.build(seed).train()
    optimizer = AdamW(model.parameters(), lr=guess or 1e-3)
    auto = None if guess is not None else _auto(workload, model, optimizer, steps, seed, path)
    plain = None if auto is not None else LambdaLR(optimizer, _Guessed(steps))
    highest = 0.0
    for batch in islice(workload.batches(seed), steps):
        loss = workload.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        highest = max(highest, optimizer.param_groups[0]["lr"])
        if auto is not None:
            auto.step()
        elif plain is not None:
            plain.step()
    if auto is not None:
        auto.export(path.with_name("schedule.json"))
    return Outcome(guess, highest, workload.evaluate(model))


def _auto(
    workload: Workload, model: nn.Module, optimizer: Optimizer, steps: int, seed: int, path: Path
) -> AutoLR:
    unseen = list(islice(workload.probe(seed), 64))
    probe = Probe(lambda batch: workload.loss(model, batch), unseen, model=model)
    return AutoLR(optimizer, total_steps=steps, probe=probe, history=path)


class _Guessed:
    """The shape that AutoLR uses, with the usual warm-up, since a guess has none of its own."""

    def __init__(self, steps: int) -> None:
        self._shape = WarmStableDecay.of(steps)
        self._warm_up = max(1, round(_WARM_UP * steps))

    def __call__(self, step: int) -> float:
        return min(1.0, (step + 1) / self._warm_up) * self._shape(step)


def table(outcomes: Sequence[Outcome], steps: int) -> Table:
    """One line for each run."""
    best = min(_loss(outcome) for outcome in outcomes)
    view = Table(title=f"8×8 digits, an MLP, AdamW, {steps} steps", box=SIMPLE_HEAD)
    view.add_column("learning rate given", no_wrap=True)
    view.add_column("highest used", justify="right", no_wrap=True)
    view.add_column("held-out loss", justify="right", no_wrap=True)
    view.add_column("", no_wrap=True)
    for outcome in outcomes:
        loss = _loss(outcome)
        share = min(1.0, math.log1p(loss) / math.log(4)) if math.isfinite(loss) else 1.0
        bar = "█" * max(1, round(20 * share))
        given = "none: AutoLR" if outcome.guess is None else f"{outcome.guess:g}"
        style = "bold green" if outcome.guess is None else "" if loss <= _CLOSE * best else "dim"
        view.add_row(given, f"{outcome.lr:.2g}", f"{loss:.3f}", bar, style=style)
    return view


def story(records: Sequence[SyncRecord]) -> Table:
    """What AutoLR saw and did, a line for some of its windows."""
    view = Table(title="What AutoLR did, window by window", box=SIMPLE_HEAD)
    for heading in ("step", "learning rate", "loss at the mean", "lag", "tolerated"):
        view.add_column(heading, justify="right", no_wrap=True)
    view.add_column("", no_wrap=True)
    every = max(1, math.ceil(len(records) / _SHOWN))
    for record in records[(len(records) - 1) % every :: every]:
        seen = record.horizon[0]
        view.add_row(
            str(record.step),
            f"{record.hyperparameters[0].base_before:.2g}",
            *(_number(value) for value in (seen.loss_mean, seen.lag, seen.tolerated)),
            "comes down" if seen.why == COMES_DOWN else seen.why or seen.action,
        )
    return view


def verdict(outcomes: Sequence[Outcome]) -> str:
    """What the table says, computed from it."""
    auto = next(outcome for outcome in outcomes if outcome.guess is None)
    guessed = [outcome for outcome in outcomes if outcome.guess is not None]
    best = min(guessed, key=_loss)
    ahead = sum(_loss(auto) <= _loss(outcome) for outcome in guessed)
    return (
        f"Given no learning rate, AutoLR climbed to {auto.lr:.2g} and ended at {auto.held_out:.3f}; the best "
        f"of {len(guessed)} guesses, {best.guess:g}, at {best.held_out:.3f}. It was ahead of {ahead}. "
        "One seed: small differences are noise; hdet bench regret measures them."
    )


def _loss(outcome: Outcome) -> float:
    return outcome.held_out if math.isfinite(outcome.held_out) else math.inf


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "–"
