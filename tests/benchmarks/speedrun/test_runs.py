"""The runs, with few random images and a narrow model."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from benchmarks.rows import KeptRows
from benchmarks.speedrun import runs
from benchmarks.speedrun.images import load
from benchmarks.speedrun.model import Filters, Network, whitening
from benchmarks.speedrun.runs import ARMS, Run, execute, planned, run_of

needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
RUN = planned(1, "cpu", quick=True)[0]


@pytest.fixture(scope="module")
def rows() -> dict[str, runs.Row]:
    """Of one run of each arm."""
    return {run.arm: execute(run) for run in planned(1, "cpu", quick=True)}


@needs_muon
def test_all_arms_take_the_same_steps_and_those_of_autolr_s_images_fewer(rows: dict[str, runs.Row]) -> None:
    assert list(rows) == ["hand", "autolr", "default", "hand, fewer"]
    assert not any("error" in row for row in rows.values())
    assert {row["taken"] for row in rows.values()} == {RUN.steps}
    trained = {arm: row["trained_on"] for arm, row in rows.items()}
    assert trained == {"hand": 600, "autolr": 544, "default": 600, "hand, fewer": 544}


@needs_muon
def test_the_recipe_learns_and_autolr_tells_every_window(rows: dict[str, runs.Row]) -> None:
    """Of ten classes."""
    assert rows["hand"]["accuracy_augmented"] > 0.4
    assert rows["autolr"]["accuracy_augmented"] > 0.3
    steps = [window[0] for window in rows["autolr"]["course"]]
    assert steps == sorted(steps)
    assert steps[-1] == RUN.steps
    muon, adamw, loss, *actions = rows["autolr"]["course"][0][1:]
    assert muon > 0
    assert adamw > 0
    assert loss > 0
    assert actions == ["scale", "scale"]


@needs_muon
def test_a_row_is_kept_and_tells_its_run(rows: dict[str, runs.Row], tmp_path: Path) -> None:
    kept = KeptRows(tmp_path / "rows.jsonl", run_of)
    for row in rows.values():
        kept.add(row)
    again = KeptRows(tmp_path / "rows.jsonl", run_of).finished
    assert list(again) == planned(1, "cpu", quick=True)
    assert list(again.values()) == [json.loads(json.dumps(row)) for row in rows.values()]
    assert all(row["rates"] == ARMS[run.arm] for run, row in again.items())


@needs_muon
def test_what_autolr_holds_out_is_never_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it in 'hand, fewer', which trains on the same images."""
    trained: dict[str, set[int]] = {}
    held: set[int] = set()
    set_aside, batches, arm = runs._set_aside, runs.batches, ""

    def watched(run: Run, *given: object) -> object:
        probe, rows = set_aside(run, *given)  # type: ignore[arg-type]
        held.update(torch.cat(list(probe._batches)).tolist())  # type: ignore[arg-type]
        return probe, rows

    def seen(images: object, rows: torch.Tensor, *given: object) -> object:
        trained[arm] = set(rows.tolist())
        return batches(images, rows, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "_set_aside", watched)
    monkeypatch.setattr(runs, "batches", seen)
    for arm in ("autolr", "hand, fewer"):
        assert "error" not in execute(Run(**{**asdict(RUN), "arm": arm, "steps": 4}))
    assert trained["autolr"] == trained["hand, fewer"]
    assert len(held) == 8 * 7  # at most a tenth, in batches of equal size
    assert held | trained["autolr"] == set(range(600))
    assert not held & trained["autolr"]


@needs_muon
def test_a_run_that_is_repeated_ends_the_same(rows: dict[str, runs.Row]) -> None:
    again = execute(Run(**{**asdict(RUN), "arm": "autolr"}))
    assert {name: again[name] for name in ("loss", "course")} == {
        name: rows["autolr"][name] for name in ("loss", "course")
    }


@needs_muon
def test_filters_are_trained_by_the_muon_of_the_recipe() -> None:
    """Held against a slow twin: momentum as a plain sum, each matrix to norm √rows before its step."""
    torch.manual_seed(0)
    model = Network(4)
    optimizer = runs._muon(model, 0.24)
    matrix = model.matrices[2]
    twin, momentum = matrix.detach().clone(), torch.zeros_like(matrix)
    for _ in range(3):
        gradient = torch.randn_like(matrix)
        for every in model.matrices:
            every.grad = gradient.clone() if every is matrix else torch.zeros_like(every)
        optimizer.step()
        momentum = 0.6 * momentum + gradient
        twin *= len(twin) ** 0.5 / twin.norm()
        update = gradient + 0.6 * momentum
        x = update / update.norm()
        for _ in range(3):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        twin -= 0.24 * x
    assert torch.allclose(matrix, twin, atol=0.02)  # the optimizer's is in bfloat16


@needs_muon
def test_rates_by_hand_fall_to_zero_and_that_of_the_whitening_bias_first() -> None:
    arm = runs._arm(RUN, Network(4), None)
    seen = []
    for _ in range(RUN.steps):
        seen.append([group["lr"] for optimizer in arm.optimizers for group in optimizer.param_groups])
        for optimizer, after in zip(arm.optimizers, arm.after, strict=True):
            optimizer.step()
            after()
    for step, rates in enumerate(seen):
        left = 1 - step / 16
        assert rates == pytest.approx([0.24 * left, 0.053 * max(0, 1 - step / 6), 0.053 * left, 0.67 * left])
    decays = [group["weight_decay"] * group["initial_lr"] for group in arm.optimizers[1].param_groups]
    assert decays == pytest.approx([2e-6 * RUN.batch] * 3)


def test_whitened_patches_are_uncorrelated() -> None:
    images = load("cpu", 600)
    given = images.scaled(images.train)
    filters = whitening(given).float()
    assert torch.equal(filters[:12], -filters[12:])
    outputs = F.conv2d(given, filters[:12]).transpose(0, 1).flatten(1)
    covariance = outputs @ outputs.T / outputs.shape[1]
    assert torch.allclose(covariance, torch.eye(12), atol=0.02)


def test_a_convolution_begins_as_the_identity_as_far_as_it_can() -> None:
    images = torch.randn(2, 3, 8, 8)
    assert torch.allclose(Filters(3, 5)(images)[:, :3], images)


def test_test_images_are_seen_in_six_ways_with_the_recipe_s_weights() -> None:
    """Against a twin that pads and cuts."""
    images = load("cpu", 40)
    torch.manual_seed(0)
    model = Network(4)
    found = runs._measure(RUN, model, images)
    model.eval()
    given = images.scaled(images.test)
    padded = F.pad(given, (1, 1, 1, 1), "reflect")

    def both(some: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = model(some) + model(some.flip(3))
        return logits / 2

    moved = (both(padded[:, :, :32, :32]) + both(padded[:, :, 2:, 2:])) / 2
    with torch.no_grad():
        logits, plain = (both(given) + moved) / 2, model(given)
    right = [float((some.argmax(1) == images.test_labels).double().mean()) for some in (logits, plain)]
    assert [found["accuracy_augmented"], found["accuracy"]] == right
    assert found["loss"] == pytest.approx(float(F.cross_entropy(plain, images.test_labels)))


def test_whenever_it_is_stopped_the_two_arms_have_as_many_seeds() -> None:
    first = planned(30, "cuda")[:60]
    assert [(run.seed, run.arm) for run in first] == list(product(range(30), ("hand", "autolr")))
    assert {(run.steps, run.batch, run.width, run.random) for run in first} == {(200, 2000, 64, 0)}


def test_a_run_that_raises_is_a_row() -> None:
    row = execute(Run(**{**asdict(RUN), "batch": 1000}))
    assert "error" in row
    assert run_of(row).batch == 1000
