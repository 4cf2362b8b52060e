"""The windows of docs/figures/decisions.json: what each showed, and what became of the rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["digits", "text"]

_HEADINGS = ("window ends", "rate in it", "L(p)", "L(m)", "L(e)", "lag", "tolerated", "decision", "next rate")


def text(result: Mapping[str, Any]) -> str:
    """Every window of the run that goes well."""
    return _table(result["runs"]["text"])


def digits(result: Mapping[str, Any]) -> str:
    """Those of the run on few data that led to something, and their neighbours."""
    return _table(result["runs"]["digits"])


def _table(run: Mapping[str, Any]) -> str:
    lines = [f"| {' | '.join(_HEADINGS)} |", "|---" * len(_HEADINGS) + "|"]
    for window in run["windows"]:
        losses = [_number(window[f"loss_{name}"], ".3f") for name in ("previous", "mean", "end")]
        judged = [_number(window[name], ".2f") for name in ("lag", "tolerated")]
        said = window["event"] or window["why"]
        decided = f"{window['action']}{f': {said}' if said else ''}"
        rates = [_number(window[name], ".2g") for name in ("rate", "rate_after")]
        lines.append(
            f"| {window['step']} | {rates[0]} | {' | '.join(losses)} | {' | '.join(judged)} | {decided} | "
            f"{rates[1]} |"
        )
    return "\n".join(lines)


def _number(value: float | None, spec: str) -> str:
    text = "–" if value is None else format(value, spec)
    return text if "e" in text else text.replace("-", "−")
