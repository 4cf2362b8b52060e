"""What hdet does, in about a minute: a language model without a learning rate, then replicas find the rest.

First one process: a bad guess, the rate that a sweep would find, and AutoLR, which is given none; weights,
steps and batches are the same. Then four real replicas on digits so few, a fifth of them with wrong labels,
that they are learned by heart: AutoTune finds rate, weight decay and the end. The plain run beside it sees as
many samples as they do.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from hdet.auto_lr import AutoLR
from hdet.auto_tune import AutoTune
from hdet.bench.workloads import Batch, Workload, digits
from hdet.bench.workloads.base import ByNumber
from hdet.demos import text
from hdet.demos.progress import Progress
from hdet.hyperparameters import WeightDecay
from hdet.probes.probe import Probe
from hdet.replicas.launch import LocalProcesses
from hdet.report.page import sources, write
from hdet.schedules.shapes import WarmStableDecay

__all__ = ["Outcome", "demo", "table", "verdict"]

#: Of four half-decades, over 500 steps, 3.2e-3 had the lowest held-out loss (docs/log.md); 0.1 is a guess.
BAD, TUNED = 0.1, 3.2e-3
REPLICAS = 4
_WARM_UP = 0.05
_REPORT_EVERY = 25


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to. ``given`` is what it was told, ``found`` what it found, in words."""

    task: str
    given: str
    found: str
    steps: int
    test_loss: float


def demo(
    console: Console,
    *,
    steps: int = 400,
    replica_steps: int = 1000,
    seed: int = 0,
    output: Path = Path("runs/demo"),
    timeout: float = 300.0,
) -> list[Outcome]:
    """Train five times, print one table and one sentence, and write the report.

    Args:
        steps: of each run of the language model.
        replica_steps: the budget on the digits; AutoTune ends earlier where nothing improves.
        seed: of weights and batches.
        output: folder of the histories and of the report, written anew.
        timeout: the longest that the replicas may take, in seconds.
    """
    output.mkdir(parents=True, exist_ok=True)
    histories = [output / "autolr.jsonl", output / "autotune.jsonl"]
    for path in histories:
        path.unlink(missing_ok=True)
    torch.set_num_threads(1)  # tiny models: threads would wait for each other
    _be_silent()
    total = 3 * steps + 2 * replica_steps
    with Progress(console, total) as progress:
        outcomes = _language_model(steps, seed, histories[0], progress)
        outcomes += _digits(replica_steps, seed, histories[1], timeout, progress)
    found = [source.read() for source in sources(histories)]
    write(found, output / "report.html")
    console.print(table(outcomes))
    console.print(verdict(outcomes), highlight=False)
    console.print(f"The report: {output / 'report.html'}", soft_wrap=True, highlight=False)
    return outcomes


def _be_silent() -> None:
    """What is said is in the histories; on the terminal it would tear the progress line."""
    logging.getLogger("hdet").setLevel(logging.ERROR)


# ---------------------------------------------------------------------- one process, no learning rate


def _language_model(steps: int, seed: int, path: Path, progress: Progress) -> list[Outcome]:
    work = text.make()
    outcomes = []
    for rate, name in ((BAD, "a bad guess"), (TUNED, "the tuned rate")):
        model = work.build(seed).train()
        progress.begin(f"{work.name}: {name}, {rate:g}")
        _plain(model, work, rate, islice(work.batches(seed), steps), steps, progress)
        outcomes.append(Outcome(work.name, f"rate {rate:g} ({name})", "–", steps, work.evaluate(model)))
    progress.begin(f"{work.name}: AutoLR, no rate given")
    model = work.build(seed).train()
    optimizer = AdamW(model.parameters())
    auto = AutoLR(optimizer, total_steps=steps, probe=_probe(work, model, seed), history=path)
    highest = 0.0
    for batch in progress.over(islice(work.batches(seed), steps)):
        _step(model, work, optimizer, batch)
        highest = max(highest, auto.get_last_lr()[0])
        auto.step()
        if auto.finished:
            break
    auto.finish_()
    auto.export(path.with_name("schedule.json"))
    found = f"rate up to {highest:.2g}"
    return [*outcomes, Outcome(work.name, "nothing: AutoLR", found, auto.steps, work.evaluate(model))]


def _probe(work: Workload, model: nn.Module, seed: int) -> Probe:
    return Probe(lambda batch: work.loss(model, batch), ByNumber(work.probe(seed)), model=model)


def _step(model: nn.Module, work: Workload, optimizer: AdamW, batch: Batch) -> None:
    optimizer.zero_grad()
    work.loss(model, batch).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _plain(
    model: nn.Module, work: Workload, rate: float, batches: Iterator[Batch], steps: int, progress: Progress
) -> None:
    """The shape that AutoLR has, with the usual warm-up, since a guess has none of its own."""
    optimizer = AdamW(model.parameters(), lr=rate)
    shape, warm_up = WarmStableDecay.of(steps), max(1, round(_WARM_UP * steps))
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warm_up) * shape(step))
    for batch in progress.over(batches):
        _step(model, work, optimizer, batch)
        schedule.step()


# ---------------------------------------------------------------------- four replicas, no decay, no end


def _digits(most: int, seed: int, path: Path, timeout: float, progress: Progress) -> list[Outcome]:
    """The replicas say how many steps it takes; the plain run is given as many."""
    task = f"digits, few and noisy, {REPLICAS} batches a step"
    progress.begin(f"Digits, few and noisy: AutoTune, {REPLICAS} replicas")
    with LocalProcesses(REPLICAS) as ranks:
        arguments = (task, most, seed, str(path))
        tuned: Outcome = ranks.run(
            train_replica, *arguments, timeout=timeout, on_report=lambda _, done: progress.advance(done)
        )[0]
    progress.begin("Digits, few and noisy: AdamW as torch makes it")
    work = digits.make_noisy()
    model = work.build(seed).train()
    streams = [work.batches(_stream(seed, rank)) for rank in range(REPLICAS)]
    together = (tuple(map(torch.cat, zip(*batches, strict=True))) for batches in zip(*streams, strict=True))
    _plain(model, work, 1e-3, islice(together, tuned.steps), tuned.steps, progress)
    given = "rate 0.001, decay 0.01 (torch's own)"
    return [Outcome(task, given, "–", tuned.steps, work.evaluate(model)), tuned]


def _stream(seed: int, rank: int) -> int:
    return 1000 * seed + rank


def train_replica(
    rank: int, task: str, most: int, seed: int, path: str, report: Callable[[int], None]
) -> Outcome:
    """One replica, in a process of its own, on batches of its own; rank 0 reports and writes the history."""
    _be_silent()
    work = digits.make_noisy()
    model = work.build(seed).train()
    optimizer = AdamW(model.parameters())
    tune = AutoTune(
        optimizer,
        [WeightDecay()],
        probe=_probe(work, model, seed),
        total_steps=most,
        gradients="none",
        history=path,
    )
    highest = 0.0
    for step, batch in enumerate(islice(work.batches(_stream(seed, rank)), most), 1):
        _step(model, work, optimizer, batch)
        highest = max(highest, tune.get_last_lr()[0])
        tune.step()
        if rank == 0 and step % _REPORT_EVERY == 0:
            report(_REPORT_EVERY)
        if tune.finished:
            break
    tune.finish_()
    end = f", the end at {tune.steps}" if tune.steps < most else ""
    found = f"rate up to {highest:.2g}, decay {tune.values['weight_decay']:.2g}{end}"
    return Outcome(task, f"nothing: AutoTune, {REPLICAS} replicas", found, tune.steps, work.evaluate(model))


# ---------------------------------------------------------------------- what it came to


def table(outcomes: Sequence[Outcome]) -> Table:
    """One line for each run."""
    view = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("task", "given", "found"):
        view.add_column(heading, overflow="fold")
    for heading in ("steps", "test loss"):
        view.add_column(heading, justify="right", no_wrap=True)
    before = ""
    for outcome in outcomes:
        name = outcome.task if outcome.task != before else ""
        before = outcome.task
        loss = f"{outcome.test_loss:.3f}" if math.isfinite(outcome.test_loss) else "not finite"
        style = "bold" if outcome.given.startswith("nothing") else ""
        view.add_row(name, outcome.given, outcome.found, f"{outcome.steps:,}", loss, style=style)
    return view


def verdict(outcomes: Sequence[Outcome]) -> str:
    """What the table says, computed from it."""
    bad, tuned, auto, plain, tune = outcomes
    return (
        f"Given no learning rate, AutoLR ended at {auto.test_loss:.3f}, {_beside(auto, tuned)} the tuned "
        f"rate's {tuned.test_loss:.3f} (the bad guess: {bad.test_loss:.3f}); {REPLICAS} replicas, given "
        f"nothing, ended at step {tune.steps:,} with {tune.test_loss:.3f}, {_beside(tune, plain)} the "
        f"{plain.test_loss:.3f} of a plain run on as many samples; one seed, so small differences are noise."
    )


def _beside(one: Outcome, other: Outcome) -> str:
    apart = one.test_loss / other.test_loss - 1
    if not math.isfinite(apart):
        return "not to be compared with"
    return f"{abs(apart):.1%} {'above' if apart > 0 else 'below'}"
