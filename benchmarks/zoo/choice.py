"""Which weights to return, ``python -m benchmarks.zoo.choice``: rules on all that AutoLR could have.

A row is a run of AutoLR on a cell of fit or dev: of all weights that it could have returned the losses that
choose, and the test loss. Beside them are two running means of the iterates: ``ema0.1``, exponential over a
tenth of the run, and ``descent``, of its last quarter, in which the rate decays. Every rule chooses from
the same rows, by all four batches, by each half of them, and by each alone. Excess is over the committed
sweep with the choice of weights, and no run counts for more than 1.

``--measure`` runs what is missing. The rows that are kept were made while AutoLR chose as in 0.2.0, which
says where a run returns to, and their running means were not reset where it went back.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks import machine
from benchmarks.pool import Say
from benchmarks.regret.trainer import Trainer
from benchmarks.rows import KeptRows, Row, six_digits
from benchmarks.zoo import runs
from benchmarks.zoo.analysis import analyse, excess
from benchmarks.zoo.catalogue import TASKS, cells
from benchmarks.zoo.command import can_run, run_missing, write_table
from benchmarks.zoo.families import part_of
from benchmarks.zoo.plan import Cell, Plan, Run, run_of
from benchmarks.zoo.prior import ROWS as SWEPT
from benchmarks.zoo.task import Setting
from hdet.autolr.best import BestWeights
from hdet.autolr.choice import Candidate, Choice, _compared
from hdet.probes import Probe
from hdet.probes.isolation import forked, trained_norms, weights_alone

__all__ = ["ROWS", "RULES", "Seen", "compare", "execute_measured", "main", "run", "seen_in"]

ROWS = Path(__file__).with_name("rows-choice.jsonl")
_PARTS, _SEEDS = ("fit", "dev"), 2
#: By so many batches: which of the four.
_BY = {"4": ((0, 1, 2, 3),), "2": ((0, 1), (2, 3)), "1": ((0,), (1,), (2,), (3,))}
#: The horizon of the exponential mean, and where the rate begins to decay, as shares of the run.
_HORIZON, _DESCENT = 0.1, 0.75


# ---------------------------------------------------------------------- the rules


class Seen(NamedTuple):
    """Weights that could have been returned, and their test loss, infinite where it was not finite."""

    candidate: Candidate
    test: float

    @property
    def loss(self) -> float:
        """Of the batches that choose."""
        return self.candidate.cost


#: From the candidates in their order, whose losses are finite, and the running means to what is returned.
Rule = Callable[[Sequence[Seen], Mapping[str, Seen]], Seen]


def _lowest(seen: Sequence[Seen], *more: Seen | None) -> Seen:
    return min((*seen, *filter(None, more)), key=lambda one: one.loss)


def _latest(share: float) -> Rule:
    """The latest that gives back no more than this share of what was gained."""

    def rule(seen: Sequence[Seen], means: Mapping[str, Seen]) -> Seen:
        low = _lowest(seen)
        given_back = share * (seen[0].loss - low.loss)
        return [one for one in seen if _compared(one.candidate, low.candidate)[0] <= given_back][-1]

    return rule


def _as_in_0_2_0(seen: Sequence[Seen], means: Mapping[str, Seen]) -> Seen:
    """The latest within an error of the lowest that gives back a fiftieth of the gain at most, and the end
    within one and a half."""
    low = _lowest(seen)

    def as_good(one: Seen) -> bool:
        worse, error = _compared(one.candidate, low.candidate)
        if one.candidate.kind == "end":
            return worse <= 1.5 * error
        return worse <= min(error, 0.02 * (seen[0].loss - low.loss))

    return [one for one in seen if as_good(one)][-1]


def _shrunk(seen: Sequence[Seen], means: Mapping[str, Seen]) -> Seen:
    """The lowest, each loss moved toward its neighbours' mean, at most halfway: as far as the noise explains
    the squared differences."""
    if len(seen) < 3:
        return _lowest(seen)
    moved = []
    for at, one in enumerate(seen):
        beside = [seen[k] for k in (at - 1, at + 1) if 0 <= k < len(seen)]
        compared = [_compared(one.candidate, other.candidate) for other in beside]
        noise = statistics.fmean(error**2 for _, error in compared)
        spread = statistics.fmean(worse**2 for worse, _ in compared)
        share = min(1.0, noise / spread) if spread else 1.0
        moved.append(one.loss + share / 2 * (statistics.fmean(other.loss for other in beside) - one.loss))
    return seen[moved.index(min(moved))]


def _as_it_is(seen: Sequence[Seen], means: Mapping[str, Seen]) -> Seen:
    """What hdet chooses."""
    choice, kept = Choice(), seen[0]
    for one in seen:
        choice, keep = choice.offered(one.candidate)
        kept = one if keep else kept
    return kept


RULES: Mapping[str, Rule] = {
    "the end": lambda seen, means: seen[-1],
    "the lowest": lambda seen, means: _lowest(seen),
    "as in 0.2.0": _as_in_0_2_0,
    "shrunk toward neighbours": _shrunk,
    **{f"the latest within {100 * share:g} %": _latest(share) for share in (0.001, 0.002, 0.005, 0.01, 0.02)},
    "as it is": _as_it_is,
    "the lowest, ema0.1 too": lambda seen, means: _lowest(seen, means.get("ema0.1")),
    "the lowest, descent too": lambda seen, means: _lowest(seen, means.get("descent")),
    "the best by the test loss": lambda seen, means: min(seen, key=lambda one: one.test),
}


def seen_in(row: Row, batches: Sequence[int] = _BY["4"][0]) -> tuple[list[Seen], dict[str, Seen]]:
    """The candidates of a run and its running means, by some of the batches; without those of which a loss
    that chooses is not finite."""

    def seen(step: int, kind: Any, losses: Sequence[float | None], test: float | None) -> Seen:
        some = tuple(_number(losses[batch]) for batch in batches)
        return Seen(Candidate(step, kind, some), _number(test))

    every = [seen(*one) for one in row["candidates"]]
    means = {name: seen(row["steps"], "mean", *one) for name, one in row["means"].items() if one}
    return (
        [one for one in every if math.isfinite(one.loss)],
        {name: one for name, one in means.items() if math.isfinite(one.loss)},
    )


def _number(value: float | None) -> float:
    return math.inf if value is None else value


# ---------------------------------------------------------------------- the table


def compare(rows: Sequence[Row], swept: Mapping[Cell, float]) -> dict[str, Any]:
    """The excess of every rule on each part, by four, two and one batches; a run that left nothing finite
    counts as having stayed where it began."""
    found: dict[str, dict[str, Any]] = {name: {} for name in RULES}
    for count, choices in _BY.items():
        values: dict[str, dict[str, list[float]]] = {name: {} for name in RULES}
        for row in rows:
            task, best = TASKS[row["task"]], swept[row["task"], row["optimizer"]]
            for seen, means in (seen_in(row, batches) for batches in choices):
                for name, rule in RULES.items():
                    test = rule(seen, means).test if seen else math.inf
                    above = excess(test if math.isfinite(test) else row["start"], best, task.floor)
                    values[name].setdefault(part_of(task.family), []).append(min(above, 1.0))
        for name, by_part in values.items():
            found[name][count] = {
                part: {"mean_to_one": statistics.fmean(some), "median": statistics.median(some)}
                for part, some in by_part.items()
            }
    return {"rules": six_digits(found)}


def _swept(some: Sequence[Cell]) -> dict[Cell, float]:
    """The loss of the sweep with the choice of weights; it was made on a GPU."""
    fixed = {one: row for one, row in KeptRows(SWEPT, run_of).finished.items() if one.method == "fixed"}
    lines = analyse(Plan(some, device="cuda"), fixed)["cells"]
    return {(line["task"], line["optimizer"]): line["sweep"]["test_chosen"]["loss"] for line in lines}


# ---------------------------------------------------------------------- the runs


def execute_measured(one: Run, steps: int | None = None) -> Row:
    """The candidates and the running means of a run of AutoLR, or its error. Nothing changes for the run."""
    candidates: list[list[Any]] = []
    means: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    offered, autolr = BestWeights.offer, runs._autolr

    def offer(best: BestWeights, candidate: Candidate, weights: Mapping[int, Tensor]) -> None:
        seen["probe"] = best.probe
        with _instead(best.probe.model, [(best._parameters[i], weight) for i, weight in weights.items()]):
            test = _test_loss(seen["setting"], best.probe, refresh=candidate.kind == "mean")
        candidates.append([candidate.step, candidate.kind, _finite(candidate.losses), *_finite([test])])
        offered(best, candidate, weights)

    def watched(one: Run, setting: Setting, steps: int, **given: Any) -> Trainer:
        seen["setting"] = setting
        trainer, running = autolr(one, setting, steps, **given), _Means(setting.model, steps)

        def after_step(loss: Tensor) -> object:
            before = len(trainer.events)
            answer = trainer.after_step(loss)
            running.add(reset=any(event.kind == "back" for event in trainer.events[before:]))
            return answer

        def finish() -> None:
            for name, weights in running.weights.items() if "probe" in seen else ():
                with _instead(setting.model, list(zip(running.trained, weights, strict=True))):
                    probe: Probe = seen["probe"]
                    losses = probe.losses(probe.halves()[0], refresh=True, of="choice")
                    test = _test_loss(setting, probe, refresh=True)
                if all(map(math.isfinite, (*losses, test))):
                    means[name] = [losses, test]

        return replace(trainer, after_step=after_step, finish=finish)

    with patch.object(BestWeights, "offer", offer), patch.object(runs, "_autolr", watched):
        row = runs.execute(one, steps)
    if "error" in row:
        return row
    told = {"steps": row["steps"], "start": row["start"], "candidates": candidates, "means": means}
    return {**asdict(one), **six_digits(told)}


class _Means:
    """Running means of the weights that are trained."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.weights: dict[str, list[Tensor]] = {}
        self._steps = steps
        self._taken = self._counted = 0

    def add(self, *, reset: bool) -> None:
        """One more iterate; or a ``reset``, where the weights were put back."""
        self._taken += 1
        if reset:
            self.weights, self._counted = {}, 0
            return
        self._lerp("ema0.1", -math.expm1(-1 / (_HORIZON * self._steps)))
        if self._taken > _DESCENT * self._steps:
            self._counted += 1
            self._lerp("descent", 1 / self._counted)

    def _lerp(self, name: str, share: float) -> None:
        now = [parameter.detach() for parameter in self.trained]
        if name in self.weights:
            torch._foreach_lerp_(self.weights[name], now, share)
        else:
            self.weights[name] = [weight.clone() for weight in now]


@contextmanager
def _instead(model: nn.Module, given: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Parameters with other weights; afterwards they have their own, and the random state is as it was."""
    before = [own.detach().clone() for own, _ in given]
    with forked(model), torch.no_grad():
        try:
            for own, weight in given:
                own.copy_(weight)
            yield
        finally:
            for (own, _), weight in zip(given, before, strict=True):
                own.copy_(weight)


def _test_loss(setting: Setting, probe: Probe, *, refresh: bool) -> float:
    """As the weights would be returned: a mean gets its running statistics from the batches that choose."""
    norms = trained_norms(setting.model)
    with weights_alone(setting.model, deployed=True):
        if refresh:
            probe.refresh_norms_(probe.halves()[0], norms)
        return runs.mean_loss(setting, setting.test)


def _finite(losses: Sequence[float]) -> list[float | None]:
    return [float(loss) if math.isfinite(loss) else None for loss in losses]


# ---------------------------------------------------------------------- the command


def run(
    measure: bool = False,
    device: str = "cuda",
    processes: int | None = None,
    minutes: float | None = None,
    rows: Path = ROWS,
    say: Say = print,
) -> dict[str, Any]:
    """Compare all that is in ``rows``; first ``measure`` what is not, for so many ``minutes``. Plain JSON."""
    done: KeptRows[Run] = KeptRows(rows, run_of)
    asked = Plan([cell for part in _PARTS for cell in cells(part)], seeds=_SEEDS, device=device)
    if measure:
        here = _runs(asked, can_run(asked.cells, say))
        run_missing(
            lambda: here,
            done,
            execute_measured,
            lambda row: f"{run_of(row)}: {row.get('error') or len(row['candidates'])}",
            device=device,
            processes=processes,
            minutes=minutes,
            say=say,
        )
    wanted, swept = _runs(asked, asked.cells), _swept(asked.cells)
    failed = {f"{one}: {done.failed[one]['error']}" for one in wanted if one in done.failed}
    kept = [done.finished[one] for one in wanted if one in done.finished]
    return {
        **machine.about("zoo-choice", quick=False, device=device),
        "command": f"python -m benchmarks.zoo.choice --device {device}",
        "settings": {"parts": list(_PARTS), "cells": len(asked.cells), "seeds": _SEEDS},
        "missing_runs": len(wanted) - len(kept),
        "errors": sorted(failed),
        **compare(kept, swept),
    }


def _runs(plan: Plan, some: Sequence[Cell]) -> list[Run]:
    return [plan.run("autolr", cell, seed) for seed in range(plan.seeds) for cell in some]


def main() -> None:
    """Compare, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="run what is missing first")
    parser.add_argument("--device", default="cuda", help="where to train, and whose rows to compare")
    write_table("zoo-choice", parser, run, ROWS)


if __name__ == "__main__":
    main()
