"""What we say of other hyperparameters, and of several at once."""

from __future__ import annotations

from benchmarks.tools.claims.claim import Claim
from benchmarks.tools.claims.judges import several

__all__ = ["CLAIMS"]


CLAIMS = (
    Claim(
        "several",
        "docs/hyperparameters.md",
        "From far too low and too high, four others recover 80 % each (or three of them 50 %)",
        several.recovers,
        ("hyperparameters",),
    ),
    Claim(
        "several",
        "docs/hyperparameters.md",
        "Four at once beat one after the other at the same budget",
        several.all_at_once_beats_in_turn,
        ("hyperparameters",),
    ),
    Claim(
        "several",
        "docs/evidence.md",
        "AutoTune is ahead of every search at the same samples on two of three tasks",
        several.ahead_of_searches,
        ("autotune",),
    ),
    Claim(
        "several",
        "docs/evidence.md",
        "AutoTune ends within 3 % of a sweep of ten times its samples",
        several.near_the_truth,
        ("autotune",),
    ),
    Claim(
        "several",
        "docs/evidence.md",
        "Too low a temperature cannot be found by rounds of 25 steps: a better one does not look better yet",
        several.temperature_shows_late,
        ("delay",),
    ),
)
