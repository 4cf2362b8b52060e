"""Kills, poisons and a long run: how claims are judged.

Goals stand in the JSON files, with what was measured and whether they are met: most rules count those.
"""

from __future__ import annotations

from benchmarks.tools.claims.rules import (
    Judged,
    Place,
    Results,
    at_places,
)

__all__ = [
    "no_kill_is_felt",
    "no_poison_is_averaged",
    "nothing_grows",
]


def no_kill_is_felt(results: Results) -> Judged:
    """A door counts if no run of its own that was hit broke what is promised."""
    (result,) = results.values()
    lines = result["kills"]["lines"]
    places = []
    for door in sorted({line["door"] for line in lines}):
        mine = [line for line in lines if line["door"] == door]
        hits = sum(len(line["hits"]) for line in mine)
        broken = sum(bool(line["broken"]) for line in mine)
        places.append(Place(f"{door}: {hits} hits in {len(mine)} runs, {broken} runs broken", not broken))
    return at_places(places)


def no_poison_is_averaged(results: Results) -> Judged:
    """A run, with a probe or without one, counts if no mean in it was not finite, or exploded."""
    (result,) = results.values()
    places = []
    for line in result["poisons"]["lines"]:
        text = (
            f"{line['poisons']} poisons {'with' if line['probe'] else 'without'} a probe: "
            f"{line['not_finite']} of {line['means']} means not finite"
        )
        places.append(Place(text, not line["broken"]))
    return at_places(places)


def nothing_grows(results: Results) -> Judged:
    """A door counts if at the end of its long run neither memory nor state nor step time has grown."""
    (result,) = results.values()
    places = []
    for line in result["soak"]["lines"]:
        text = f"{line['door']}, {line['steps']:,} steps: {line['broken'] or 'flat'}"
        places.append(Place(text, not line["broken"]))
    return at_places(places)
