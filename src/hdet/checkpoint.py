"""A checkpoint on the disk: a folder that is put in its place whole, and known to be whole when it is read.

The one that was there before is kept, and at every moment one of the two is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import hdet
from hdet.engine.envelope import digest

__all__ = [*("begin", "candidates", "examined", "manifest_of", "put", "seal", "sha256_of", "write")]

_MANIFEST, _FORMAT = "manifest.json", 1


def begin(folder: Path) -> None:
    """An empty one, beside its place."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)  # of a save that was cut short
    folder.mkdir()


def write(file: Path, states: Mapping[str, Any]) -> str:
    """A file of it, on the disk; its SHA-256."""
    with file.open("wb") as out:
        torch.save(dict(states), out)
        out.flush()
        os.fsync(out.fileno())
    return sha256_of(file)


def seal(folder: Path, hashes: Mapping[str, str], about: Mapping[str, Any]) -> None:
    """Everything is there and on the disk."""
    for name in hashes:
        if not (folder / name).exists():
            raise FileNotFoundError(
                f"hdet.save: all ranks must write to one folder, and {name} is not in {folder}; give a path "
                "on a disk that all machines share"
            )
    manifest = {"format": _FORMAT, "hdet": hdet.__version__, **about, "files": dict(hashes)}
    with (folder / _MANIFEST).open("w", encoding="utf-8") as out:
        json.dump({**manifest, "digest": digest(manifest)}, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    _sync(folder)


def put(folder: Path, path: Path) -> None:
    """In its place; the one that is there becomes the previous one, once the new one is there."""
    replaced, previous = (path.with_name(path.name + end) for end in (".replaced", ".previous"))
    if path.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        os.replace(path, replaced)
    os.replace(folder, path)
    _sync(path.parent)
    if replaced.exists():
        shutil.rmtree(previous, ignore_errors=True)
        os.replace(replaced, previous)
        _sync(path.parent)


def candidates(path: Path) -> list[Path]:
    """Where a whole one may be, the newest first. The second is there where putting was cut short."""
    return [path, *(path.with_name(path.name + end) for end in (".replaced", ".previous"))]


def manifest_of(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of itself. Raises for one that is damaged, or of a later format."""
    manifest: dict[str, Any] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    said = manifest.pop("digest", None)
    if isinstance(manifest.get("format"), int) and manifest["format"] > _FORMAT:
        raise ValueError(
            f"written by hdet {manifest.get('hdet')}, format {manifest['format']}; this one reads up to "
            f"{_FORMAT}"
        )
    if said != digest(manifest):
        raise ValueError(f"{_MANIFEST} is damaged: its checksum is not that of what it says")
    return manifest


def examined(folder: Path) -> tuple[dict[str, Any], str]:
    """What a checkpoint says of itself, and what is wrong with it: "" where all files are what they were."""
    try:
        manifest = manifest_of(folder)
        for name, known in manifest["files"].items():
            if (found := sha256_of(folder / name)) != known:
                return manifest, f"{name} is damaged: its SHA-256 is {found}, and was {known}"
    except Exception as error:  # whatever is damaged, json and the disk have many words for it
        return {}, f"{type(error).__name__}: {error}"
    return manifest, ""


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(file: Path) -> str:
    """Of a file's content."""
    hashed = hashlib.sha256()
    with file.open("rb") as content:
        while part := content.read(1 << 22):
            hashed.update(part)
    return hashed.hexdigest()
