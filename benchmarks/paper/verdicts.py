"""What of the paper holds at our size: each claim, what was measured, and a verdict that follows by rule.

A claim is judged at places: a task, a rate, a machine. It *holds* if it does at every place, *partly* if at
some. Losses are compared seed by seed: one is below another if the whole 95 % interval of the difference is.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.regret.analysis import interval
from benchmarks.reproduce.plan import CONFIGURATIONS

__all__ = ["CLAIMS", "Claim", "judged", "table"]

Result = Mapping[str, Any]
#: What was measured at a place, and whether the claim holds there; None if that cannot be told.
Place = tuple[str, bool | None]

FULL, NO_AUTO, COLD = "HDET (full)", "HDET w/o auto-LR", "HDET w/o warm init"
LOW, HIGH, WARM = "Baseline-Low", "Baseline-High", "Warm-Init"
_TABLES = ("table1", "table1-kuairand", "pretraining")
_CURVES, _RATES = ("figure2", "figure2-kuairand"), ("figure3", "figure3-kuairand")
_TASKS = {"kuairand": "KuaiRand", "charlm": "text"}


@dataclass(frozen=True)
class Claim:
    """In few words, where the paper has it, the files it is judged by, and the rule: places of one file."""

    text: str
    section: str
    files: tuple[str, ...]
    rule: Callable[[Result], Iterable[Place]]


def judged(claim: Claim, results: Sequence[Result]) -> tuple[str, str]:
    """What was measured, and the verdict."""
    places = [place for result in results for place in claim.rule(result)]
    told = [holds for _, holds in places if holds is not None]
    verdict = "holds" if all(told) else "partly" if any(told) else "does not hold here"
    text = "; ".join(text for text, _ in places if text)
    return text, verdict if told else "not tested"


def table(evidence: Path) -> str:
    """All claims as Markdown."""
    lines = ["| the paper claims | § | measured here | verdict |", "| --- | --- | --- | --- |"]
    for claim in CLAIMS:
        files = [json.loads((evidence / f"{name}.json").read_text(encoding="utf-8")) for name in claim.files]
        measured, verdict = judged(claim, files)
        lines.append(f"| {claim.text} | {claim.section} | {measured} | **{verdict}** |")
    return "\n".join(lines)


# ---------------------------------------------------------------------- differences of losses


def below(
    line: str, other: str, metric: str = "train", blocks: Sequence[str] = ("paper",)
) -> Callable[[Result], Iterator[Place]]:
    """A place for each block: the loss of ``line`` is below that of ``other``."""

    def rule(result: Result) -> Iterator[Place]:
        for block in blocks:
            where = " at the crash" if block == "crash" else ""
            yield _compared(result, f"{_task(result)}{where}", block, line, other, lambda run: run[metric])

    return rule


def _sooner(line: str, others: Sequence[str], share: float) -> Callable[[Result], Iterator[Place]]:
    """A place for each of the others: the mean loss over the first ``share`` of a curve is below."""

    def mean(run: Result) -> float | None:
        losses = run["loss"][: max(1, round(share * len(run["loss"])))]
        return None if None in losses else statistics.fmean(losses)

    def rule(result: Result) -> Iterator[Place]:
        for other in others:
            yield _compared(result, f"{_task(result)} over {other}", "paper", line, other, mean)

    return rule


def _compared(
    result: Result, where: str, block: str, line: str, other: str, value: Callable[[Result], float | None]
) -> Place:
    """The difference over the seeds that both have; a loss that is not finite is above all others."""
    ours, theirs = _runs(result, block, line), _runs(result, block, other)
    pairs = [(value(ours[seed]), value(theirs[seed])) for seed in sorted(ours.keys() & theirs.keys())]
    differences = [(math.inf if a is None else a) - (math.inf if b is None else b) for a, b in pairs]
    if not differences or not all(map(math.isfinite, differences)):
        return f"{where} –", False if any(d > 0 for d in differences) else None
    mean, half = interval(differences)
    if half is None:
        return f"{where} {_signed(mean, '.4f')}", None
    form = f".{min(6, max(0, 1 - math.floor(math.log10(half or 1e-6))))}f"
    return f"{where} {_signed(mean, form)} ± {half:{form}}", mean + half < 0


def _runs(result: Result, block: str, line: str) -> dict[int, Result]:
    """The runs of a line of a table, or of a curve, by their seeds; none where no rate crashes."""
    found = next((one for one in result["blocks"] if one["name"] == block), None)
    if found is None:
        return {}
    if "curves" in found:
        curve = next(curve for curve in found["curves"] if curve["configuration"] == line)
        return {run["seed"]: run for run in curve["runs"]}
    lr = next(row["lr"] for row in found["rows"] if row["configuration"] == line)
    rows = [dict(zip(result["runs"]["header"], row, strict=True)) for row in result["runs"]["rows"]]
    wanted = (CONFIGURATIONS[line].runs, lr)
    return {row["seed"]: row for row in rows if (row["configuration"], row["lr"]) == wanted}


# ---------------------------------------------------------------------- other rules


def plain_crashes(result: Result) -> Iterator[Place]:
    """At nine times the low rate, in most seeds."""
    crashed, of = _crashes(result, "paper", HIGH)
    since = result["sweep"]["crash_lr"]
    seen = "no rate of the sweep does" if since is None else f"it takes {since:.2g}"
    yield f"{_task(result)} {crashed} of {of} ({seen})", 2 * crashed > of if of else None


def stable(result: Result) -> Iterator[Place]:
    """HDET (full) crashes in no seed at the rate at which plain training does in most."""
    (plain, of), (full, _) = _crashes(result, "crash", HIGH), _crashes(result, "crash", FULL)
    if of:
        text = f"{_task(result)}: plain {plain}, HDET {full} of {of}"
        yield text, full == 0 if 2 * plain > of else None


def _crashes(result: Result, block: str, line: str) -> tuple[int, int]:
    runs = _runs(result, block, line).values()
    return sum(run["crashed"] for run in runs), len(runs)


def ordered(result: Result) -> Iterator[Place]:
    """The published order of groups stands more often than chance has it (p < 0.05)."""
    for block in result["blocks"]:
        if block["order"] is not None:
            found = block["order"]["published"]
            text = f"{_task(result)} at {block['high']:.2g}: {found['both']} of {found['of']} seeds"
            yield text, found["p"] < 0.05


def residual(result: Result) -> Iterator[Place]:
    """All runs by Eq. 8 with a vote end between a tenth and a half of their peak."""
    cells = [cell for cell in result["eq8"]["cells"] if cell["spread"]]
    for course in dict.fromkeys(cell["course"] for cell in cells):
        ends = [end for cell in cells if cell["course"] == course for end in cell["final_rate"]]
        text = f"{_TASKS.get(course, course)} {min(ends):.0%} to {max(ends):.0%} of the peak"
        yield text.replace("%", " %"), min(ends) >= 0.1 and max(ends) <= 0.5


def averaged(result: Result) -> Iterator[Place]:
    """At T ≤ 10 the held-out loss is below plain training's in most settings of rate, α and N."""
    for line in result["averaging"]["short"]:
        course = _TASKS.get(line["course"], line["course"])
        text = f"{course}: {line['below']} of {line['places']} settings below, {line['above']} above"
        yield text, 2 * line["below"] > line["places"]


def critical(result: Result) -> Iterator[Place]:
    """The loss without any reassignment lies above that with one in every round."""
    for line in result["parts"]["reassignment"]:
        if line["arm"] == "never reassigned":
            middle = math.log1p(line["mean"])
            low, high = (math.expm1(middle + sign * line["half"]) for sign in (-1, 1))
            ends = f"{_signed(100 * low, '.2f')} to {_signed(100 * high, '.2f')} %"
            yield f"feed at {line['lr']:g}: {ends}", low > 0


def cheap(result: Result) -> Iterator[Place]:
    """At T = 1000 the sync alone costs 0.1 % of plain DDP's step, rounded, or less."""
    share = next(row for row in result["rows"] if row["part"] == "training")["sync_steps"] / 1000
    where = "on a GPU" if result["machine"].get("gpu") else "on two cores"
    yield f"{100 * share:.2f} % {where}", share <= 0.0015


def _task(result: Result) -> str:
    return str(_TASKS.get(result["task"], result["task"]))


def _signed(value: float, form: str) -> str:
    return f"{value:+{form}}".replace("-", "−")


_BOTH = ("paper", "crash")
CLAIMS = (
    Claim("Plain training crashes at 9e-4", "4.2", _TABLES, plain_crashes),
    Claim("HDET is stable where plain training crashes", "1, 4.3", _TABLES, stable),
    Claim("Without auto-LR it ends below Baseline-Low", "4.3", _TABLES, below(NO_AUTO, LOW, blocks=_BOTH)),
    Claim("HDET (full) ends below Baseline-Low", "4.2", _TABLES, below(FULL, LOW, blocks=_BOTH)),
    Claim("Spread and averaging find the better optimum", "4.3", _TABLES, below(NO_AUTO, WARM)),
    Claim("The warm start contributes by itself", "4.3", _TABLES, below(FULL, COLD)),
    Claim("Auto-LR contributes as much", "4.3", _TABLES, below(FULL, NO_AUTO)),
    Claim("Auto-LR improves training", "abstract", _TABLES, below(COLD, HIGH)),
    Claim("Auto-LR improves generalisation", "abstract", _TABLES, below(COLD, HIGH, "held_out")),
    Claim("Averaging generalises better (over Warm-Init)", "3.3", _TABLES, below(NO_AUTO, WARM, "held_out")),
    Claim("The same, over plain training at T ≤ 10", "3.3", ("paper",), averaged),
    Claim("HDET converges faster", "1", _CURVES, _sooner(FULL, (LOW, WARM), 1.0)),
    Claim("A warm start is ahead early", "3.5", _CURVES, _sooner(WARM, (HIGH,), 0.1)),
    Claim("Groups take an order: transformer lowest", "5", _RATES, ordered),
    Claim("Auto-LR ends at a residual rate (Eq. 8, 25/5)", "4.3", ("paper",), residual),
    Claim("That reassignment is critical", "3.4", ("paper",), critical),
    Claim("The all_reduce costs 0.1 % at T = 1000", "3.3", ("step", "step-cuda"), cheap),
    Claim("Auto-LR adapts in pre-training", "6", ("pretraining",), below(FULL, NO_AUTO)),
)
