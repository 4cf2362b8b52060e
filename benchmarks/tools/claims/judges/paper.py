"""How each claim of the paper is judged by what the benchmarks measured.

Every function is one rule, and its docstring says which. "Below" means that the whole 95 % confidence
interval of the difference, seed by seed, lies below 0. The block "paper" is at the paper's learning rates,
1e-4 and 9e-4; the block "crash" at the lowest one at which plain training crashes in most seeds, and a ninth.
"""

from __future__ import annotations

import math
from typing import Any

from benchmarks.tools.claims.rules import (
    Difference,
    Judged,
    Place,
    Result,
    Results,
    apart,
    at_places,
    block_of,
    curve_mean,
    headed,
    losses_between,
    machine_of,
    percent,
    runs_of,
    signed,
    task_of,
    values_between,
)

__all__ = [
    "adapts_in_pretraining",
    "any_scalar",
    "auto_lr_contributes",
    "auto_lr_improves",
    "averaging_generalises",
    "baseline_crashes",
    "converges_sooner",
    "costs_a_thousandth",
    "full_beats_low",
    "needs_no_schedule",
    "order_emerges",
    "signal_points_up",
    "spread_finds_better_optima",
    "stable_where_plain_crashes",
    "warm_start_contributes",
    "warm_start_crashes",
    "warm_start_crashes_later_and_worse",
    "warm_start_is_ahead_early",
    "without_auto_lr_beats_low",
]

FULL, NO_AUTO, COLD = "HDET (full)", "HDET w/o auto-LR", "HDET w/o warm init"
LOW, HIGH, WARM = "Baseline-Low", "Baseline-High", "Warm-Init"


# ---------------------------------------------------------------------- stability


def baseline_crashes(results: Results) -> Judged:
    """A task counts if plain training at the paper's nine-fold rate crashes in most seeds."""
    places = []
    for result in results.values():
        crashed, of = _crashes(result, "paper", HIGH)
        since = result["sweep"]["crash_lr"]
        seen = "no rate of the sweep does" if since is None else f"it takes {since:g}"
        places.append(Place(f"{task_of(result)} {crashed} of {of} at 9e-4 ({seen})", _most(crashed, of)))
    return at_places(places)


def stable_where_plain_crashes(results: Results) -> Judged:
    """A task counts if HDET (full) crashes in no seed at the rate at which plain training does in most."""
    places = []
    for result in results.values():
        block = block_of(result, "crash")
        if block is None:
            continue
        plain, of = _crashes(result, "crash", HIGH)
        full, _ = _crashes(result, "crash", FULL)
        others = [_crashes(result, "crash", line)[0] for line in (NO_AUTO, COLD)]
        text = f"{task_of(result)} at {block['high']:g}: plain {plain}, full {full} of {of}"
        text += f" (w/o auto-LR {others[0]}, w/o warm init {others[1]})"
        places.append(Place(text, full == 0 if _most(plain, of) else None))
    return at_places(places)


def warm_start_crashes(results: Results) -> Judged:
    """A task counts if Warm-Init crashes in most seeds at the rate at which plain training does."""
    places = []
    for result in results.values():
        crashed, of = _crashes(result, "crash", WARM)
        plain = _most(*_crashes(result, "crash", HIGH))
        places.append(Place(f"{task_of(result)} {crashed} of {of}", _most(crashed, of) if plain else None))
    return at_places(places)


def warm_start_crashes_later_and_worse(results: Results) -> Judged:
    """Two places a task: Warm-Init's crash is later than Baseline-High's, its training loss is above."""
    places = []
    for result in results.values():
        later = values_between(result, "crash", WARM, HIGH, lambda run: run["crash_step"])
        worse = losses_between(result, "crash", WARM, HIGH, "train")
        steps = "no seed in which both crash" if later is None else f"crash {later} steps"
        places.append(Place(f"{task_of(result)}: {steps}", None if later is None else later.above))
        places.append(Place(f"loss {worse or '–'}", None if worse is None else worse.above))
    return at_places(places)


def _crashes(result: Result, block: str, line: str) -> tuple[int, int]:
    runs = runs_of(result, block, line).values()
    return sum(run["crashed"] for run in runs), len(runs)


def _most(crashed: int, of: int) -> bool | None:
    return 2 * crashed > of if of else None


# ---------------------------------------------------------------------- quality


def without_auto_lr_beats_low(results: Results) -> Judged:
    """Two places a task, either block: training loss of HDET w/o auto-LR below Baseline-Low's."""
    return _beats_low(results, NO_AUTO)


def full_beats_low(results: Results) -> Judged:
    """Two places a task, either block: training loss of HDET (full) below Baseline-Low's."""
    return _beats_low(results, FULL)


def spread_finds_better_optima(results: Results) -> Judged:
    """A task counts if HDET w/o auto-LR trains below Warm-Init, from which spread and mean alone part it."""
    return at_places(headed("training loss", _below(results, NO_AUTO, WARM, "train")))


def averaging_generalises(results: Results) -> Judged:
    """A task counts if the held-out loss of HDET w/o auto-LR is below Warm-Init's."""
    return at_places(headed("held-out loss", _below(results, NO_AUTO, WARM, "held_out")))


def warm_start_contributes(results: Results) -> Judged:
    """A task counts if HDET (full) trains below HDET w/o warm init."""
    return at_places(headed("training loss", _below(results, FULL, COLD, "train")))


def auto_lr_contributes(results: Results) -> Judged:
    """A task counts if HDET (full) trains below HDET w/o auto-LR."""
    return at_places(headed("training loss", _below(results, FULL, NO_AUTO, "train")))


def auto_lr_improves(results: Results) -> Judged:
    """Two places a task: HDET w/o warm init below Baseline-High, in training and in held-out loss."""
    training = headed("training loss", _below(results, COLD, HIGH, "train"))
    held_out = headed("held-out loss", _below(results, COLD, HIGH, "held_out"))
    return at_places([*training, *held_out])


def adapts_in_pretraining(results: Results) -> Judged:
    """Two places: auto-LR lowers the training loss from a warm start, and from a cold one."""
    warm = headed("training loss, warm start", _below(results, FULL, NO_AUTO, "train"))
    cold = headed("cold start", _below(results, COLD, HIGH, "train"))
    return at_places([*warm, *cold])


def converges_sooner(results: Results) -> Judged:
    """Two places a task: mean loss over the run, HDET (full) below Baseline-Low and below Warm-Init."""
    places = []
    for result in results.values():
        for other in (LOW, WARM):
            found = values_between(result, "paper", FULL, other, curve_mean(1.0))
            places.append(
                Place(
                    f"{task_of(result)} against {other} {found or '–'}",
                    None if found is None else found.below,
                )
            )
    return at_places(places)


def warm_start_is_ahead_early(results: Results) -> Judged:
    """A task counts if over the first tenth of its steps Warm-Init's loss is below Baseline-High's."""
    places = []
    for result in results.values():
        found = values_between(result, "paper", WARM, HIGH, curve_mean(0.1))
        places.append(Place(f"{task_of(result)} {found or '–'}", None if found is None else found.below))
    return at_places(places)


def _below(results: Results, line: str, other: str, metric: str, block: str = "paper") -> list[Place]:
    """A place for each task: whether the loss of ``line`` is below that of ``other``."""
    places = []
    for result in results.values():
        found = losses_between(result, block, line, other, metric)
        places.append(Place(f"{task_of(result)} {found or '–'}", None if found is None else found.below))
    return places


def _beats_low(results: Results, line: str) -> Judged:
    here = headed("training loss at 9e-4", _below(results, line, LOW, "train"))
    there = headed("where plain training crashes", _below(results, line, LOW, "train", "crash"))
    return at_places([*here, *there])


# ---------------------------------------------------------------------- the controller


def needs_no_schedule(results: Results) -> Judged:
    """A number of replicas counts if, from a tenth of the tuned rate, auto-LR's regret is below plain's,
    intervals apart; a task if, from a rate of 1e-3 on one OneCycle curve, its held-out loss is below.
    """
    places = []
    for row in results["replicas"]["rows"]:
        plain, ours = (row["regret_percent"][arm] for arm in ("plain", "published"))
        text = f"N = {row['replicas']}: regret {_percent(ours)}, plain {_percent(plain)}"
        places.append(Place(text, apart(ours, plain)))
    tasks = []
    for pair in results["regret-cpu"]["pairs"]:
        found = _published_against_plain(results["regret-cpu"], pair["workload"], pair["optimizer"])
        if found is not None:
            tasks.append(Place(f"{pair['workload']} {pair['optimizer']} {found}", found.below))
    return at_places([*places, *headed("held-out loss against plain", tasks)])


def _percent(found: Result) -> str:
    return f"{found['mean']:.1f} ± {found['half_width']:.1f} %"


def _published_against_plain(result: Result, workload: str, optimizer: str) -> Difference | None:
    rows = [dict(zip(result["runs"]["header"], row, strict=True)) for row in result["runs"]["rows"]]
    mine = [row for row in rows if (row["workload"], row["optimizer"]) == (workload, optimizer)]
    ours = {(row["lr"], row["schedule"], row["seed"]): row for row in mine if row["arm"] == "published"}
    plain = {(row["lr"], row["schedule"], row["seed"]): row for row in mine if row["arm"] == "sweep"}
    both = sorted(ours.keys() & plain.keys())
    return Difference.of([_loss(ours[key]) - _loss(plain[key]) for key in both])


def _loss(row: Result) -> float:
    return math.inf if row["held_out"] is None else float(row["held_out"])


def signal_points_up(results: Results) -> Judged:
    """A number of replicas counts if, from a rate ten times too low, the mean decision is above 0 by two
    standard errors, with the groups of one sync as one observation.
    """
    places = []
    for result in results.values():
        settings = result["settings"]
        syncs = settings["steps"] * (1 - settings["control_after"]) / settings["sync_every"]
        for row in result["rows"]:
            found = row["decision"]["published"]
            error = found["deviation_percent"] / math.sqrt(syncs * settings["seeds"])
            text = f"N = {row['replicas']}: {signed(found['mean_percent'], '.3f')} ± {2 * error:.3f} %"
            places.append(Place(text, found["mean_percent"] > 2 * error))
    return at_places(headed("mean Δ/η ± two standard errors", places))


def order_emerges(results: Results) -> Judged:
    """A block of a task counts if the published order stands more often than chance has it (p < 0.05)."""
    places = []
    for result in results.values():
        for block in result["blocks"]:
            if block["order"] is not None:
                found = block["order"]["published"]
                text = f"{task_of(result)} at {block['high']:g}: {found['both']} of {found['of']} seeds"
                places.append(Place(f"{text} (p = {found['p']:.2g})", found["p"] < 0.05))
    return at_places(places)


# ---------------------------------------------------------------------- cost and reach


def costs_a_thousandth(results: Results) -> Judged:
    """A machine counts if at T = 1000 the sync alone costs 0.1 % of a step of plain DDP, rounded, or less."""
    places = []
    for result in results.values():
        found: dict[str, Any] = next(row for row in result["rows"] if row["part"] == "training")
        share = found["sync_steps"] / 1000
        text = f"{machine_of(result)} {percent(share)} at T = 1000, {percent(10 * share)} at T = 100"
        places.append(Place(text, share <= 0.0015))
    return at_places(places)


def any_scalar(results: Results) -> Judged:
    """A hyperparameter counts if half of the gap is recovered, or more, from the worse of its two starts."""
    places = []
    for result in results.values():
        for task in result["tasks"]:
            worst = min(start["recovered"]["mean"] for start in task["starts"])
            places.append(Place(f"{task['task']} {worst:.0f} %", worst >= 50))
    return at_places(places, " recovered")
