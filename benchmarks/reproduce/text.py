"""The results of the paper's experiments in words, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["said"]


def said(result: Mapping[str, Any]) -> str:
    """What is printed: the table, or what a figure shows in a sentence for each block."""
    if "sweep" in result:
        return _as_text(result)
    lines = [str(result["title"])]
    for block in result["blocks"]:
        lines.append(f"{block['title']}:")
        if result["name"] == "figure3":
            lines.append(block["order"]["sentence"] if block["order"] else "There is no run yet.")
        else:
            lines += map(_crashes, block["curves"])
    if result["missing_runs"]:
        lines.append(f"{result['missing_runs']} runs are still missing: start the command again.")
    return "\n".join([*lines, result["crash_rule"], *result["caveats"]]) + "\n"


def _as_text(result: Mapping[str, Any]) -> str:
    """The table as it is printed; † marks a crash."""
    parts = [
        f"{result['title']}\nLoss: {result['loss_unit']}.\n"
        f"Mean over {_seeds(result['seeds'])} ± half of its 95 % confidence interval; † crashed."
    ]
    for block in result["blocks"]:
        lines = [_HEADINGS, *(_cells(row) for row in block["rows"])]
        parts.append(f"{_capital(block['title'])}:\n{_aligned(lines)}")
        if measured := [row for row in block["rows"] if "auc" in row]:
            lines = [_metric_headings(measured[0]), *map(_metric_cells, measured)]
            parts.append(f"Held out, by answer:\n{_aligned(lines)}")
    swept = [_SWEEP_HEADINGS, *map(_swept_cells, result["sweep"]["rows"])]
    parts.append(f"Plain OneCycleLR, swept upward until it crashes:\n{_aligned(swept)}")
    return "\n\n".join([*parts, "\n".join(_notes(result))]) + "\n"


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


_HEADINGS = ["configuration", "", "LR", "paper", "training loss", "held out", "crashed", "at step"]
_SWEEP_HEADINGS = ["LR", "training loss", "held out", "crashed", "at step"]


def _cells(row: Mapping[str, Any]) -> list[str]:
    paper = row["paper"]
    published = "–" if paper is None else f"{paper['loss']:.3f}{'†' if paper['crashed'] else ''}"
    rate = "–" if row["lr"] is None else f"{row['lr']:.4g}"
    return [row["configuration"], row["description"], rate, published, *_result_cells(row)]


def _swept_cells(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['lr']:.4g}", *_result_cells(row)]


def _result_cells(row: Mapping[str, Any]) -> list[str]:
    if not row["seeds"]:
        return ["no run", *["–"] * 3]
    train, held_out = _with_interval(row["train"]), _with_interval(row["held_out"])
    crashed = "–" if row["crash_step"] is None else str(row["crash_step"])
    dagger = "†" if row["crashed"] else ""
    return [train + dagger, held_out + dagger, f"{row['crashed']} of {row['seeds']}", crashed]


def _with_interval(found: Mapping[str, float | None]) -> str:
    if found["mean"] is None:
        return "not finite"
    half = found["half_width"]
    return f"{found['mean']:.4f}" + ("" if half is None else f" ± {half:.4f}")


_METRICS = {"auc": "AUC", "ne": "NE"}


def _metric_headings(row: Mapping[str, Any]) -> list[str]:
    return ["configuration", *(f"{name} {answer}" for key, name in _METRICS.items() for answer in row[key])]


def _metric_cells(row: Mapping[str, Any]) -> list[str]:
    means = [found["mean"] for key in _METRICS for found in row[key].values()]
    return [row["configuration"], *("–" if mean is None else f"{mean:.4f}" for mean in means)]


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([padded[0], "-" * max(map(len, padded)), *padded[1:]])


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _notes(result: Mapping[str, Any]) -> list[str]:
    reference = result["reference"]
    notes = [f"Who knows the base rates alone has a loss of {reference['base_rate_loss']:.4f}"]
    if reference["bayes_loss"] is not None:
        notes[0] += f", an oracle {reference['bayes_loss']:.4f}"
    notes[0] += "."
    if result["missing_runs"]:
        notes.append(f"{result['missing_runs']} runs are still missing: start the command again.")
    notes += [
        f"failed: {one['configuration']}, seed {one['seed']}: {one['error']}" for one in result["failed"]
    ]
    return [*notes, result["crash_rule"], *result["caveats"]]


def _crashes(curve: Mapping[str, Any]) -> str:
    who = f"{curve['configuration']} at {curve['lr']:.4g}"
    return f"{who} crashed in {curve['crashed']} of {curve['seeds']} seeds"
