"""The file of images, and how training looks at them."""

from __future__ import annotations

import io
import sys
import tempfile
import types
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.speedrun.images import FILE, batches, fetch, load, view
from benchmarks.workloads.cifar import decoded


def test_what_is_fetched_decodes_to_the_images_and_their_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a decoder of our own in torchvision's place, and raw pixels in that of JPEG files."""
    colours = {}
    for part, number in (("train", 3), ("test", 2)):
        for label, name in enumerate(("cat", "dog")):
            (tmp_path / "clone" / part / name).mkdir(parents=True)
            for k in range(number):
                colours[part, label, k] = np.full((32, 32, 3), 100 * label + 10 * k + number, np.uint8)
                (tmp_path / f"clone/{part}/{name}/{k:04}.jpg").write_bytes(colours[part, label, k].tobytes())
    said: list[str] = []
    fetch(tmp_path / "made", tmp_path / "clone", said.append)
    assert "no licence stated" in said[0]

    vision: Any = types.ModuleType("torchvision.io")
    vision.ImageReadMode = types.SimpleNamespace(RGB="RGB")
    vision.decode_jpeg = lambda file, mode: file.view(32, 32, 3).permute(2, 0, 1)
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.io", vision)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    parts = decoded(tmp_path / "made", name=FILE)
    for part, number in (("train", 3), ("test", 2)):
        assert parts[f"{part}_label"].tolist() == [0] * number + [1] * number
        expected = [colours[part, label, k] for label in (0, 1) for k in range(number)]
        assert np.array_equal(parts[f"{part}_image"].numpy(), np.stack(expected))


def test_pillow_is_taken_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pillow = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pillow.new("RGB", (32, 32), (200, 100, 50)).save(file, "JPEG")
    for name in ("train/cat", "test/cat"):
        (tmp_path / "clone" / name).mkdir(parents=True)
        (tmp_path / "clone" / name / "0.jpg").write_bytes(file.getvalue())
    fetch(tmp_path, tmp_path / "clone", lambda text: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = decoded(tmp_path, name=FILE)["train_image"][0, 5, 5].int()
    assert (seen - torch.tensor([200, 100, 50])).abs().max() <= 2


def test_a_view_is_moved_with_reflected_borders_and_then_mirrored() -> None:
    images = torch.arange(2 * 5 * 5 * 3).view(2, 5, 5, 3)
    padded = torch.nn.functional.pad(images.permute(0, 3, 1, 2).double(), (2, 2, 2, 2), "reflect")
    padded = padded.permute(0, 2, 3, 1)
    for row, down, right, mirrored in [(0, 0, 0, 0), (1, -2, 1, 0), (1, 2, 2, 1), (0, 1, -2, 1)]:
        (seen,) = view(images, *(torch.tensor([n]) for n in (row, down, right)), torch.tensor([mirrored > 0]))
        expected = padded[row, 2 + down : 7 + down, 2 + right : 7 + right]
        assert torch.equal(seen.double(), expected.flip(1) if mirrored else expected)


def test_an_image_is_mirrored_in_every_other_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its rows once an epoch; the last ones, too few for a batch, are left out."""
    calls: list[tuple[torch.Tensor, torch.Tensor]] = []

    def watched(
        images: torch.Tensor, rows: torch.Tensor, down: torch.Tensor, right: torch.Tensor, flip: torch.Tensor
    ) -> torch.Tensor:
        assert max(down.abs().max(), right.abs().max()) <= 2
        calls.append((rows, flip))
        return view(images, rows, down, right, flip)

    monkeypatch.setattr("benchmarks.speedrun.images.view", watched)
    rows = torch.arange(0, 80, 2)
    list(islice(batches(load("cpu", 100), rows, 20, torch.Generator().manual_seed(0)), 6))
    epochs = [
        dict(
            zip(torch.cat([r for r, _ in two]).tolist(), torch.cat([f for _, f in two]).tolist(), strict=True)
        )
        for two in (calls[0:2], calls[2:4], calls[4:6])
    ]
    assert all(set(epoch) == set(rows.tolist()) for epoch in epochs)
    assert epochs[0] == epochs[2] == {row: not flip for row, flip in epochs[1].items()}
    assert 0 < sum(epochs[0].values()) < len(rows)
