"""The studies, as PROTOCOL.md has them: what is trained, and what came of it.

Every cell is one setting over all its seeds: its losses on training samples (the mean of the last 5 % of the
steps), on held-out samples, and, where answers are yes or no, its AUC and normalised entropy there.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.metrics import auc, normalised_entropy
from benchmarks.paper import stream
from benchmarks.paper.courses import course
from benchmarks.paper.edge import crashed, edge_shift, half_crashed
from benchmarks.paper.fleet import Course, Run, mean_losses, train

__all__ = ["STUDIES", "Cell", "Study", "against"]

Cell = dict[str, Any]
#: α and σ of the paper, and σ of its code.
SPREAD, SIGMA, CODE_SIGMA = 1 / 9, 0.1, 0.002
_LAST = 0.05
_APART = 1.12
#: So many samples hold the activations of so many rows at once.
_SAMPLES_AT_ONCE = 1 << 16


def run_all(of: Course, runs: Sequence[Run], *, windows: int = 0) -> list[dict[str, float]]:
    """What came of each run, in their order; those with N in common train together."""
    found: dict[Run, dict[str, float]] = {}
    kinds: dict[int, list[Run]] = {}
    for run in dict.fromkeys(runs):
        kinds.setdefault(run.replicas, []).append(run)
    rows = len(next(of.batches(0))[0])
    for replicas, some in kinds.items():
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

        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            logits.append(vmap(forward, chunk_size=64)(dict(weights)).cpu())
        targets.append(target.cpu())
    scores, labels = torch.cat(logits, 1), torch.cat(targets)
    return {"auc": auc(scores, labels).mean(-1), "ne": normalised_entropy(scores, labels).mean(-1)}


def cells(of: Course, arms: Mapping[str, Run], seeds: int, *, windows: int = 0) -> list[Cell]:
    """One cell for each arm, over seeds."""
    return _named(of, {(name, run.lr): run for name, run in arms.items()}, seeds, windows=windows)


def _named(of: Course, arms: Mapping[tuple[str, float], Run], seeds: int, *, windows: int = 0) -> list[Cell]:
    """The same where arms have several rates."""
    every = [replace(run, seed=seed) for run in arms.values() for seed in range(seeds)]
    results = iter(run_all(of, every, windows=windows))
    found = []
    for (name, _), run in arms.items():
        rows = [next(results) for _ in range(seeds)]
        setting = {key: value for key, value in asdict(run).items() if value != _USUAL[key] or key in _KEPT}
        columns = {key: [_plain(row[key]) for row in rows] for key in rows[0]}
        if not windows:
            del columns["best_mean"]
        if run.sigma is None:
            del columns["final_rate"]  # the curve's own
        found.append({"course": of.name, "arm": name, **setting, "seeds": seeds, **columns})
    return found


#: What a cell says of its setting where it is the usual one, too.
_KEPT = ("lr", "replicas", "spread", "sync_every")
_USUAL = {**asdict(Run(0.0, 0)), "seed": 0}


def _plain(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


# ---------------------------------------------------------------------- the edge


#: By course: the optimizer, N, T, and between which rates plain runs are swept.
_EDGES: dict[str, tuple[Literal["adam", "sgd"], int, tuple[int, ...], float, float]] = {
    "digits": ("sgd", 4, (10, 100), 0.1, 2.0),
    "kuairand": ("adam", 8, (5, 100), 3e-3, 1.0),
}


def edge(name: str, device: str, quick: bool) -> list[Cell]:
    """Plain runs over a range of rates, then all arms at eight rates around where half of the plain crash."""
    optimizer, replicas, intervals, low, high = _EDGES[name]
    of, seeds = course(name, device, optimizer), 24
    if quick:
        of, seeds, low = replace(of, steps=60), 3, 0.3
    plain = Run(0.0, 0, replicas=1, sync_every=10**9)
    rates = [low * 1.25**k for k in range(1 + math.ceil(math.log(high / low, 1.25)))]
    swept = cells(of, {f"swept {lr:.5g}": replace(plain, lr=lr) for lr in rates}, seeds)
    best = _best(swept)
    shares = [statistics.fmean(_crashes(cell, best, of.blind)) for cell in swept]
    print("plain runs crash in", ", ".join(f"{s:.2f} at {r:.3g}" for r, s in zip(rates, shares, strict=True)))
    middle = half_crashed(rates, shares)
    arms = {}
    for lr in (middle * _APART ** (k - 3.5) for k in range(8)):
        arms["plain", lr] = replace(plain, lr=lr)
        for every in intervals:
            fan = Run(lr, 0, replicas=replicas, sync_every=every, spread=SPREAD)
            for arm, sigma in (("fan-out", None), ("σ = 0.1", SIGMA), ("σ = 0.002", CODE_SIGMA)):
                arms[f"{arm}, T = {every}", lr] = replace(fan, sigma=sigma)
    return [{**cell, "blind": of.blind} for cell in [*swept, *_named(of, arms, seeds)]]


def edge_told(found: Sequence[Cell]) -> dict[str, Any]:
    """The shift of each arm's edge, by course; and the held-out losses of runs that survived in both."""
    told = {}
    for name in dict.fromkeys(cell["course"] for cell in found):
        here = [cell for cell in found if cell["course"] == name]
        blind = here[0]["blind"]
        best = _best([cell for cell in here if cell["arm"].startswith("swept")])
        groups: dict[str, list[Cell]] = {}
        for cell in here:
            if not cell["arm"].startswith("swept"):
                groups.setdefault(cell["arm"], []).append(cell)
        crashes = {arm: [_crashes(cell, best, blind) for cell in some] for arm, some in groups.items()}
        by_seed = {arm: [list(one) for one in zip(*some, strict=True)] for arm, some in crashes.items()}
        told[name] = {
            "rates": [cell["lr"] for cell in groups["plain"]],
            "crashed": {arm: [sum(one) for one in some] for arm, some in crashes.items()},
            "shifts": edge_shift([cell["lr"] for cell in groups["plain"]], by_seed, "plain"),
            "held_out": _below_the_edge(groups, best, blind),
            "seeds": here[0]["seeds"],
        }
    return told


def _best(swept: Sequence[Cell]) -> list[float]:
    """The lowest training loss of each seed's plain runs."""
    return [min(_number(cell["train"][seed]) for cell in swept) for seed in range(swept[0]["seeds"])]


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


#: By course: T.
_EIGHTS = {"kuairand": (5, 50), "charlm": (16, 200)}


def eight(name: str, device: str, quick: bool) -> list[Cell]:
    """Eq. 8 as printed with f_div/f_final = 25/5, with a vote and without, and OneCycle to the same rate."""
    of = course(name, device, scale="tiny" if quick else "gpu")
    arms: dict[tuple[str, float], Run] = {}
    for lr in (1e-4, 9e-4):
        plain = Run(lr, 0, replicas=1, sync_every=10**9)
        arms["OneCycle", lr] = plain
        arms["OneCycle to the same rate", lr] = replace(plain, final_div=_same_floor())
        for every in _EIGHTS[name]:
            arms |= {(arm, lr): run for arm, run in _equation_eight(lr, every).items()}
    return _named(of, arms, 2 if quick else 5)


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


def parts(name: str, device: str, quick: bool) -> list[Cell]:
    """T up to the paper's divergence, reassignment and the noise of the warm start, one at a time."""
    of = course(name, device, scale="tiny" if quick else "gpu")
    arms: dict[tuple[str, float], Run] = {}
    for lr in (9e-4, 3e-3):
        cold = Run(lr, 0, replicas=1, sync_every=10**9)
        full = Run(lr, 0, sync_every=250, spread=SPREAD, sigma=SIGMA)
        arms["plain", lr] = cold
        for every in (25, 250, 1000):
            arms[f"fan-out, T = {every}", lr] = replace(full, sync_every=every, sigma=None)
            arms[f"full, T = {every}", lr] = replace(full, sync_every=every)
        arms["reassigned from S_w on", lr] = replace(full, reassign="from S_w")
        arms["never reassigned", lr] = replace(full, reassign="never")
        arms["plain from the checkpoint", lr] = replace(cold, warm=True)
        arms["full from the checkpoint", lr] = replace(full, warm=True)
        arms["full from the checkpoint, with noise", lr] = replace(full, warm=True, noise=0.01)
    return _named(of, arms, 2 if quick else 6)


# ---------------------------------------------------------------------- one large run


def large(name: str, device: str, quick: bool) -> list[Cell]:
    """A table of fifty million weights, T = 1000, 20,000 steps of a stream that drifts, from a checkpoint."""
    items, steps, every, seeds = (1000, 40, 10, 2) if quick else (stream.ITEMS, 20_000, 1000, 2)
    before = stream.make(device, steps=steps // 10, rows=512, items=items)
    weights = train(before, [Run(9e-4, seed, replicas=1) for seed in range(seeds)]).weights
    kept = {seed: {name: rows[seed] for name, rows in weights.items()} for seed in range(seeds)}
    of = stream.make(device, steps=steps, rows=512, items=items, begin=steps // 10)
    of = replace(of, checkpoints=lambda _: kept)
    plain = Run(9e-4, 0, replicas=1, sync_every=10**9, warm=True)
    full = Run(9e-4, 0, sync_every=every, spread=SPREAD, sigma=SIGMA, warm=True, noise=0.01)
    arms = {
        "plain": plain,
        "plain to a fifth of the peak": replace(plain, final_div=_same_floor()),
        "full": full,
        "full, as printed": replace(full, decay="literal", final_div=5.0, reassign="from S_w"),
    }
    count = sum(p.numel() for p in of.build(0).parameters())
    facts = {"steps": steps, "weights": count, "blind": of.blind}
    return [{**cell, **facts} for cell in cells(of, arms, seeds)]


# ---------------------------------------------------------------------- where it helps


#: By course: its course, the optimizer, rates, T and N.
_AVERAGED: dict[
    str, tuple[str, Literal["adam", "sgd"], tuple[float, ...], tuple[int, ...], tuple[int, ...]]
] = {
    "digits, SGD": ("digits", "sgd", (0.05, 0.15, 0.42), (10, 50, 200), (4, 8, 16)),
    "digits, Adam": ("digits", "adam", (1e-3, 3e-3, 1e-2), (10, 50, 200), (4, 8, 16)),
    "few digits, Adam": ("few digits", "adam", (1e-3, 3e-3, 1e-2), (10, 50, 200), (4, 8, 16)),
    "kuairand": ("kuairand", "adam", (1e-3, 3e-3, 1e-2), (5, 50), (8,)),
}


def averaging(name: str, device: str, quick: bool) -> list[Cell]:
    """Fan-out below the edge, against plain runs, and against plain runs with the best window mean."""
    of_course, optimizer, rates, intervals, sizes = _AVERAGED[name]
    of = replace(course(of_course, device, optimizer), name=name)
    if quick:
        of, rates, intervals, sizes = replace(of, steps=40), rates[:1], intervals[:1], sizes[:1]
    arms: dict[tuple[str, float], Run] = {}
    for lr in rates:
        arms["plain", lr] = Run(lr, 0, replicas=1, sync_every=10**9)
        for every, size, spread in product(intervals, sizes, (SPREAD, 0.25, 0.5)):
            run = Run(lr, 0, replicas=size, sync_every=every, spread=spread)
            arms[f"α = {spread:.2g}, T = {every}, N = {size}", lr] = run
    return _named(of, arms, 2 if quick else 24, windows=20)


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
        about = {key: cell[key] for key in ("course", "arm", *_KEPT, "sigma") if key in cell}
        lines.append({**about, **_interval(ratios)})
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


def _eight_told(found: Sequence[Cell]) -> dict[str, Any]:
    return {"to OneCycle": against(found, "OneCycle"), "vote": _vote_alone(found)}


def _vote_alone(found: Sequence[Cell]) -> list[Cell]:
    """Eq. 8 with fan-out and vote, over Eq. 8 alone at the same T."""
    lines = []
    for every in dict.fromkeys(cell["sync_every"] for cell in found):
        here = [cell for cell in found if cell["sync_every"] == every]
        lines += against(here, f"Eq. 8, no vote, T = {every}")
    return lines


def _parts_told(found: Sequence[Cell]) -> dict[str, Any]:
    full = [cell for cell in found if "reassigned" in cell["arm"] or cell["arm"] == "full, T = 250"]
    return {
        "to plain": against([cell for cell in found if not cell.get("warm")], "plain"),
        "reassignment": against(full, "full, T = 250"),
        "warm": against([cell for cell in found if cell.get("warm")], "plain from the checkpoint"),
        "noise": against([c for c in found if c.get("warm") and c["spread"]], "full from the checkpoint"),
    }


def _large_told(found: Sequence[Cell]) -> dict[str, Any]:
    return {
        "training loss": against(found, "plain", "train", "train"),
        "held out": against(found, "plain"),
        "auc": {cell["arm"]: statistics.fmean(cell["auc"]) for cell in found},
        "ne": {cell["arm"]: statistics.fmean(cell["ne"]) for cell in found},
    }


def _averaging_told(found: Sequence[Cell]) -> dict[str, Any]:
    """In how many places (a course at a rate) the interval lies below 0, and above: for each α, T and N, for
    each α and T, and by course where replicas stay close together and where they go far apart.
    """
    last = against(found, "plain")
    kinds = {
        "last": last,
        "best mean": against(found, "plain", "best_mean", "best_mean"),
        # Plain runs are among these: how far they end from their own best window mean.
        "last to best mean": against(found, "plain", "held_out", "best_mean"),
    }
    return {
        **{kind: _by_arm(lines) for kind, lines in kinds.items()},
        "pooled": {kind: _counted(lines, "spread", "sync_every") for kind, lines in kinds.items()},
        "short": _counted([line for line in last if line["sync_every"] <= _SHORT], "course"),
        "long and wide": _counted(
            [line for line in last if line["sync_every"] >= _LONG and line["spread"] >= _WIDE], "course"
        ),
    }


#: T up to which replicas stay close together; T and α from which on they go far apart.
_SHORT, _LONG, _WIDE = 10, 200, 0.25


def _by_arm(lines: Sequence[Cell]) -> list[Cell]:
    """For each setting the counts, and whether it helps: in at least two courses, at two rates each."""
    told = _counted(lines, "arm", "spread", "sync_every", "replicas")
    for line in told:
        below = Counter(one["course"] for one in lines if one["arm"] == line["arm"] and _told(one) < 0)
        line["helps"] = sum(rates >= 2 for rates in below.values()) >= 2
    return told


def _counted(lines: Sequence[Cell], *keys: str) -> list[Cell]:
    """Of all lines that have these keys in common: in how many a difference is told, and how large it is."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for line in lines:
        groups.setdefault(tuple(line[key] for key in keys), []).append(line)
    return [
        {
            **dict(zip(keys, values, strict=True)),
            "places": len(some),
            "below": sum(_told(line) < 0 for line in some),
            "above": sum(_told(line) > 0 for line in some),
            "median": statistics.median(line["mean"] for line in some),
            "worst": max(line["mean"] for line in some),
        }
        for values, some in groups.items()
    ]


def _told(line: Cell) -> int:
    """The sign of a difference that its interval tells from 0, else 0."""
    mean, half = line["mean"], line["half"]
    if mean is None or abs(math.log1p(mean)) <= half:
        return 0
    return 1 if mean > 0 else -1


@dataclass(frozen=True)
class Study:
    """What is run for each of its courses, and what its cells say."""

    run: Callable[[str, str, bool], list[Cell]]
    courses: tuple[str, ...]
    told: Callable[[Sequence[Cell]], dict[str, Any]]


STUDIES = {
    "edge": Study(edge, tuple(_EDGES), edge_told),
    "eq8": Study(eight, tuple(_EIGHTS), _eight_told),
    "parts": Study(parts, ("feed",), _parts_told),
    "large": Study(large, ("stream",), _large_told),
    "averaging": Study(averaging, tuple(_AVERAGED), _averaging_told),
}
