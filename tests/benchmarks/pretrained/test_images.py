"""The runs on pictures, with a tiny random network in place of the pretrained one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.pretrained.fetch import save_images, save_lite
from benchmarks.pretrained.lite import LITE0, EfficientNetLite, load_lite, named
from benchmarks.pretrained.plan import Run
from benchmarks.pretrained.runs import FOLDER, execute

TINY = {"stem": 8, "stages": [[1, 3, 1, 1, 8], [2, 5, 2, 2, 8]], "head": 16, "pixels": 16}
RUN = Run("photos", "usual", 0, 1e-3, 0.2, 2)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, and two sets of pictures whose brightness tells the class."""
    torch.manual_seed(0)
    save_lite(tmp_path / "efficientnet-lite0.pt", TINY, EfficientNetLite(7, 0.2, False, **TINY).state_dict())
    draw = np.random.RandomState(0)
    labels = draw.randint(3, size=200)
    pictures = (80 * labels[:, None, None, None] + draw.randint(60, size=(200, 8, 8, 3))).astype(np.uint8)
    for task in ("photos", "characters"):
        save_images(tmp_path / f"{task}.npz", pictures, labels, 160)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("task", ["photos", "characters"])
@pytest.mark.parametrize("arm", ["usual", "autolr", "sweep", "prodigy"])
def test_pictures_are_told_by_loss_and_accuracy(task: str, arm: str) -> None:
    if arm == "prodigy":
        pytest.importorskip("prodigyopt")
    rate = 1e-2 if arm in ("usual", "sweep") else None
    row = execute(replace(RUN, task=task, arm=arm, rate=rate, epochs=4, held=arm == "sweep"))
    assert "error" not in row
    assert 0 <= row["accuracy"] <= 1
    assert row["loss"] > 0
    assert row["steps"] == 4 * (5 if arm in ("usual", "prodigy") else 4)  # 128 are left of 160


def test_a_run_that_is_repeated_ends_the_same() -> None:
    first, second = (execute(RUN) for _ in range(2))
    assert first["loss"] == second["loss"]


def test_photos_are_flipped_in_training_alone(folder: Path) -> None:
    pictures = torch.randint(256, (64, 8, 8, 3), dtype=torch.uint8)
    seen: list[torch.Tensor] = []
    for flips, training in ((True, True), (True, False), (False, True)):
        model = load_lite(folder / "efficientnet-lite0.pt", 3, 0.2, flips).train(training)
        model[0].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
        model(pictures)
    flipped, still, other = seen
    assert torch.equal(still, other)
    turned = [not torch.equal(a, b) for a, b in zip(flipped, still, strict=True)]
    assert 0 < sum(turned) < len(turned)
    assert torch.equal(flipped[turned], still[turned].flip(3))


def test_the_head_is_new_and_the_rest_as_saved(folder: Path) -> None:
    saved = torch.load(folder / "efficientnet-lite0.pt", weights_only=True)["weights"]
    found = load_lite(folder / "efficientnet-lite0.pt", 3, 0.2, True).state_dict()
    assert all(torch.equal(found[name], weight.to(found[name].dtype)) for name, weight in saved.items())
    assert [tuple(found[name].shape) for name in found if name not in saved] == [(3, 16), (3,)]


def test_weights_of_another_model_are_an_error(folder: Path) -> None:
    torch.save({"config": TINY, "weights": {"other": torch.ones(1)}}, folder / "efficientnet-lite0.pt")
    assert "Unexpected key" in execute(RUN)["error"]


def test_the_outputs_are_those_of_the_package() -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch")
    theirs = package.EfficientNet.from_name("efficientnet-lite0").eval()
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_var, 0.01, 0.1)
    ours = EfficientNetLite(1000, 0.2, True, **LITE0).eval()
    ours.load_state_dict(named(theirs.state_dict(), LITE0))
    size = LITE0["pixels"]
    pictures = torch.randint(256, (2, size, size, 3), dtype=torch.uint8)
    with torch.no_grad():
        expected = theirs((pictures.permute(0, 3, 1, 2).float() - 127) / 128)
        assert torch.allclose(ours(pictures), expected, atol=1e-4)
