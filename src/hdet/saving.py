"""``save`` and ``load``: everything that a run needs to go on bit for bit, or nothing.

A checkpoint is a folder. ``shared.pt`` holds what is the same on all ranks, ``rank3.pt`` what is rank 3's
own, and ``manifest.json`` which files there are, with their SHA-256. It is written beside its place and put
there by renaming, whole; the one that was there becomes ``.previous``. Whenever writing is cut short, one of
the two is whole, and :func:`load` finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hdet import checkpoint, randomness
from hdet.engine.envelope import digest
from hdet.replicas import Replicas, find_replicas

__all__ = ["Loaded", "load", "save"]

logger = logging.getLogger("hdet")

_SHARED, _TENSORS = "shared.pt", ": tensors"
#: Where a door's state has the engine's.
_INNER = ("engine", "hdet")
#: What ``weights_only`` reads back.
_PLAIN = (type(None), bool, int, float, str, bytes, Tensor, torch.Size, torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What :func:`load` has taken: from where, why not from the newest one if so, and values that were saved
    under their names and are nobody's state."""

    path: Path
    why: str
    values: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def save(
    path: str | PathLike[str],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    auto: Any = None,
    rng: bool = True,
    **anything: Any,
) -> None:
    """Write a checkpoint, whole or not at all. Every rank calls it, at the same step.

    Replicas that are apart are made one model first. What is the same on all ranks is written once; what is
    not (shards, the window of a horizon that diverges, random states) each rank writes for itself.

    Args:
        path: of the folder, which all ranks can reach. One that is there becomes ``<path>.previous``.
        model, optimizer: what is trained, and by what.
        auto: an AutoLR, AutoTune, OneCycleAutoLR, Ensemble, BestMean or Guard.
        rng: whether torch's, its accelerators', numpy's and Python's random states are kept.
        **anything: whatever has a ``state_dict`` (a scaler, a sampler), or a plain value (an epoch).

    Raises:
        RuntimeError: on all ranks, where one of them failed. The checkpoint of before is still there.

    >>> import tempfile
    >>> model = nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/run", model=model, epoch=3)
    ...     load(f"{folder}/run", model=model)["epoch"]
    3
    """
    ranks = _Ranks.of("hdet.save", model, auto)
    if getattr(auto, "apart", False):
        auto.converge()
    items = {"model": model, "optimizer": optimizer, "auto": auto, **anything}
    states: dict[str, Any] = {}
    marks: dict[str, str] = {}

    def prepare() -> list[float]:
        for name, item in items.items():
            if item is not None:
                states.update(_parted(name, _state_of(name, item), marks))
        return [number for name in sorted(states) for number in _numbers(marks[name])]

    own = ranks.unlike("hdet.save: taking the states", prepare, states)
    steps = getattr(auto, "steps", None)
    _write_all(Path(path), ranks, states, own, randomness.now() if rng else None, steps)


def load(
    path: str | PathLike[str],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    auto: Any = None,
    rng: bool = True,
    **anything: Any,
) -> Loaded:
    """Take up where :func:`save` left off: the newest checkpoint that is whole on all ranks. Every rank calls
    it, with a model, an optimizer and an ``auto`` that are set up as they were.

    Where the newest one is not whole, the one before is taken, and said. On another number of ranks what is
    the same on all is taken, and of an ``auto``'s own state rank 0's; random states are not.

    Raises:
        ValueError: on all ranks, where there is no checkpoint that is whole; nothing has changed then.
    """
    named = {"model": model, "optimizer": optimizer, "auto": auto, **anything}
    items = {name: item for name, item in named.items() if item is not None}
    for name, item in items.items():
        if not hasattr(item, "load_state_dict"):
            raise TypeError(
                f"hdet.load: {name} must have load_state_dict, got {type(item).__name__}; leave it out, and "
                f"read load(...)[{name!r}]"
            )
    ranks = _Ranks.of("hdet.load", model, auto)
    newest = Path(path)
    troubles: list[str] = []
    for candidate in checkpoint.candidates(newest):
        read: list[tuple[dict[str, Any], dict[str, Any]]] = []
        trouble = _trouble(candidate, ranks, items, read)
        failed = [row[0] for row in ranks.gather([float(bool(trouble))])]
        if not any(failed):
            break
        troubles.append(
            trouble or f"{candidate} is not whole on rank {failed.index(1.0)}; its error says why"
        )
    else:
        raise ValueError(
            f"hdet.load: there must be a whole checkpoint at {newest}, got {'; '.join(troubles)}"
        )
    if troubles:
        logger.warning("hdet.load: takes the checkpoint before, %s, since %s", candidate, troubles[0])
    states, manifest = read[0]

    def take() -> None:
        for name in sorted(items, key=lambda name: name == "auto"):  # it looks at the others
            items[name].load_state_dict(states[name])
        if rng and "rng" in states and manifest["ranks"] == ranks.count:
            randomness.set_to(states["rng"])

    ranks.together("hdet.load", take)
    values = {name: state for name, state in states.items() if name not in items and name != "rng"}
    return Loaded(candidate, troubles[0] if troubles else "", values)


# ---------------------------------------------------------------------- ranks


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The processes that save together: those that train together. What fails on one fails on all."""

    replicas: Replicas

    @classmethod
    def of(cls, caller: str, model: nn.Module | None, auto: Any) -> _Ranks:
        found = getattr(auto, "replicas", None)
        if not isinstance(found, Replicas):
            found = find_replicas(caller, [] if model is None else model.parameters(), model=model)
        if found.elastic:
            raise ValueError(
                f"{caller}: ranks must stay while they save, got replicas that come and go; save with "
                "torch.save on each of them, and let whoever carries them hand over the state"
            )
        return cls(found)

    @property
    def mine(self) -> int:
        return self.replicas.place // self.replicas.here

    @property
    def count(self) -> int:
        return self.replicas.ranks // self.replicas.here

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        return self.replicas.gather_ranks(row)[:: self.replicas.here]

    def together(self, what: str, act: Callable[[], object]) -> None:
        def without_row() -> list[float]:
            act()
            return []

        self.replicas.together(what, without_row)

    def measured(self, what: str, measure: Callable[[], list[float]]) -> list[list[float]]:
        """The row of every rank, unless one has failed."""
        row: list[float] = []
        self.together(what, lambda: row.extend(measure()))
        return self.gather(row)

    def unlike(self, what: str, prepare: Callable[[], list[float]], states: Mapping[str, Any]) -> set[str]:
        """Which states are not the same on all ranks; ``prepare`` makes them, and their marks."""
        rows = self.measured(what, prepare)
        cut = {name: slice(8 * i, 8 * i + 8) for i, name in enumerate(sorted(states))}
        return {name for name, part in cut.items() if any(row[part] != rows[0][part] for row in rows)}


def _numbers(text: str) -> list[float]:
    """A hash as eight whole numbers, which floats hold exactly."""
    value = int(text, 16)
    return [float(value >> shift & 0xFFFFFFFF) for shift in range(0, 256, 32)]


def _joined(numbers: Sequence[float]) -> int:
    return sum(int(number) << shift for number, shift in zip(numbers, range(0, 256, 32), strict=True))


# ---------------------------------------------------------------------- what is written


def _state_of(name: str, item: Any) -> Any:
    state = item.state_dict() if hasattr(item, "state_dict") else item
    _refuse_strange(name, state)
    return state


def _parted(name: str, state: Any, marks: dict[str, str]) -> dict[str, Any]:
    """A door's state in two: its values, of which each rank has its own, and its tensors, which are copies of
    the weights and mostly the same on all. ``marks`` tells who has the same."""
    key = next((key for key in _INNER if isinstance(state, Mapping) and key in state), None)
    inner = state if key is None else state[key]
    if not isinstance(inner, Mapping) or not inner.keys() >= {"values", "tensors"}:
        marks[name] = digest(state)
        return {name: state}
    marks[name] = digest([state, inner["values"]])
    marks[name + _TENSORS] = digest(inner["values"][0]["sums"])
    bare = {**inner, "tensors": {}}
    return {name: bare if key is None else {**state, key: bare}, name + _TENSORS: inner["tensors"]}


def _joined_states(states: dict[str, Any]) -> dict[str, Any]:
    """What :func:`_parted` has taken apart."""
    for name in [name for name in states if name.endswith(_TENSORS)]:
        state, tensors = states[name.removesuffix(_TENSORS)], states.pop(name)
        inner = next((state[key] for key in _INNER if key in state), state)
        inner["tensors"] = tensors
    return states


def _refuse_strange(name: str, value: Any) -> None:
    """What could not be read back is refused when it is saved, not when it is needed."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            _refuse_strange(f"{name}.{key}", one)
    elif type(value) in (list, tuple):
        for i, one in enumerate(value):
            _refuse_strange(f"{name}[{i}]", one)
    elif not isinstance(value, _PLAIN):
        raise TypeError(
            f"hdet.save: {name} must be made of tensors, numbers, text, lists and dicts, which are read back "
            f"without running code, got {type(value).__name__}; give something with a state_dict of such"
        )


def _write_all(
    path: Path,
    ranks: _Ranks,
    states: Mapping[str, Any],
    own: set[str],
    rng: dict[str, Any] | None,
    steps: int | None,
) -> None:
    mine = {name: state for name, state in states.items() if name in own}
    mine |= {} if rng is None else {"rng": rng}
    shared = {name: state for name, state in states.items() if name not in own}
    folder, first = path.with_name(path.name + ".writing"), ranks.mine == 0
    ranks.together("hdet.save: making the folder", lambda: checkpoint.begin(folder) if first else None)
    hashes: dict[str, str] = {}

    def write() -> list[float]:
        if first and shared:
            hashes[_SHARED] = checkpoint.write(folder / _SHARED, shared)
        return _numbers(checkpoint.write(folder / f"rank{ranks.mine}.pt", mine) if mine else "0")

    written = [_joined(row) for row in ranks.measured("hdet.save: writing", write)]
    hashes |= {f"rank{r}.pt": f"{found:064x}" for r, found in enumerate(written) if found}

    def finish() -> None:
        if first:
            kinds = {name: "own" if name in own else "shared" for name in states}
            checkpoint.seal(folder, hashes, {"ranks": ranks.count, "steps": steps, "items": kinds})
            checkpoint.put(folder, path)

    ranks.together("hdet.save: putting it in its place", finish)


# ---------------------------------------------------------------------- what is read


def _trouble(
    folder: Path,
    ranks: _Ranks,
    items: Mapping[str, Any],
    read: list[tuple[dict[str, Any], dict[str, Any]]],
) -> str:
    """Why a checkpoint cannot be taken; if it can, its states and manifest are put into ``read``."""
    try:
        manifest = checkpoint.manifest_of(folder)
        states = _states(folder, manifest, ranks)
        if missing := sorted(set(items) - set(states)):
            return f"{folder} holds {', '.join(sorted(states))}, and not {missing[0]}"
    except Exception as error:  # whatever is damaged, torch and json have many words for it
        return f"{folder}: {type(error).__name__}: {error}"
    read.append((states, manifest))
    return ""


def _states(folder: Path, manifest: Mapping[str, Any], ranks: _Ranks) -> dict[str, Any]:
    same = manifest["ranks"] == ranks.count
    own = sorted(name for name, kind in manifest["items"].items() if kind == "own")
    cut = [name for name in own if name in ("model", "optimizer")]
    if not same and cut:
        raise ValueError(
            f"{cut[0]} was saved by each of {manifest['ranks']} ranks, and there are {ranks.count}: go on "
            "with as many, or use torch.distributed.checkpoint, which cuts it anew"
        )
    states: dict[str, Any] = {}
    for name in (_SHARED, f"rank{ranks.mine if same else 0}.pt"):
        if name not in manifest["files"]:
            continue
        if (found := checkpoint.sha256_of(folder / name)) != manifest["files"][name]:
            raise ValueError(f"{name} is damaged: its SHA-256 is {found}, not {manifest['files'][name]}")
        states |= torch.load(folder / name, map_location="cpu", weights_only=True)
    if not same and own and ranks.mine == 0:
        logger.warning(
            "hdet.load: %s was saved on %d ranks, each its own, and there are %d: rank 0's is taken",
            " and ".join(own),
            manifest["ranks"],
            ranks.count,
        )
    return _joined_states(states)
