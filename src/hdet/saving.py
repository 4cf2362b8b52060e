"""``save`` and ``load``: everything that a run needs to resume bit for bit, or nothing.

A checkpoint is a folder. ``shared.pt`` holds what is the same on all ranks, ``rank3.pt`` what is rank 3's
own, and ``manifest.json`` names the files, with their SHA-256. A save writes to ``<path>.writing`` and
renames it; the checkpoint before becomes ``<path>.previous``. At every moment one of the two is complete,
and :func:`load` finds it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

import hdet
from hdet.loop.state import digest, plain
from hdet.replicas import Replicas, find_replicas

__all__ = ["Loaded", "candidates", "examined", "load", "save"]

logger = logging.getLogger("hdet")
T = TypeVar("T")

_MANIFEST, _SHARED, _FORMAT = "manifest.json", "shared.pt", 1
#: All that a checkpoint consists of.
_OURS = re.compile(r"manifest\.json|shared\.pt|rank\d+\.pt")
#: The name under which the tensors of a state are saved.
_TENSORS = ": tensors"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What :func:`load` has loaded: the path, why it was not the newest checkpoint (or ""), and the plain
    values that were saved, by name."""

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
    """Write a checkpoint, complete or not at all. Every rank calls it, at the same step.

    Replicas that differ are averaged first. What is the same on all ranks is written once; what is not
    (shards, the window of replicas that differ, random states) each rank writes for itself.

    Args:
        path: of the folder, which all ranks can reach and which holds nothing else. An older checkpoint
            there becomes ``<path>.previous``.
        model, optimizer: what is trained, and by what.
        auto: an AutoLR, AutoTune, OneCycleAutoLR, Ensemble, BestMean or Guard.
        rng: whether torch's, its accelerators', numpy's and Python's random states are kept.
        **anything: objects with a ``state_dict`` (a scaler, a sampler), or plain values (an epoch).

    Raises:
        FileExistsError: on rank 0, where a folder that would be replaced is no checkpoint.
        OSError: where it cannot be written.
        RuntimeError: on all other ranks, where one of them failed. The checkpoint before is still there.

    >>> import tempfile
    >>> model = nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/run", model=model, epoch=3)
    ...     load(f"{folder}/run", model=model)["epoch"]
    3
    """
    ranks, folder = _Ranks.of("hdet.save", model, auto), Path(path)
    ranks.replicas.about_to("hdet.save(), which every rank calls")
    ranks.together("hdet.save", lambda: _refuse_other_files(folder) if ranks.mine == 0 else None)
    if getattr(auto, "apart", False):
        auto.converge()
    items = {"model": model, "optimizer": optimizer, "auto": auto, **anything}
    states: dict[str, Any] = {}
    sums: dict[str, str] = {}

    def take() -> None:
        for name, item in items.items():
            if item is not None:
                state = plain(item.state_dict() if hasattr(item, "state_dict") else item, name)
                _add(name, state, states, sums)

    ranks.together("hdet.save: taking the states", take)
    names = sorted(sums)
    rows = ranks.gather([number for name in names for number in _numbers(sums[name])])
    same = [len({tuple(row[8 * k : 8 * k + 8]) for row in rows}) == 1 for k in range(len(names))]
    own = {name for name, alike in zip(names, same, strict=True) if not alike}
    shared = {name: state for name, state in states.items() if name not in own}
    mine = {name: state for name, state in states.items() if name in own}
    mine |= {"rng": _random_states()} if rng else {}
    kinds = {name: "own" if name in own else "shared" for name in states}
    about = {"ranks": ranks.count, "steps": getattr(auto, "steps", None), "items": kinds}
    _write_all(folder, ranks, shared, mine, about)
    ranks.replicas.about_to("")


def load(
    path: str | PathLike[str],
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    auto: Any = None,
    rng: bool = True,
    **anything: Any,
) -> Loaded:
    """Load the newest checkpoint of :func:`save` that is complete on all ranks. Every rank calls it, with a
    model, an optimizer and an ``auto`` that are set up as they were.

    If the newest one is damaged, it loads the one before and warns. On another number of ranks it loads what
    is the same on all, and rank 0's where an ``auto`` has a state on each; no random states.

    Raises:
        ValueError: on all ranks, if there is no complete checkpoint, or it is of another model or optimizer;
            nothing has changed then.
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
    troubles: list[str] = []
    for candidate in candidates(Path(path)):
        states, same, trouble = _read(candidate, ranks, items)
        failed = [row[0] for row in ranks.gather([float(bool(trouble))])]
        if not any(failed):
            break
        troubles.append(
            trouble or f"{candidate} is damaged on rank {failed.index(1.0)}; see that rank's error"
        )
    else:
        raise ValueError(
            f"hdet.load: there must be a complete checkpoint at {path}, got {'; '.join(troubles)}"
        )
    if troubles:
        logger.warning("hdet.load: loads the checkpoint before, %s, since %s", candidate, troubles[0])

    def assign() -> None:
        for name, item in items.items():
            _check_fits(name, item, states[name])
        for name in sorted(items, key=lambda name: name == "auto"):  # auto checks the others
            items[name].load_state_dict(states[name])
        if rng and same and "rng" in states:
            _set_random_states(states["rng"])

    ranks.together("hdet.load", assign)
    values = {name: state for name, state in states.items() if name not in items and name != "rng"}
    return Loaded(candidate, troubles[0] if troubles else "", values)


def candidates(path: Path) -> list[Path]:
    """Where a checkpoint may be, the newest first; ``.replaced`` exists if renaming was interrupted."""
    return [path, *(path.with_name(path.name + end) for end in (".replaced", ".previous"))]


def examined(folder: Path) -> tuple[dict[str, Any], str]:
    """A checkpoint's manifest, and what is wrong with it, or ""."""
    manifest: dict[str, Any] = {}
    try:
        manifest = _manifest(folder)
        for name in manifest["files"]:
            _check_file(folder, name, manifest)
    except ValueError as error:
        return manifest, str(error)
    except Exception as error:  # json, torch and the disk raise many kinds
        return manifest, f"{type(error).__name__}: {error}"
    return manifest, ""


# ---------------------------------------------------------------------- ranks


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The processes that save together: those that train together."""

    replicas: Replicas

    @classmethod
    def of(cls, caller: str, model: nn.Module | None, auto: Any) -> _Ranks:
        found = getattr(auto, "replicas", None)
        if not isinstance(found, Replicas):
            found = find_replicas(caller, [] if model is None else model.parameters(), model=model)
        return cls(found)

    @property
    def mine(self) -> int:
        return self.replicas.world_rank // self.replicas.local_count

    @property
    def count(self) -> int:
        return self.replicas.world_size // self.replicas.local_count

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        return self.replicas.gather_ranks(row)[:: self.replicas.local_count]

    def together(self, what: str, act: Callable[[], T]) -> T:
        """Call it; if it raises on one rank, all raise."""
        results: list[T] = []

        def measure() -> list[float]:
            results.append(act())
            return []

        self.replicas.together(what, measure)
        return results[0]


def _numbers(text: str) -> list[float]:
    """A SHA-256 as eight whole numbers, which floats hold exactly."""
    return [float(int(text[at : at + 8], 16)) for at in range(0, 64, 8)]


# ---------------------------------------------------------------------- what is written


def _refuse_other_files(path: Path) -> None:
    """A save deletes folders: raise if one of them holds anything but a checkpoint's files."""
    for folder in (*candidates(path), path.with_name(path.name + ".writing")):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise FileExistsError(
                f"hdet.save: {folder} must be a folder or not exist, got a file or a link; give another path"
            )
        names = os.listdir(folder) if folder.exists() else []
        if others := [name for name in names if not _OURS.fullmatch(name)]:
            raise FileExistsError(
                f"hdet.save: {folder} must be a checkpoint or not exist, since a save replaces it whole, and "
                f"{min(others)!r} in it is no part of one; give a folder of its own, as {path / 'checkpoint'}"
            )


def _add(name: str, state: Any, states: dict[str, Any], sums: dict[str, str]) -> None:
    """Add a state and its checksum. Of a state of hdet's, values and tensors are added separately: each rank
    has its own values, but the tensors are copies of weights and mostly the same on all."""
    if not isinstance(state, Mapping) or state.keys() != {"state", "tensors"}:
        states[name], sums[name] = state, digest(state)
        return
    (values,) = state["state"]
    states[name], sums[name] = {"state": state["state"], "tensors": {}}, values["checksum"]
    states[name + _TENSORS], sums[name + _TENSORS] = state["tensors"], digest(values["sums"])


def _write_all(
    path: Path, ranks: _Ranks, shared: dict[str, Any], mine: dict[str, Any], about: Mapping[str, Any]
) -> None:
    folder, first = path.with_name(path.name + ".writing"), ranks.mine == 0

    def begin() -> None:
        if first:
            with _told(path):
                _begin(folder)

    ranks.together("hdet.save: making the folder", begin)
    hashes: dict[str, str] = {}

    def write() -> str:
        with _told(path):
            if first and shared:
                hashes[_SHARED] = _write(folder / _SHARED, shared)
            return _write(folder / f"rank{ranks.mine}.pt", mine) if mine else 64 * "0"

    own_hash = ranks.together("hdet.save: writing", write)
    for rank, row in enumerate(ranks.gather(_numbers(own_hash))):
        if any(row):
            hashes[f"rank{rank}.pt"] = "".join(f"{int(number):08x}" for number in row)

    def finish() -> None:
        if first:
            with _told(path):
                _seal(folder, {"format": _FORMAT, "hdet": hdet.__version__, **about, "files": hashes})
                _rename(folder, path)

    ranks.together("hdet.save: renaming it", finish)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the disk or torch raise says neither which call it was nor what to do."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        kind = type(error) if isinstance(error, OSError) else OSError  # torch's of a full disk is no OSError
        raise kind(
            f"hdet.save: the checkpoint must be written to {path}, and could not be: {type(error).__name__}: "
            f"{error}. Is the disk full, is the folder yours to write, and does no other run save to the "
            "same path? The checkpoint before, if there was one, is still there"
        ) from error


def _begin(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)  # of a save that was interrupted
    folder.mkdir()


def _write(file: Path, states: Mapping[str, Any]) -> str:
    with file.open("wb") as out:
        torch.save(dict(states), out)
    _sync(file)
    return _sha256(file)


def _seal(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest, once all files are there."""
    for name in manifest["files"]:
        if not (folder / name).exists():
            raise FileNotFoundError(
                f"all ranks must write to one folder, and {name} is not in {folder}; give a path on a disk "
                "that all machines share"
            )
    text = json.dumps({**manifest, "digest": digest(manifest)}, indent=1)
    (folder / _MANIFEST).write_text(text, encoding="utf-8")
    _sync(folder / _MANIFEST)
    _sync(folder)


def _rename(folder: Path, path: Path) -> None:
    """The old checkpoint becomes the previous one only after the new one has its name."""
    _, replaced, previous = candidates(path)
    if path.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        os.replace(path, replaced)
    os.replace(folder, path)
    _sync(path.parent)
    if replaced.exists():
        shutil.rmtree(previous, ignore_errors=True)
        os.replace(replaced, previous)
        _sync(path.parent)


def _sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---------------------------------------------------------------------- what is read


def _manifest(folder: Path) -> dict[str, Any]:
    if not (folder / _MANIFEST).is_file():  # what it links to may never end
        raise ValueError(f"{_MANIFEST} is missing")
    manifest: dict[str, Any] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    written = manifest.pop("digest", None)
    if isinstance(manifest.get("format"), int) and manifest["format"] > _FORMAT:
        raise ValueError(
            f"written by hdet {manifest.get('hdet')}, format {manifest['format']}; this one reads up to "
            f"{_FORMAT}"
        )
    if written != digest(manifest):
        raise ValueError(f"{_MANIFEST} is damaged: its checksum does not match")
    numbers = [manifest.get("ranks"), 0 if manifest.get("steps") is None else manifest["steps"]]
    tables = [manifest.get("files"), manifest.get("items")]
    if not all(type(n) is int for n in numbers) or not all(isinstance(t, dict) for t in tables):
        raise ValueError(f"{_MANIFEST} is damaged: it is none that hdet.save writes")
    return manifest


def _sha256(file: Path) -> str:
    hashed = hashlib.sha256()
    with file.open("rb") as content:
        while part := content.read(1 << 22):
            hashed.update(part)
    return hashed.hexdigest()


def _check_file(folder: Path, name: str, manifest: Mapping[str, Any]) -> None:
    if not _OURS.fullmatch(name) or not (folder / name).is_file():
        raise ValueError(f"{name!r} must be a file of a checkpoint, and is none, or missing")
    known, found = manifest["files"][name], _sha256(folder / name)
    if found != known:
        raise ValueError(f"{name} is damaged: its SHA-256 is {found}, and was {known}")


def _read(folder: Path, ranks: _Ranks, items: Mapping[str, Any]) -> tuple[dict[str, Any], bool, str]:
    """The states of a checkpoint, whether as many ranks saved it, and why it cannot be loaded, or ""."""
    try:
        manifest = _manifest(folder)
        same = manifest["ranks"] == ranks.count
        states = _states(folder, manifest, ranks, same=same)
        if missing := sorted(set(items) - set(states)):
            return {}, False, f"{folder} holds {', '.join(sorted(states))}, and not {missing[0]}"
    except Exception as error:  # json, torch and the disk raise many kinds
        return {}, False, f"{folder}: {type(error).__name__}: {error}"
    return states, same, ""


def _check_fits(name: str, item: Any, state: Mapping[str, Any]) -> None:
    """Raise ValueError for what is saved of another model or optimizer, and change nothing: torch loads what
    it can before it raises."""
    why = ""
    if isinstance(item, Optimizer):
        mine, saved = (
            [len(group["params"]) for group in g] for g in (item.param_groups, state["param_groups"])
        )
        why = "" if mine == saved else f"its groups hold {mine} parameters, and the saved ones {saved}"
    elif isinstance(item, nn.Module) and _shapes(item.state_dict()) != _shapes(state):
        before = deepcopy(item.state_dict())
        try:  # a module may know how to load other shapes
            item.load_state_dict(state)
        except RuntimeError as error:
            item.load_state_dict(before)
            why = " ".join(str(error).split())
    if why:
        raise ValueError(
            f"hdet.load: {name} must be built as it was when it was saved, and {why}. Nothing was loaded"
        )


def _shapes(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: getattr(value, "shape", None) for key, value in state.items()}


def _states(folder: Path, manifest: Mapping[str, Any], ranks: _Ranks, *, same: bool) -> dict[str, Any]:
    own = sorted(name for name, kind in manifest["items"].items() if kind == "own")
    cut = [name for name in own if name in ("model", "optimizer")]
    if not same and cut:
        raise ValueError(
            f"{cut[0]} was saved by each of {manifest['ranks']} ranks, and there are {ranks.count}: resume "
            "with as many, or use torch.distributed.checkpoint, which reshards it"
        )
    states: dict[str, Any] = {}
    for name in (_SHARED, f"rank{ranks.mine if same else 0}.pt"):
        if name in manifest["files"]:
            _check_file(folder, name, manifest)
            states |= torch.load(folder / name, map_location="cpu", weights_only=True)
    for name in [name for name in states if name.endswith(_TENSORS)]:
        states[name.removesuffix(_TENSORS)]["tensors"] = states.pop(name)
    if not same and own and ranks.mine == 0:
        logger.warning(
            "hdet.load: %s was saved on %d ranks, each its own, and there are %d: rank 0's is taken",
            " and ".join(own),
            manifest["ranks"],
            ranks.count,
        )
    return states


# ---------------------------------------------------------------------- random states


def _random_states() -> dict[str, Any]:
    """Torch's, its accelerators', Python's own, and numpy's if it is imported."""
    version, inner, gauss = random.getstate()
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, list(inner), gauss]}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = numpy.random.get_state()
        states["numpy"] = [str(kind), [int(key) for key in keys], int(rest[0]), int(rest[1]), float(rest[2])]
    return states


def _set_random_states(states: Mapping[str, Any]) -> None:
    """Set them, except for devices and libraries that this process does not have."""
    torch.set_rng_state(states["torch"])
    version, inner, gauss = states["python"]
    random.setstate((version, tuple(inner), gauss))
    if "cuda" in states and torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states and (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = states["numpy"]
        numpy.random.set_state((kind, keys, *rest))
