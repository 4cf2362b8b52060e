"""The saved state of a run, and states that earlier versions have saved.

:func:`make` and :func:`take` are the one place where a state is made, and where it is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from hdet import rules
from hdet.engine.envelope import damaged, digest
from hdet.engine.optimizers import parts_of
from hdet.engine.schedule import CoveredSchedule
from hdet.engine.skips import Skips
from hdet.policies.base import Policy
from hdet.replicas import Replicas, is_flat, local, ruler
from hdet.weights.outer import OuterStep
from hdet.weights.parameters import every_parameter
from hdet.weights.parcel import Parcel
from hdet.weights.sums import sums_of

__all__ = [
    "check_explored",
    "check_numbers",
    "check_tensors",
    "load_outer",
    "load_skips",
    "make",
    "of_outer",
    "of_policies",
    "of_skips",
    "take",
]

#: Names at the top of a state, and those of before there were two halves.
NEEDED: tuple[str, ...] = ()
_BEFORE = ("steps", "round", "seed", "explored", "policies", "explained", "loss", "arms", "outer", "skipped")
KNOWN = ("values", "tensors", *_BEFORE, "waits", "part", "states", "joint", "probe", "horizon")

logger = logging.getLogger("hdet")


def make(replicas: Replicas, parameters: Iterable[Tensor], state: Mapping[str, Any]) -> dict[str, Any]:
    """A state for files: ``values``, which a distributed checkpoint does not look into (it takes a tuple for
    one thing), and ``tensors`` under keys that do not change during a run."""
    parcel = Parcel.of(state)
    every = list(parameters)
    numbers = {id(parameter): i for i, parameter in enumerate(every)}
    tensors = {"ruler": ruler(every), **parcel.tensors} if parcel.tensors else {}
    bound = parcel.bound or bool(tensors and not replicas.reshards)
    values = {
        "state": parcel.values,
        "part": [replicas.part, replicas.parts],
        "cut": bool(tensors),
        "bound": bound,
        "sums": sums_of({key: parcel.tensors[key] for key in parcel.whose}),
        "of": {
            key: numbers[id(parameter)]
            for key, parameter in parcel.whose.items()
            if id(parameter) in numbers and local(parcel.tensors[key]).shape == local(parameter).shape
        },
    }
    values["digest"] = digest(values)
    if bound:  # a checkpoint is not to cut them, nor to take one rank's for another's
        values["tensors"], tensors = tensors, {}
    return {"values": (values,), "tensors": tensors}


def take(
    caller: str, replicas: Replicas, parameters: Iterable[Tensor], saved: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What was given to :func:`make`, with this rank's own shards in it. Raises ValueError for others'."""
    if "values" not in saved:  # saved when a state was one tree, of one rank's tensors
        _check_part(caller, replicas, saved.get("part", [0, 1]))
        if replicas.parts > 1 and replicas.reshards:
            raise ValueError(
                f"{caller}.load_state_dict: the state of a sharded model must be of this version: in one of "
                "before, every rank has a sketch of its own weights alone; take the model's and the "
                "optimizer's, and begin the search anew"
            )
        return saved
    (values,) = saved["values"]
    own = {name: value for name, value in values.items() if name not in ("digest", "tensors")}
    if values.get("digest") != digest(own):
        raise damaged(f"{caller}.load_state_dict")
    tensors: dict[str, Tensor] = values.get("tensors", saved["tensors"])
    if values["bound"]:
        _check_part(caller, replicas, values["part"])
    elif values["cut"] and not replicas.reshards:
        raise _is_cut_otherwise(caller, replicas)
    elif values["cut"]:
        _check_shards(caller, replicas, local(tensors["ruler"]), local(ruler(parameters)))
    state, missing, dropped = Parcel(values["state"], tensors).opened()
    if missing:
        raise ValueError(
            f"{caller}.load_state_dict: the state must hold all its tensors, and {len(missing)} are missing, "
            f"the first is {missing[0]!r}: a distributed checkpoint loads what state_dict() of this object "
            "asks for, and the optimizer had no state, or trained other parameters, when it was called. Load "
            "the optimizer first, then call state_dict() and dcp.load"
        )
    if dropped:
        logger.warning(
            "%s.load_state_dict: %d tensors have no place in this state and are made anew: the optimizer "
            "state with which the run began; a restart from there begins without it",
            caller,
            len(dropped),
        )
    return state  # type: ignore[no-any-return]  # as it was given


def check_tensors(
    caller: str, replicas: Replicas, parameters: Sequence[Tensor], saved: Mapping[str, Any]
) -> None:
    """Every piece is as large as its parameter, and holds what it held: the latter where it is cut as it was.
    Another part's sums say nothing here; plain values have those of the envelope, always. A state of before
    has no sums."""
    if "values" not in saved:
        return
    values = saved["values"][0]
    tensors = values.get("tensors", saved["tensors"])
    for key, number in values.get("of", {}).items():
        found, own = local(tensors[key]).shape if key in tensors else None, local(parameters[number]).shape
        if found is not None and found != own:
            raise ValueError(
                f"{caller}.load_state_dict: the state must be of a model of the same shapes: {key!r} is of "
                f"shape {tuple(found)}, and parameter {number} of {tuple(own)}"
            )
    if list(values["part"]) != [replicas.part, replicas.parts]:
        return
    now = sums_of({key: tensors[key] for key in values.get("sums", ()) if key in tensors})
    for key, (dtype, shape, total) in now.items():
        was = values["sums"][key]
        if list(was[:2]) == [dtype, shape] and was[2] != total:
            raise ValueError(
                f"{caller}.load_state_dict: the state is damaged: the checksum of {key!r} is {total}, and "
                f"was {was[2]}; go back to an earlier checkpoint. (A distributed one takes each tensor "
                "from any rank: replicas must be one model, at a sync, when it is saved)"
            )


def check_numbers(caller: str, saved: Mapping[str, Any], total_steps: int | None) -> None:
    """What the engine counts can be counted."""
    rules.count(caller, "steps", saved["steps"], most=total_steps)
    rules.count(caller, "round", saved["round"])
    rules.number(caller, "seed", saved["seed"])
    rules.number(caller, "explained", saved.get("explained", 0.0))
    loss = saved["loss"]
    rules.count(caller, "loss.count", loss["count"])
    rules.count(caller, "loss.rank", loss["rank"])
    rules.count(caller, "waits", saved.get("waits", 0))


def configuration(
    optimizer: Optimizer, policies: Sequence[Policy], spreads: Sequence[float], total_steps: int | None
) -> dict[str, Any]:
    """How a run was set up, as far as its state depends on it."""
    return {
        "total_steps": total_steps,
        "explored": [axis.name for policy in policies for axis in policy.axes],
        "spread": list(spreads),
        "policies": [policy.kind for policy in policies],
        "optimizers": [type(part).__name__ for part in parts_of(optimizer)],
        "groups": [len(group["params"]) for group in optimizer.param_groups],
        "shapes": [[] if is_flat(p) else list(p.shape) for p in every_parameter(optimizer)],
    }


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


def _check_part(caller: str, replicas: Replicas, saved: Sequence[int]) -> None:
    """A state that cannot be cut otherwise is of one part: another part's, or another layout's, means nothing
    here."""
    part, parts = saved
    if (part, parts) != (replicas.part, replicas.parts):
        raise ValueError(
            f"{caller}.load_state_dict: the state must be of this rank's own part of the model, "
            f"{replicas.part} of {replicas.parts}, got that of part {part} of {parts}; save a file for each "
            "rank, and go on with as many. Flat parameters (FullyShardedDataParallel), the state of a "
            "ZeroRedundancyOptimizer and quantised state cannot be cut otherwise; fully_shard's can, through "
            "torch.distributed.checkpoint"
        )


def _is_cut_otherwise(caller: str, replicas: Replicas) -> ValueError:
    return ValueError(
        f"{caller}.load_state_dict: the state is of a model whose shards know where they lie, and those of "
        f"this one, part {replicas.part} of {replicas.parts}, do not (FullyShardedDataParallel, "
        "ZeroRedundancyOptimizer); shard it with fully_shard, or begin the search anew"
    )


def _check_shards(caller: str, replicas: Replicas, marks: Tensor, own: Tensor) -> None:
    """A state holds this rank's shards: its own file has them, and a distributed checkpoint cuts them."""
    if not torch.equal(marks.cpu(), own):
        first = int(marks[0]) if marks.numel() else None
        raise ValueError(
            f"{caller}.load_state_dict: the state must be of this rank's own part of the model, "
            f"{replicas.part} of {replicas.parts}, got another's ({marks.numel()} marks from {first} on, for "
            f"{own.numel()} from {int(own[0]) if own.numel() else None} on); save a file for each rank, and "
            "go on with as many, or save and load with torch.distributed.checkpoint, which cuts it anew"
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
