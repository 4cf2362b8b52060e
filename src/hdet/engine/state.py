"""The saved state of a run, and states that earlier versions have saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hdet.engine.schedule import CoveredSchedule
from hdet.engine.skips import Skips
from hdet.replicas import Replicas
from hdet.weights.outer import OuterStep

__all__ = [
    "check_explored",
    "check_part",
    "load_outer",
    "load_skips",
    "of_outer",
    "of_part",
    "of_policies",
    "of_skips",
]


def check_explored(caller: str, saved: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """A state is of the same hyperparameters, in the same order."""
    if len(saved) != len(names):
        raise ValueError(
            f"{caller}.load_state_dict: the state has {len(saved)} explored hyperparameters, this run "
            f"{len(names)}; use the parameter groups it was saved with"
        )
    saved_names = [of_axis.get("name", name) for of_axis, name in zip(saved, names, strict=True)]
    if saved_names != list(names):
        raise ValueError(
            f"{caller}.load_state_dict: the state must be of the same hyperparameters in the same "
            f"order, got {', '.join(saved_names)} for {', '.join(names)}; explore what it was saved with"
        )


def of_outer(outer: OuterStep | None) -> dict[str, Any]:
    """What an outer optimizer keeps, if there is one: tensors."""
    return {} if outer is None else {"outer": outer.state_dict()}


def load_outer(outer: OuterStep | None, saved: Mapping[str, Any]) -> None:
    """Hand it back. One that a run did not have before begins with the next round."""
    if outer is not None and "outer" in saved:
        outer.load_state_dict(saved["outer"])


def of_skips(skips: Skips, schedule: CoveredSchedule) -> dict[str, Any]:
    """Steps that fused optimizers have skipped and are yet to be taken back, and for which the schedule waits
    already, if there are any. Waits for the device."""
    ago = skips.ago()
    return {"skipped": ago, "waits": schedule.waits} if ago or schedule.waits else {}


def load_skips(skips: Skips, schedule: CoveredSchedule, saved: Mapping[str, Any]) -> None:
    """Hand them back."""
    schedule.waits = saved.get("waits", 0)
    skips.load(saved.get("skipped", []))


def of_part(replicas: Replicas) -> dict[str, Any]:
    """Which part of a replica a state is of, where replicas lie on several ranks."""
    return {"part": [replicas.part, replicas.parts]} if replicas.parts > 1 else {}


def check_part(caller: str, replicas: Replicas, saved: Mapping[str, Any]) -> None:
    """A state holds a rank's own shards: those of another part, or of another layout, mean nothing here."""
    part, parts = saved.get("part", [0, 1])
    if (part, parts) != (replicas.part, replicas.parts):
        raise ValueError(
            f"{caller}.load_state_dict: the state must be of this rank's own part of the model, "
            f"{replicas.part} of {replicas.parts}, got that of part {part} of {parts}; save a file for each "
            "rank, and go on with as many (a distributed checkpoint takes one rank's state for everybody's)"
        )


def of_policies(
    saved: Mapping[str, Any], kinds: Sequence[str]
) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """For the number of every policy what one of its kind had saved, or None: that one begins anew."""
    left = list(saved["policies"]) if "policies" in saved else _before_policies(saved)
    for i, kind in enumerate(kinds):
        found = next((of_policy for of_policy in left if of_policy["kind"] == kind), None)
        if found is not None:
            left.remove(found)
        yield i, found


def _before_policies(saved: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Before there were policies a state had what the one rule remembered at its top, whatever it was."""
    probe = saved.get("probe")
    found: list[Mapping[str, Any]] = [
        {"kind": "vote", "states": saved["states"], "probe": probe},
        {"kind": "regression", "joint": saved.get("joint", [[0.0, 0.0]]), "probe": probe},
    ]
    if saved.get("horizon") is not None:
        found.append({"kind": "horizon", **saved["horizon"]})
    return found
