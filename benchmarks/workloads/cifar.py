"""What the tasks on photographs share: CIFAR-10, decoded once for each machine, and augmented.

What takes long to make and is the same for every process lies in the system's folder for temporary files.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.workloads.base import Batch, data_file

__all__ = ["CLASSES", "PIXELS", "Scaled", "augmented", "decoded", "kept", "scaling"]

CLASSES = 10
PIXELS = 32
#: From images as :func:`decoded` has them to what a model is given.
Scaled = Callable[[Tensor], Tensor]
_FILE = "cifar10_24k.npz"
# A maker that has not finished after so many seconds is taken for dead.
_PATIENCE = 300.0


def decoded(folder: str | Path | None = None, pixels: int = PIXELS, name: str = _FILE) -> dict[str, Tensor]:
    """``{train,test}_image``, uint8 of shape (images, pixels, pixels, 3), and ``_label``.

    From the file of that name, sought where :func:`.base.data_file` says. Smaller images are means over
    squares. The result is :func:`kept` under the size of the file, since decoding takes seconds and a
    benchmark starts many processes.
    """
    path = data_file(name, folder)
    return kept(f"{path.stem}_{path.stat().st_size}_{pixels}px", lambda: _decode(path, pixels))


def scaling(images: Tensor, device: str) -> Scaled:
    """What gives images like these, as :func:`decoded` has them, mean 0 and deviation 1 in every channel."""
    mean, std = images.float().mean((0, 1, 2)).to(device), images.float().std((0, 1, 2)).to(device)
    # Stored as (image, row, column, channel): the permuted view is what torch calls channels_last.
    return lambda some: ((some - mean) / std).permute(0, 3, 1, 2)


def augmented(
    images: Tensor,
    labels: Tensor,
    *,
    size: int,
    shift: int,
    scaled: Scaled,
    draw: torch.Generator,
) -> Iterator[Batch]:
    """Endless batches of ``size`` images, flipped at random and shifted by up to ``shift`` pixels."""
    padded = F.pad(images, (0, 0, shift, shift, shift, shift))
    rows, device = len(labels), labels.device
    pixels = torch.arange(images.shape[1], device=device)
    while True:
        order = torch.randperm(rows, generator=draw).to(device)
        down, right = torch.randint(2 * shift + 1, (2, rows, 1), generator=draw).to(device)
        flip = (torch.rand(rows, 1, generator=draw) < 0.5).to(device)
        down = down + pixels
        right = right + torch.where(flip, pixels.flip(0), pixels)
        for start in range(0, rows - size + 1, size):
            part = slice(start, start + size)
            chosen = order[part]
            cut = padded[chosen[:, None, None], down[part, :, None], right[part, None, :]]
            yield scaled(cut), labels[chosen]


def kept(name: str, make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What ``make`` gives, made by the first process that asks and kept for all under ``name``.

    The name must hold all that the tensors depend on. Others wait for the first, but not for long.
    """
    import numpy as np

    cache = Path(tempfile.gettempdir()) / f"hdet_{name}.npz"
    lock = cache.with_suffix(".lock")
    while not cache.exists():
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            _wait_for(lock)
            continue
        try:
            if not cache.exists():  # or it was made between the look and the lock
                _write(cache, make())
        finally:
            lock.unlink(missing_ok=True)
    with np.load(cache, allow_pickle=False) as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays.files}


def _wait_for(lock: Path) -> None:
    """A moment; a lock that is too old to be held is taken away."""
    try:
        if time.time() - lock.stat().st_mtime > _PATIENCE:
            lock.unlink()
    except FileNotFoundError:
        return
    time.sleep(0.1)


def _write(cache: Path, tensors: Mapping[str, Tensor]) -> None:
    import numpy as np

    # Written aside and renamed: a process that starts meanwhile sees the whole file or none.
    handle, aside = tempfile.mkstemp(dir=cache.parent, prefix=cache.stem)
    with os.fdopen(handle, "wb") as file:
        np.savez(file, **{key: part.cpu().numpy() for key, part in tensors.items()})  # type: ignore[arg-type]
    os.replace(aside, cache)


def _decode(path: Path, pixels: int) -> dict[str, Tensor]:
    import numpy as np

    image_of = _decoder()
    parts: dict[str, Tensor] = {}
    with np.load(path, allow_pickle=False) as file:
        for part in ("train", "test"):
            jpeg, offset = file[f"{part}_jpeg"].tobytes(), file[f"{part}_offset"].tolist()
            images = np.stack([image_of(jpeg[start:end]) for start, end in pairwise(offset)])
            square = PIXELS // pixels
            grouped = torch.from_numpy(images).view(-1, pixels, square, pixels, square, 3)
            parts[f"{part}_image"] = grouped.float().mean((2, 4)).round().to(torch.uint8)
            parts[f"{part}_label"] = torch.from_numpy(file[f"{part}_label"]).long()
    return parts


def _decoder() -> Callable[[bytes], Any]:
    """From a JPEG file to (row, column, channel), by Pillow or else torchvision."""
    import numpy as np

    with suppress(ImportError):
        pillow: Any = import_module("PIL.Image")
        return lambda jpeg: np.asarray(pillow.open(io.BytesIO(jpeg)).convert("RGB"))
    try:
        vision: Any = import_module("torchvision.io")
    except ImportError as error:
        raise ModuleNotFoundError(
            "benchmarks.workloads.cifar needs Pillow or torchvision to decode the images: pip install pillow"
        ) from error

    def image_of(jpeg: bytes) -> Any:
        file = torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)
        return vision.decode_jpeg(file, vision.ImageReadMode.RGB).permute(1, 2, 0).numpy()

    return image_of
