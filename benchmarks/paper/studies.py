"""The studies, as docs/protocols/paper.md has them: what is trained, and what came of it.

Every cell is one setting over all its seeds: its losses on training samples (the mean of the last 5 % of the
steps), on held-out samples, and, where answers are yes or no, its AUC and normalised entropy there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from benchmarks.metrics import auc, normalised_entropy
from benchmarks.paper import stream
from benchmarks.paper.courses import course
from benchmarks.paper.edge import crashed, edge_shift, half_crashed
from benchmarks.paper.fleet import Course, Run, mean_losses, train

__all__ = ["STUDIES", "against", "averaging", "edge", "eight", "large", "parts"]

Cell = dict[str, Any]
Say = Callable[[str], None]
#: α and σ of the paper, and σ of its code.
SPREAD, SIGMA, CODE_SIGMA = 1 / 9, 0.1, 0.002
_LAST = 0.05
_APART = 1.12
#: So many samples hold the activations of so many rows at once.
_SAMPLES_AT_ONCE = 1 << 16


def run_all(of: Course, runs: Sequence[Run], *, windows: int = 0) -> list[dict[str, float]]:
    """What came of each run, in their order; those with N, T and a start in common train together."""
    found: dict[Run, dict[str, float]] = {}
    kinds: dict[tuple[int, int, bool], list[Run]] = {}
    for run in dict.fromkeys(runs):
        kinds.setdefault((run.replicas, run.sync_every, run.warm), []).append(run)
    rows = len(next(of.batches(0))[0])
    for (replicas, _, _), some in kinds.items():
        at_once = max(1, _SAMPLES_AT_ONCE // max(1, rows // replicas))
        trained = train(of, some, windows=windows, rows_at_once=at_once)
        last = max(1, round(_LAST * of.steps))
        train_loss = trained.losses[:, -last:].mean(1)
        held_out = mean_losses(of, trained.weights, of.held_out)
        best = held_out if trained.best is None else mean_losses(of, trained.best, of.held_out)
        answers = _answers(of, trained.weights)
        for place, run in enumerate(some):
            found[run] = {
                "train": float(train_loss[place]),
                "held_out": float(held_out[place]),
                "best_mean": float(best[place]),
                "final_rate": float(trained.rates[place].mean()),
                **{name: float(values[place]) for name, values in answers.items()},
            }
    return [found[run] for run in runs]


def _answers(of: Course, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """AUC and NE over the held-out samples, the mean of all answers; nothing where there are none."""
    if of.outputs is None:
        return {}
    model = of.build(0)
    logits, targets = [], []
    for *seen, target in of.held_out:

        def forward(these: dict[str, Tensor], seen: list[Tensor] = seen) -> Tensor:
            answer: Tensor = functional_call(model, these, tuple(seen))
            return answer

        with torch.no_grad():
            logits.append(vmap(forward, chunk_size=64)(dict(weights)).cpu())
        targets.append(target.cpu())
    scores, labels = torch.cat(logits, 1), torch.cat(targets)
    return {"auc": auc(scores, labels).mean(-1), "ne": normalised_entropy(scores, labels).mean(-1)}


def over_seeds(run: Run, seeds: int) -> list[Run]:
    """The run with every seed."""
    return [replace(run, seed=seed) for seed in range(seeds)]


def cells(of: Course, arms: Mapping[str, Run], seeds: int, *, windows: int = 0) -> list[Cell]:
    """One cell for each arm, over seeds."""
    every = [run for run in arms.values() for run in over_seeds(run, seeds)]
    results = iter(run_all(of, every, windows=windows))
    found = []
    for name, run in arms.items():
        rows = [next(results) for _ in range(seeds)]
        setting = {key: value for key, value in asdict(run).items() if key != "seed"}
        columns = {key: [_plain(row[key]) for row in rows] for key in rows[0]}
        found.append({"course": of.name, "arm": name, **setting, "seeds": seeds, **columns})
    return found


def _plain(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


# ---------------------------------------------------------------------- the edge


def edge(device: str, say: Say, *, quick: bool = False) -> dict[str, Any]:
    """Whether fan-out or auto-LR moves the rate at which training crashes."""
    seeds = 3 if quick else 24
    plans: dict[str, tuple[str, int, Sequence[int], float, float]]
    plans = {"digits": ("sgd", 4, (10, 100), 0.1, 10.0), "kuairand": ("adam", 8, (5, 100), 1e-3, 1.0)}
    found = {}
    for name, (optimizer, replicas, intervals, low, high) in plans.items():
        if quick and name == "kuairand":
            continue  # nothing of it can be learnt in so few steps
        of = course(name, device, optimizer)
        if quick:
            of, intervals, low = replace(of, steps=60), intervals[:1], 0.3
        found[name] = _edge(of, seeds, replicas, intervals, low, high, say)
    return found


def _edge(
    of: Course, seeds: int, replicas: int, intervals: Sequence[int], low: float, high: float, say: Say
) -> dict[str, Any]:
    """First plain runs over the whole range, then all arms at eight rates around where half of them crash."""
    steps = math.ceil(math.log(high / low) / math.log(1.25))
    coarse = [low * 1.25**k for k in range(steps + 1)]
    plain = Run(0.0, 0, replicas=1, sync_every=10**9)
    swept = cells(of, {f"{lr:.4g}": replace(plain, lr=lr) for lr in coarse}, seeds)
    best = [min(_number(cell["train"][seed]) for cell in swept) for seed in range(seeds)]
    shares = [statistics.fmean(_crashes(cell, best, of.blind)) for cell in swept]
    say(
        f"{of.name}: plain runs crash in "
        + ", ".join(f"{s:.2f} at {r:.3g}" for r, s in zip(coarse, shares, strict=True))
    )
    middle = half_crashed(coarse, shares)
    rates = [middle * _APART ** (k - 3.5) for k in range(8)]
    of_fan = {"fan-out": None, "σ = 0.1": SIGMA, "σ = 0.002": CODE_SIGMA}
    result: dict[str, Any] = {"blind": of.blind, "plain_sweep": swept, "middle": middle, "rates": rates}
    plains = cells(of, {f"plain {lr:.5g}": replace(plain, lr=lr) for lr in rates}, seeds)
    by_interval = {}
    for every in intervals:
        fan = Run(0.0, 0, replicas=replicas, sync_every=every, spread=SPREAD)
        arms = {
            f"{name} {lr:.5g}": replace(fan, lr=lr, sigma=sigma)
            for name, sigma in of_fan.items()
            for lr in rates
        }
        found = cells(of, arms, seeds)
        groups = {"plain": plains, **{name: found[8 * k : 8 * k + 8] for k, name in enumerate(of_fan)}}
        crashes = {
            name: [list(one) for one in zip(*(_crashes(cell, best, of.blind) for cell in some), strict=True)]
            for name, some in groups.items()
        }
        by_interval[str(every)] = {
            "shifts": edge_shift(rates, crashes, "plain"),
            "crashed": {
                name: [sum(_crashes(cell, best, of.blind)) for cell in some] for name, some in groups.items()
            },
            "held_out": _below_the_edge(groups, best, of.blind),
        }
        say(f"{of.name}, T = {every}: {by_interval[str(every)]['shifts']}")
    return {**result, "intervals": by_interval, "seeds": seeds, "replicas": replicas}


def _below_the_edge(groups: Mapping[str, list[Cell]], best: Sequence[float], blind: float) -> dict[str, Any]:
    """Held-out losses of runs that survived in both, against plain, at each rate."""
    found = {}
    for name, some in groups.items():
        ratios = []
        for cell, plain in zip(some, groups["plain"], strict=True):
            lost = [
                a or b for a, b in zip(_crashes(cell, best, blind), _crashes(plain, best, blind), strict=True)
            ]
            ratios += [
                math.log(mine / other)
                for mine, other, gone in zip(cell["held_out"], plain["held_out"], lost, strict=True)
                if not gone and mine and other
            ]
        if name != "plain":
            found[name] = _interval(ratios)
    return found


def _crashes(cell: Cell, best: Sequence[float], blind: float) -> list[bool]:
    return [crashed(_number(loss), lowest, blind) for loss, lowest in zip(cell["train"], best, strict=True)]


def _number(value: float | None) -> float:
    return math.inf if value is None else value


# ---------------------------------------------------------------------- Eq. 8 as printed


def eight(device: str, say: Say, *, quick: bool = False) -> dict[str, Any]:
    """Eq. 8 as printed with f_div/f_final = 25/5: what its residual rate does, and what the vote adds."""
    scale, seeds = ("tiny", 1) if quick else ("gpu", 5)
    found = []
    for name, intervals in (("kuairand", (5, 50)), ("charlm", (16, 200))):
        of = course(name, device, scale=scale)
        for lr in (1e-4, 9e-4):
            of_steps = {every: _equation_eight(lr, every) for every in intervals}
            once = {
                "OneCycle": Run(lr, 0, replicas=1, sync_every=10**9),
                "OneCycle to the same rate": Run(
                    lr, 0, replicas=1, sync_every=10**9, final_div=_same_floor()
                ),
            }
            arms = {**once, **{arm: run for some in of_steps.values() for arm, run in some.items()}}
            found += cells(of, arms, seeds)
            say(
                f"{name} at {lr:g}: "
                + ", ".join(f"{c['arm']} {_mean(c['held_out']):.4f}" for c in found[-len(arms) :])
            )
    return {"cells": found, "against": against(found, "OneCycle"), "seeds": seeds}


def _equation_eight(lr: float, every: int) -> dict[str, Run]:
    literal = Run(lr, 0, sync_every=every, sigma=SIGMA, decay="literal", final_div=5.0)
    return {
        f"Eq. 8, no vote, T = {every}": replace(literal, step_size=0.0),
        f"Eq. 8, σ = 0.1, T = {every}": replace(literal, spread=SPREAD),
        f"Eq. 8, σ = 0.002, T = {every}": replace(literal, spread=SPREAD, sigma=CODE_SIGMA),
    }


def _same_floor() -> float:
    """f_final of a OneCycle that ends at a fifth of its peak, about where Eq. 8 with 25/5 does."""
    return 1 / (25.0 * 0.2)


# ---------------------------------------------------------------------- T, reassignment, noise


def parts(device: str, say: Say, *, quick: bool = False) -> dict[str, Any]:
    """T up to the paper's divergence, reassignment and the noise of the warm start, one at a time."""
    scale, seeds = ("tiny", 2) if quick else ("gpu", 6)
    of = course("feed", device, scale=scale)
    found = []
    for lr in (9e-4, 3e-3):
        cold = Run(lr, 0, replicas=1, sync_every=10**9)
        arms = {"plain": cold}
        for every in (5, 10) if quick else (25, 250, 1000):
            fan = Run(lr, 0, sync_every=every, spread=SPREAD)
            arms |= {f"fan-out, T = {every}": fan, f"full, T = {every}": replace(fan, sigma=SIGMA)}
        full = Run(lr, 0, sync_every=10 if quick else 250, spread=SPREAD, sigma=SIGMA)
        arms |= {
            "reassigned from S_w on": replace(full, reassign="from S_w"),
            "never reassigned": replace(full, reassign="never"),
        }
        found += cells(of, arms, seeds)
        warm = {
            "plain from the checkpoint": replace(cold, warm=True),
            "full from the checkpoint": replace(full, warm=True),
            "full from the checkpoint, with noise": replace(full, warm=True, noise=0.01),
        }
        found += cells(of, warm, seeds)
        say(
            f"feed at {lr:g}: "
            + ", ".join(f"{c['arm']} {_mean(c['held_out']):.4f}" for c in found[-len(arms) - 3 :])
        )
    return {
        "cells": found,
        "against": against(found, "plain"),
        "against_checkpoint": against(found, "plain from the checkpoint"),
        "against_full": against(found, f"full, T = {10 if quick else 250}"),
        "against_noiseless": against(found, "full from the checkpoint"),
        "seeds": seeds,
    }


# ---------------------------------------------------------------------- one large run


def large(device: str, say: Say, *, quick: bool = False) -> dict[str, Any]:
    """A table of fifty million weights, T = 1000, 20,000 steps of a stream that drifts, from a checkpoint."""
    items, steps, every, seeds = (1000, 40, 10, 2) if quick else (stream.ITEMS, 20_000, 1000, 2)
    before = stream.make(device, steps=steps // 10, rows=512, items=items)
    kept = {}
    for seed in range(seeds):
        weights = train(before, [Run(9e-4, seed, replicas=1)]).weights
        kept[seed] = {name: rows[0] for name, rows in weights.items()}
    of = stream.make(device, steps=steps, rows=512, items=items, begin=steps // 10)
    of = replace(of, checkpoint=kept.__getitem__)
    plain = Run(9e-4, 0, replicas=1, sync_every=10**9, warm=True)
    full = Run(9e-4, 0, sync_every=every, spread=SPREAD, sigma=SIGMA, warm=True, noise=0.01)
    arms = {
        "plain": plain,
        "plain to a fifth of the peak": replace(plain, final_div=_same_floor()),
        "full": full,
        "full, as printed": replace(full, decay="literal", final_div=5.0, reassign="from S_w"),
    }
    found = cells(of, arms, seeds)
    say("stream: " + ", ".join(f"{cell['arm']} {_mean(cell['train']):.5f}" for cell in found))
    count = sum(p.numel() for p in of.build(0).parameters())
    return {
        "cells": found,
        "against": against(found, "plain", "train", "train"),
        "steps": steps,
        "weights": count,
        "blind": of.blind,
        "seeds": seeds,
    }


# ---------------------------------------------------------------------- where it helps


def averaging(device: str, say: Say, *, quick: bool = False) -> dict[str, Any]:
    """Fan-out below the edge, against plain runs, and against plain runs with the best window mean."""
    seeds = 2 if quick else 24
    plans: list[tuple[str, str, Sequence[float], Sequence[int], Sequence[int]]] = [
        ("digits", "sgd", (0.05, 0.15, 0.42), (10, 50, 200), (4, 8, 16)),
        ("digits", "adam", (1e-3, 3e-3, 1e-2), (10, 50, 200), (4, 8, 16)),
        ("few digits", "adam", (1e-3, 3e-3, 1e-2), (10, 50, 200), (4, 8, 16)),
        ("kuairand", "adam", (1e-3, 3e-3, 1e-2), (5, 50), (8,)),
    ]
    found = []
    for name, optimizer, rates, intervals, sizes in plans[:1] if quick else plans:
        of = course(name, device, optimizer)
        if quick:
            of, rates, intervals, sizes = replace(of, steps=40), rates[:1], intervals[:1], sizes[:1]
        for lr in rates:
            arms = {"plain": Run(lr, 0, replicas=1, sync_every=10**9)}
            for every in intervals:
                for size in sizes:
                    for spread in (SPREAD, 0.25, 0.5):
                        arms[f"α = {spread:.2g}, T = {every}, N = {size}"] = Run(
                            lr, 0, replicas=size, sync_every=every, spread=spread
                        )
            some = cells(of, arms, seeds, windows=20)
            found += [{**cell, "course": f"{name}, {optimizer}"} for cell in some]
            say(f"{name} {optimizer} at {lr:g} done")
    return {
        "cells": found,
        "last": against(found, "plain"),
        "best_mean": against(found, "plain", "best_mean", "best_mean"),
        "last_to_best_mean": against(found, "plain", "held_out", "best_mean"),
        "seeds": seeds,
    }


# ---------------------------------------------------------------------- what came of it


def against(
    found: Sequence[Cell], other: str, column: str = "held_out", others: str = "held_out"
) -> list[Cell]:
    """Each cell's loss over that of the arm ``other`` of the same course and rate, seed by seed."""
    known = {(cell["course"], cell["lr"]): cell for cell in found if cell["arm"] == other}
    lines = []
    for cell in found:
        reference = known.get((cell["course"], cell["lr"]))
        if reference is None or (cell is reference and column == others):
            continue
        ratios = [
            math.log(mine / theirs)
            for mine, theirs in zip(cell[column], reference[others], strict=True)
            if mine and theirs
        ]
        lines.append({**{key: cell[key] for key in ("course", "arm", "lr")}, **_interval(ratios)})
    return lines


def _interval(ratios: Sequence[float]) -> dict[str, Any]:
    """The mean difference as a share, and half of its 95 % interval over seeds."""
    if len(ratios) < 2:
        return {"mean": None, "half": None, "ahead": 0, "runs": len(ratios)}
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return {
        "mean": math.expm1(statistics.fmean(ratios)),
        "half": _STUDENT.get(len(ratios), 1.98) * error,
        "ahead": sum(ratio < 0 for ratio in ratios),
        "runs": len(ratios),
    }


#: The 97.5 % quantile of Student's t for so many values.
_STUDENT = {2: 12.7, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 12: 2.20, 24: 2.07}


def _mean(values: Sequence[float | None]) -> float:
    return statistics.fmean(_number(value) for value in values)


STUDIES: dict[str, Callable[..., dict[str, Any]]] = {
    "edge": edge,
    "eq8": eight,
    "parts": parts,
    "large": large,
    "averaging": averaging,
}
