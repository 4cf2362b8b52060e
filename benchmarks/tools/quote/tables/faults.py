"""Faults at random places, as tables."""

from __future__ import annotations

from typing import Any

from benchmarks.tools.quote.tables.grid import markdown

__all__ = ["chaos"]

_ASKED = {"kills": "hits", "poisons": "poisons", "soak": "steps"}


def chaos(result: dict[str, Any]) -> str:
    """What was hit, what was poisoned, and what a long run grew by."""
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
    tables = [markdown(["signal", "hits", "of them", "last survivor gone after"], rows)]
    named = ("gradient", "loss", "weight", "buffer", "state")
    rows = [
        ["with" if line["probe"] else "without"]
        + [str(line["places"][place]) for place in named]
        + [f"{line['not_finite']} of {line['means']}", f"{line['largest']:.3g}"]
        for line in poisons
    ]
    tables.append(markdown(["probe", *named, "means not finite", "largest number in one"], rows))
    rows = []
    for line in soak:
        for look in (line["looks"][4], line["looks"][-1]):
            where = f"{line['door']}, step {look['step']:,}"
            size = f"{look['rss_mb']:.0f} MB", f"{look['state_bytes']:,} bytes"
            rows.append([where, *size, f"{look['step_us']:.0f} µs"])
    tables.append(markdown(["long run", "memory", "state", "processor time a step"], rows))
    checkpoints = sum(line.get("checkpoints", 0) for line in kills)
    asked = ", ".join(f"{result[name]['asked']:,} {what}" for name, what in _ASKED.items())
    tables.append(
        f"{len(kills)} runs were hit, and {sum(line.get('unreadable', 0) for line in kills)} of "
        f"{checkpoints:,} checkpoints were unreadable. `make chaos` asks for {asked}."
    )
    return "\n\n".join(tables)
