"""How claims are judged by docs/evidence/paper.json, whose studies docs/protocols/paper.md describes.

A study that was not run judges nothing. Intervals are of 95 %, of the difference of logarithms seed by seed;
those of an edge are of resampled seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.tools.claims.rules import Judged, Place, Results, at_places, course_of, percent, signed

__all__ = [
    "close_averaging_generalises",
    "edge_is_hardly_raised",
    "edge_is_not_lowered",
    "reassignment_is_critical",
    "residual_rate",
    "vote_changes_little",
    "wide_and_long_harms",
]

Line = Mapping[str, Any]
#: Of the held-out loss, and of the rate at which training crashes.
_LITTLE, _HALF = 0.005, 0.5


def edge_is_not_lowered(results: Results) -> Judged:
    """An arm of a course counts unless the whole interval of its edge's shift lies below 0."""
    places = []
    for course, shifts in _shifts(results):
        for arm, line in shifts.items():
            ends = f"{_percent(line['low'])} to {_percent(line['high'])}"
            text = f"{course}, {arm}: {_percent(line['shift'])} ({ends}) %"
            places.append(Place(text, line["high"] >= 0))
    return at_places(places)


def edge_is_hardly_raised(results: Results) -> Judged:
    """An arm of a course counts if the whole interval of its edge's shift lies below a half."""
    places = []
    for course, shifts in _shifts(results):
        arm = max(shifts, key=lambda arm: shifts[arm]["high"])
        text = f"{course}: the highest end of an interval is {_percent(shifts[arm]['high'])} % ({arm})"
        told = [line["high"] < _HALF for line in shifts.values()]
        places += [Place("" if k else text, holds) for k, holds in enumerate(told)]
    return at_places(places)


def _shifts(results: Results) -> Iterator[tuple[str, dict[str, Line]]]:
    """Each course, and the shift of all its arms."""
    for result in results.values():
        for course, told in result.get("edge", {}).items():
            if course != "cells":
                arms = {arm: line for arm, line in told["shifts"].items() if arm != "plain"}
                yield course_of(course), arms


def residual_rate(results: Results) -> Judged:
    """A course counts if all runs by Eq. 8 with a vote end between a tenth and a half of their peak."""
    places = []
    for result in results.values():
        cells = [cell for cell in result.get("eq8", {}).get("cells", []) if cell["spread"]]
        for course in dict.fromkeys(cell["course"] for cell in cells):
            ends = [end for cell in cells if cell["course"] == course for end in cell["final_rate"]]
            text = f"{course_of(course)} {percent(min(ends), 0)} to {percent(max(ends), 0)} of the peak"
            places.append(Place(text, min(ends) >= 0.1 and max(ends) <= 0.5))
    return at_places(places)


def vote_changes_little(results: Results) -> Judged:
    """A course at a rate and a T counts if, at σ = 0.1, the whole interval of what fan-out and vote change
    lies within 0.5 % of 0. At σ = 0.002 it is told, and judges nothing.
    """
    places = []
    for result in results.values():
        lines = result.get("eq8", {}).get("vote", [])
        for course in dict.fromkeys(line["course"] for line in lines):
            here = [line for line in lines if line["course"] == course]
            usual = [line for line in here if line["sigma"] == 0.1]
            others = [line for line in here if line not in usual]
            text = f"{course_of(course)}: no interval goes beyond {percent(_farthest(usual))} at σ = 0.1"
            if others:
                text += f", beyond {percent(_farthest(others))} at σ = 0.002"
            told = [_farthest([line]) < _LITTLE for line in usual]
            places += [Place("" if k else text, holds) for k, holds in enumerate(told)]
    return at_places(places)


def close_averaging_generalises(results: Results) -> Judged:
    """A course counts if at T ≤ 10 the whole interval of its held-out loss over that of plain training lies
    below 0 in most of its settings (rate, α and N).
    """
    return _averaged(results, "short", "below")


def wide_and_long_harms(results: Results) -> Judged:
    """A course counts if with α ≥ 0.25 and T ≥ 200 that interval lies above 0 in most of its settings."""
    return _averaged(results, "long and wide", "above")


def _averaged(results: Results, part: str, side: str) -> Judged:
    places = []
    for result in results.values():
        for line in result.get("averaging", {}).get(part, []):
            text = f"{course_of(line['course'])}: {line['below']} of {line['places']} settings below, "
            text += f"{line['above']} above, median {_percent(line['median'])} %"
            places.append(Place(text, 2 * line[side] > line["places"]))
    return at_places(places)


def reassignment_is_critical(results: Results) -> Judged:
    """A rate counts if the whole interval of the held-out loss without any reassignment, over that with one
    in every round, lies above 0.
    """
    places = []
    for result in results.values():
        for line in result.get("parts", {}).get("reassignment", []):
            if line["arm"] == "never reassigned":
                text = f"{course_of(line['course'])} at {line['lr']:g}: {_told(line)}"
                places.append(Place(text, _ends(line)[0] > 0))
    return at_places(places)


def _ends(line: Line) -> tuple[float, float]:
    """Of the interval, as shares."""
    middle = math.log1p(line["mean"])
    return math.expm1(middle - line["half"]), math.expm1(middle + line["half"])


def _farthest(lines: Sequence[Line]) -> float:
    return max(abs(end) for line in lines for end in _ends(line))


def _told(line: Line) -> str:
    """The difference with its interval if that excludes 0, else what it is not larger than."""
    low, high = _ends(line)
    if low <= 0 <= high:
        return f"no difference larger than {percent(_farthest([line]))}"
    return (
        f"{signed(100 * line['mean'], '.2f')} ({signed(100 * low, '.2f')} to {signed(100 * high, '.2f')}) %"
    )


def _percent(share: float) -> str:
    return signed(100 * share, ".1f")
