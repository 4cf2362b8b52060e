"""What is kept for all processes is made once, by one of them, and whoever died over it is not waited for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from threading import Thread

import pytest
import torch
from torch import Tensor

from benchmarks.workloads import cifar
from benchmarks.workloads.base import generator


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_is_kept_is_made_once_by_whoever_comes_first(folder: Path) -> None:
    made: list[int] = []
    got: list[dict[str, Tensor]] = []

    def make() -> dict[str, Tensor]:
        made.append(1)
        return {"some": torch.arange(3.0), "count": torch.tensor(7)}

    threads = [Thread(target=lambda: got.append(cifar.kept("thing", make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(got) == 4
    assert all(part["some"].tolist() == [0, 1, 2] and part["count"] == 7 for part in got)
    assert [path.name for path in folder.iterdir()] == ["hdet_thing.npz"]


def test_augmented_images_are_flipped_and_shifted_ones() -> None:
    images = torch.arange(1, 19, dtype=torch.uint8).view(2, 3, 3, 1)
    batches = cifar.augmented(
        images, torch.tensor([0, 1]), size=2, shift=1, scaled=lambda x: x, draw=generator(0, "test")
    )
    seen: set[bytes] = set()
    for _ in range(200):
        cut, labels = next(batches)
        assert sorted(labels.tolist()) == [0, 1]
        seen |= {row.numpy().tobytes() for row, label in zip(cut, labels, strict=True) if label == 0}
    padded = torch.nn.functional.pad(images[0, :, :, 0], (1, 1, 1, 1))
    possible = {
        view.contiguous().numpy().tobytes()
        for down in range(3)
        for right in range(3)
        for view in (
            padded[down : down + 3, right : right + 3],
            padded[down : down + 3, right : right + 3].flip(1),
        )
    }
    assert seen == possible
