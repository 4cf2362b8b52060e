"""Numbers in the documents come from the JSON files beside them, and from nowhere else.

A document marks a place with ``<!-- quote: NAME -->`` … ``<!-- end -->``, and
``python -m tools.quote`` fills every such place of README.md and docs/evidence.md from
docs/evidence/NAME.json, ``<!-- quote: NAME excess -->`` with the other tables of the regret benchmark and
``<!-- quote: NAME matrix -->`` with the first of them alone;
``<!-- claims -->`` … ``<!-- end -->`` it fills with the table of all claims. A test fails when a document and
its JSON part.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hdet.bench.autotune import tables as autotune_tables
from hdet.bench.autotune.plan import AUTOTUNE
from hdet.bench.fan_out import command as fan_out
from hdet.bench.hyperparameters import analysis as hyperparameters_analysis
from hdet.bench.hyperparameters import delay
from hdet.bench.islands import command as islands
from hdet.bench.regret.analysis import grid, misled
from hdet.bench.regret.tables import detail, leading, matrix, unpaired_note
from hdet.bench.replicas import command as replicas
from hdet.bench.reproduce import text as reproduce_text
from hdet.bench.scale import command as scale
from hdet.bench.speed import feed, large, stacked
from tools.claims import table as claims

__all__ = ["DOCUMENTS", "fill"]

DOCUMENTS = ("README.md", "docs/evidence.md")
_PLACE = re.compile(r"(<!-- (?:quote: ([\w-]+)( excess| matrix)?|claims) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str, evidence: Path) -> str:
    """``text`` with every marked place filled anew."""

    def quote(match: re.Match[str]) -> str:
        if match[2] is None:
            return f"{match[1]}{claims.table(evidence)}\n{match[4]}"
        result = json.loads((evidence / f"{match[2]}.json").read_text(encoding="utf-8"))
        render = _PARTS[match[3]] if match[3] else _RENDER[result["experiment"]]
        return f"{match[1]}{render(result)}\n\n{_source(result)}\n{match[4]}"

    return _PLACE.sub(quote, text)


def _converge(result: dict[str, Any]) -> str:
    ways = list(result["rows"][0]["milliseconds"])
    lines = [
        "| ranks | weights | " + " | ".join(ways) + " | extra memory |",
        "|---" * (len(ways) + 3) + "|",
    ]
    for row in result["rows"]:
        ms, ratio = row["milliseconds"], row["ratio_to_limit"]
        cells = [f"{ms[way]:.0f} ms" + (f", ×{ratio[way]:.2f}" if ratio[way] != 1 else "") for way in ways]
        size = f"{row['megabytes']:.0f} MB in {row['tensors']:,} tensors"
        lines.append(
            f"| gloo ×{row['ranks']} | {size} | {' | '.join(cells)} | {row['extra_megabytes']:.0f} MB |"
        )
    return "\n".join(lines)


def _step(result: dict[str, Any]) -> str:
    lines = [
        "| `step(loss)` between syncs | OneCycleLR | hdet | ratio (quartiles) | hooks add |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        if row["part"] == "scheduler call":
            low, high = row["ratio_iqr"]
            moved = "before" if row["interval"] == "first" else "after"
            lines.append(
                f"| {row['optimizer']}, {row['groups']} group(s), {moved} auto-LR has moved | "
                f"{row['one_cycle_us']:.0f} µs | {row['hdet_us']:.0f} µs | "
                f"×{row['ratio']:.2f} ({low:.2f}–{high:.2f}) | {row['hooks_us']:.0f} µs |"
            )
    training = next(row for row in result["rows"] if row["part"] == "training")
    lines += [
        "",
        f"One DDP step ({training['parameters'] / 1e6:.1f} M parameters, gloo ×{training['replicas']}) takes "
        f"{training['step_ms']:.0f} ms, a sync {training['sync_ms']:.1f} ms; calls and hooks add "
        f"{training['added_us']:.0f} µs a step. Cost over plain DDP, by these parts: "
        f"**{training['overhead_by_parts_T100']:.2%}** at T = 100, "
        f"**{training['overhead_by_parts_T1000']:.2%}** at T = 1000.",
    ]
    waits = [row for row in result["rows"] if row.get("scheduler") == "OneCycleAutoLR"]
    if waits:
        never = sum(row["never_waits"] for row in waits)
        lines[-1] += f" No wait for the device between syncs in {never} of {len(waits)} set-ups."
    return "\n".join(lines)


def _autolr(result: dict[str, Any]) -> str:
    lines = ["| run | plain step | more wall-clock | extra memory |", "|---|---|---|---|"]
    for row in result["rows"]:
        lines.append(
            f"| {row['workload']}, {row['parameters'] / 1e3:.0f} k parameters, {row['optimizer']}, "
            f"{row['steps']:,} steps | {row['step_ms']:.1f} ms | {100 * row['overhead']:.1f} % "
            f"(in its calls {100 * row['overhead_in_calls']:.1f} %) | "
            f"{row['extra_memory_in_weights']:.1f} × the weights |"
        )
    return "\n".join(lines)


def _autotune(result: dict[str, Any]) -> str:
    arms = [line["arm"] for line in result["tasks"][0]["arms"]]
    names = [task["task"] for task in result["tasks"]]
    lines = [f"| test loss (over the truth, %) | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    best = [task["truth"] for task in result["tasks"]]
    lines.append(
        "| the truth | " + " | ".join(_interval(one["test"], one["test_half_width"]) for one in best) + " |"
    )
    for arm in arms:
        cells = []
        for task in result["tasks"]:
            line = next(line for line in task["arms"] if line["arm"] == arm)
            cells.append(f"{_interval(line['test'], line['test_half_width'])} ({line['excess']:+.1f})")
        name = f"**{arm}**" if arm == AUTOTUNE else arm
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", " ".join(autotune_tables.said(result["verdicts"]))])


def _interval(mean: float, half: float | None) -> str:
    return f"{mean:.3f}" + ("" if half is None else f" ± {half:.3f}")


def _delay(result: dict[str, Any]) -> str:
    headings, lines = delay.grid(result)
    rows = [headings, ["---"] * len(headings), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _regret(result: dict[str, Any]) -> str:
    headings, rows = grid(result, lambda text: f"**{text}**")
    notes = [
        "Normalised regret of the final held-out loss in %: 0 is the tuned sweep, 100 the untrained model. "
        "**Bold**: the best of those that ask for no learning rate."
    ]
    if result["looked_at"]:
        notes.append(f"The defaults were chosen while looking at {', '.join(result['looked_at'])}")
        confirmed = ", ".join(result["confirmed_on"])
        notes[-1] += f", and confirmed on {confirmed}." if confirmed else "."
    if "prodigy" in result["overall"]:
        notes.append("Prodigy has no variant of SGD.")
    if others := misled(result):
        worst = [over["worst"] for over in others.values()]
        notes.append(
            f"With its optimizer built at {', '.join(others)} instead (one seed), AutoLR's worst regret is "
            f"{'∞' if None in worst else f'{max(worst):.2f}'} %."
        )
    if result["missing_runs"]:
        notes.append(f"{result['missing_runs']} runs are still missing.")
    return "\n".join([_markdown(headings, rows), "", " ".join([*notes, *result["caveats"]])])


def _excess(result: dict[str, Any]) -> str:
    found = result["excess"]
    chosen = leading(found) == "chosen"
    notes = [
        "Excess L/L_tuned − 1 in %, each seed over the tuned run of the same seed, "
        + ("chosen over chosen; in brackets both as they end." if chosen else "both as they end.")
        + " **Bold**: the best of those that ask for no learning rate.",
        "*As a rate off by*: the smallest factor by which a hand-picked rate must miss the best of the sweep "
        "to do as badly. *Worth random rates*: of how many rates, drawn evenly in log rate over the sweep's "
        "range, the best is as good on average (all: none is).",
    ]
    if note := unpaired_note(found):
        notes.append(note)
    met = [f"{name}: {'met' if goal['met'] else 'missed'}" for name, goal in found["goals"].items()]
    if chosen:
        notes.append(f"Goals: {'; '.join(met)}.")
    else:
        notes.append("These runs were made before chosen losses were kept, which the goals are about.")
    tables = (matrix(found, lambda text: f"**{text}**"), detail(found))
    return "\n\n".join([*(_markdown(*one) for one in tables), " ".join(notes)])


def _matrix(result: dict[str, Any]) -> str:
    """The first of those tables alone, and what its numbers are."""
    found = result["excess"]
    trials = found["overall"]["autolr"]["chosen"]["median_trials"]
    worth = f" In the median one run of AutoLR is worth {trials:.0f} runs at random rates." if trials else ""
    note = (
        "Excess L/L_tuned − 1 in %, each seed over the tuned run of the same seed, chosen over chosen; in "
        f"brackets both as they end. **Bold**: the best of those that ask for no learning rate.{worth}"
    )
    return f"{_markdown(*matrix(found, lambda text: f'**{text}**'))}\n\n{note}"


#: What can be quoted of the regret benchmark besides its regret.
_PARTS = {" excess": _excess, " matrix": _matrix}


def _lightbench(result: dict[str, Any]) -> str:
    """How many were solved, and which of those that ten trials solve were not."""
    counts, published = result["counts"]["autolr"], result["adamw_solved_within_trials"]
    lines = [
        "| one run of AutoLR each | AdamW within 10 trials | within 30 | within 1,000 |",
        "|---|---|---|---|",
        f"| {counts['solved']} of {counts['run']} | " + " | ".join(map(str, published.values())) + " |",
    ]
    return "\n".join(lines)


def _deepobs(result: dict[str, Any]) -> str:
    """Beside the published runs."""
    arms = ("AutoLR", "swept, with decay", "default")
    lines = ["| optimizer | published, tuned | AutoLR | swept here, with decay | at 1e-3 |", "|---" * 5 + "|"]
    for row in result["rows"]:
        cells = [row["published"], *(row["arms"][arm] for arm in arms)]
        said = [
            "–" if not c or c["mean"] is None else f"{c['mean']:.3f} ± {c['deviation']:.3f}" for c in cells
        ]
        lines.append(f"| {row['optimizer']} | {' | '.join(said)} |")
    note = f"Test loss after {result['settings']['steps']} steps, mean ± deviation of ten seeds."
    return "\n".join([*lines, "", note])


def _hyperparameters(result: dict[str, Any]) -> str:
    parts = [_markdown(*hyperparameters_analysis.grid(result))]
    notes = [
        "`recovered` is (wrong − HDET)/(wrong − best) of the final held-out loss, seed by seed: 0 is to stay "
        "at the start, 100 the best value of the grid from the first step on."
    ]
    if result["four"]:
        parts.append(_markdown(*hyperparameters_analysis.together(result)))
        notes.append("The values beside four at once are those that the first seed ended with.")
    if result["missing_runs"]:
        notes.append(f"{result['missing_runs']} runs are still missing.")
    return "\n\n".join([*parts, " ".join([*notes, *result["caveats"]])])


def _markdown(headings: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows))


def _chaos(result: dict[str, Any]) -> str:
    kills, poisons, soak = (result[name]["lines"] for name in ("kills", "poisons", "soak"))
    hits = [(hit.split(":")[0], line) for line in kills for hit in line["hits"]]
    rows = []
    for kind in sorted({kind for kind, _ in hits}):
        waits = [
            wait
            for line in kills
            for hit, wait in zip(line["hits"], line.get("survivors_left_after_s", ()), strict=False)
            if hit.startswith(kind)
        ]
        runs = [line for name, line in hits if name == kind]
        broken = sum(bool(line["broken"]) for line in runs)
        rows.append([kind, f"{len(runs)}", f"{broken} in runs that broke", f"{max(waits):.1f} s"])
    tables = [_markdown(["signal", "hits", "of them", "last survivor gone after"], rows)]
    named = ("gradient", "loss", "weight", "buffer", "state")
    rows = [
        ["with" if line["probe"] else "without"]
        + [str(line["places"][place]) for place in named]
        + [f"{line['not_finite']} of {line['means']}", f"{line['largest']:.3g}"]
        for line in poisons
    ]
    tables.append(_markdown(["probe", *named, "means not finite", "largest number in one"], rows))
    rows = []
    for line in soak:
        for look in (line["looks"][4], line["looks"][-1]):
            where = f"{line['door']}, step {look['step']:,}"
            size = f"{look['rss_mb']:.0f} MB", f"{look['state_bytes']:,} bytes"
            rows.append([where, *size, f"{look['step_us']:.0f} µs"])
    tables.append(_markdown(["long run", "memory", "state", "processor time a step"], rows))
    checkpoints = sum(line.get("checkpoints", 0) for line in kills)
    asked = ", ".join(f"{result[name]['asked']:,} {what}" for name, what in _ASKED.items())
    tables.append(
        f"{len(kills)} runs were hit, and {sum(line.get('unreadable', 0) for line in kills)} of "
        f"{checkpoints:,} checkpoints were unreadable. `make chaos` asks for {asked}."
    )
    return "\n\n".join(tables)


def _source(result: dict[str, Any]) -> str:
    about = result["machine"]
    where = about.get("gpu") or f"{about['cores']} cores of {about['cpu']}"
    kind = _STATISTIC.get(result["experiment"], "medians")
    return f"`{result['command']}`, {where}, torch {about['torch']}, {about['date'][:10]}; {kind}."


_RENDER = {
    "converge": _converge,
    "step": _step,
    "regret": _regret,
    "autolr": _autolr,
    "autotune": _autotune,
    "hyperparameters": _hyperparameters,
    "delay": _delay,
    "lightbench": _lightbench,
    "deepobs": _deepobs,
    "feed": feed.markdown,
    "large": large.markdown,
    "stacked": stacked.markdown,
    "replicas": replicas.markdown,
    "fan-out": fan_out.markdown,
    "islands": islands.markdown,
    "chaos": _chaos,
    "scale": scale.markdown,
    "reproduce": reproduce_text.markdown,
}
_OVER_SEEDS = (
    *("regret", "hyperparameters", "delay", "autotune", "replicas", "fan-out", "islands", "reproduce"),
)
_ASKED = {"kills": "hits", "poisons": "poisons", "soak": "steps"}
_STATISTIC = {
    "chaos": "counts",
    "autolr": "whole runs in the order A B B A",
    **dict.fromkeys(_OVER_SEEDS, "means over seeds ± half of the 95 % confidence interval"),
}


if __name__ == "__main__":
    for document in map(Path, DOCUMENTS):
        document.write_text(
            fill(document.read_text(encoding="utf-8"), Path("docs/evidence")), encoding="utf-8"
        )
