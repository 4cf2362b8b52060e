"""Made-up studies on which every rule about docs/evidence/paper.json reaches each of its verdicts."""

from __future__ import annotations

from typing import Any

from benchmarks.tools.claims import judges
from benchmarks.tools.claims.rules import Verdict

HOLDS, PARTLY, NOT_HERE, UNTESTED = Verdict


def edges(*intervals: tuple[float, float]) -> dict[str, Any]:
    """The interval of each arm's shift, on one course."""
    plain = {"plain": {"shift": 0.0, "low": 0.0, "high": 0.0}}
    arms = {
        f"σ = {k}, T = 10": {"shift": (low + high) / 2, "low": low, "high": high}
        for k, (low, high) in enumerate(intervals)
    }
    return {"edge": {"digits": {"shifts": plain | arms}, "cells": []}}


def ends(**rates: list[float]) -> dict[str, Any]:
    """Where Eq. 8 ends with a vote, by course; without one it is not judged."""
    cells = [
        {"course": course, "spread": spread, "final_rate": found}
        for course, final in rates.items()
        for spread, found in ((0.0, [0.9]), (0.1, final))
    ]
    return {"eq8": {"cells": [*cells, {"course": "charlm", "spread": 0.0}]}}


def votes(*lines: tuple[float, float, float]) -> dict[str, Any]:
    """σ, and what the vote changes with half of the interval."""
    return {
        "eq8": {
            "vote": [
                {"course": "charlm", "sigma": sigma, "mean": mean, "half": half}
                for sigma, mean, half in lines
            ]
        }
    }


def averaged(part: str, *counts: tuple[int, int]) -> dict[str, Any]:
    """Of ten settings so many below 0 and above, by course."""
    lines = [
        {"course": f"course {k}", "places": 10, "below": below, "above": above, "median": 0.01}
        for k, (below, above) in enumerate(counts)
    ]
    return {"averaging": {part: lines}}


def reassigned(*lines: tuple[str, float, float]) -> dict[str, Any]:
    """Arm, and its loss over that with reassignment, with half of the interval."""
    return {
        "parts": {
            "reassignment": [
                {"course": "feed", "lr": 9e-4, "arm": arm, "mean": mean, "half": half}
                for arm, mean, half in lines
            ]
        }
    }


CASES: dict[Any, list[tuple[Any, Verdict]]] = {
    judges.studies.edge_is_not_lowered: [
        ([edges((-0.3, 0.1), (0.01, 0.1))], HOLDS),
        ([edges((-0.3, 0.1), (-0.3, -0.1))], PARTLY),
        ([edges((-0.3, -0.1))], NOT_HERE),
        ([{}], UNTESTED),
    ],
    judges.studies.edge_is_hardly_raised: [
        ([edges((-0.3, 0.1), (0.01, 0.49))], HOLDS),
        ([edges((-0.3, 0.1), (0.01, 0.5))], PARTLY),
        ([edges((0.6, 0.9))], NOT_HERE),
        ([{}], UNTESTED),
    ],
    judges.studies.residual_rate: [
        ([ends(kuairand=[0.1, 0.5], charlm=[0.2])], HOLDS),
        ([ends(kuairand=[0.1, 0.5], charlm=[0.05, 0.2])], PARTLY),
        ([ends(kuairand=[0.2, 0.6])], NOT_HERE),
        ([ends()], UNTESTED),
        ([{}], UNTESTED),
    ],
    judges.studies.vote_changes_little: [
        ([votes((0.1, 0.001, 0.003), (0.1, -0.001, 0.003), (0.002, 0.02, 0.01))], HOLDS),
        ([votes((0.1, 0.001, 0.003), (0.1, 0.003, 0.003))], PARTLY),
        ([votes((0.1, -0.003, 0.003), (0.002, 0.0, 0.001))], NOT_HERE),
        ([{}], UNTESTED),
    ],
    judges.studies.close_averaging_generalises: [
        ([averaged("short", (6, 0), (10, 0))], HOLDS),
        ([averaged("short", (6, 0), (5, 0))], PARTLY),
        ([averaged("short", (5, 0), (0, 10))], NOT_HERE),
        ([averaged("long and wide", (6, 0))], UNTESTED),
    ],
    judges.studies.wide_and_long_harms: [
        ([averaged("long and wide", (0, 6), (0, 10))], HOLDS),
        ([averaged("long and wide", (0, 6), (0, 5))], PARTLY),
        ([averaged("long and wide", (10, 0))], NOT_HERE),
        ([averaged("short", (0, 6))], UNTESTED),
    ],
    judges.studies.reassignment_is_critical: [
        ([reassigned(("never reassigned", 0.02, 0.01), ("reassigned from S_w on", 0.0, 0.1))], HOLDS),
        ([reassigned(("never reassigned", 0.02, 0.01), ("never reassigned", 0.02, 0.03))], PARTLY),
        ([reassigned(("never reassigned", -0.02, 0.01), ("reassigned from S_w on", 0.2, 0.1))], NOT_HERE),
        ([reassigned(("reassigned from S_w on", 0.2, 0.1))], UNTESTED),
        ([{}], UNTESTED),
    ],
}
