"""A checkpoint is there whole, or the one before is."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hdet
from hdet.loop.state import digest
from hdet.saving import Loaded, examined
from tests.fakes import Thread, on_threads
from tests.unit.doors import DOORS, Made


def whole(made: Made) -> list[Any]:
    return [made.model.state_dict(), made.optimizer.state_dict(), made.door.state_dict()]


def save(made: Made, path: Path, **anything: Any) -> None:
    hdet.save(path, model=made.model, optimizer=made.optimizer, auto=made.door, **anything)


def load(made: Made, path: Path) -> Loaded:
    return hdet.load(path, model=made.model, optimizer=made.optimizer, auto=made.door)


def rest(made: Made, steps: int) -> tuple[str, list[float]]:
    made.train(steps)
    return digest(whole(made)), [random.random(), float(np.random.rand()), float(torch.rand(()))]


@pytest.mark.parametrize("kind", DOORS)
def test_a_resumed_run_is_the_unbroken_one(kind: str, tmp_path: Path) -> None:
    """Bit for bit, with the batches that random states draw."""
    made = Made(kind).train(43)
    save(made, tmp_path / "run", epoch=3, note={"a": [1.5, None]})
    expected = rest(made, 40)
    for noise in (random.seed, np.random.seed, torch.manual_seed):
        noise(99)
    again = Made(kind)
    loaded = load(again, tmp_path / "run")
    assert (loaded.path, loaded.why, loaded["epoch"], loaded["note"]) == (
        tmp_path / "run",
        "",
        3,
        {"a": [1.5, None]},
    )
    if kind == "Guard":  # its copy is of the weights that a run begins with
        again.train(40)
        assert digest(again.model.state_dict()) == digest(made.model.state_dict())
    else:
        assert rest(again, 40) == expected


def test_the_one_before_is_kept(tmp_path: Path) -> None:
    made = Made("AutoLR").train(15)
    for epoch in range(3):
        save(made, tmp_path / "run", epoch=epoch)
    assert sorted(os.listdir(tmp_path)) == ["run", "run.previous"]
    assert hdet.load(tmp_path / "run")["epoch"] == 2
    assert hdet.load(tmp_path / "run.previous")["epoch"] == 1


def test_a_rank_with_nothing_of_its_own_writes_no_file(tmp_path: Path) -> None:
    hdet.save(tmp_path / "run", rng=False, epoch=3)
    assert sorted(os.listdir(tmp_path / "run")) == ["manifest.json", "shared.pt"]
    assert hdet.load(tmp_path / "run")["epoch"] == 3


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("existing", [0, 2])
def test_cut_short_at_every_moment(existing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever call is the last one, the new one or the last one before is read afterwards."""
    made = Made("Ensemble").train(5)
    for epoch in range(existing):
        save(made, tmp_path / "run", epoch=epoch)
    calls = [(os, "replace"), (os, "fsync"), (shutil, "rmtree"), (torch, "save"), (Path, "mkdir")]
    points, done = 0, False
    while not done:
        folder = tmp_path / f"try{points}"
        shutil.copytree(tmp_path, folder, ignore=shutil.ignore_patterns("try*"))
        done = cut_short(made, folder / "run", points, calls, monkeypatch)
        seen = hdet.load(folder / "run")["epoch"] if existing or done else 99
        assert seen == 99 if done else seen in (existing - 1, 99)
        save(made, folder / "run", epoch=100)  # what was left behind is no obstacle
        assert hdet.load(folder / "run")["epoch"] == 100
        points += 1
    assert points > 8


def cut_short(
    made: Made, path: Path, after: int, calls: list[tuple[Any, str]], monkeypatch: pytest.MonkeyPatch
) -> bool:
    """Whether the save came to its end before it could be cut short at its ``after``-th call, or within."""
    left = after

    def cut(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Crash
            left -= 1
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for owner, name in calls:
            patch.setattr(owner, name, cut(getattr(owner, name)))
        try:
            save(made, path, epoch=99)
        except Crash:
            return False
    return True


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_truncated_anywhere_it_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Made("AutoLR", width=64).train(15)
    save(made, tmp_path / "run", epoch=1)
    save(made, tmp_path / "run", epoch=2)
    assert [file.name for file in files(tmp_path / "run")] == ["manifest.json", "rank0.pt", "shared.pt"]
    logging.getLogger("hdet").setLevel(logging.ERROR)
    for file in files(tmp_path / "run"):
        content = file.read_bytes()
        for length in range(0, len(content), 4096 if len(content) > 8192 else 256):
            file.write_bytes(content[:length])
            loaded = hdet.load(tmp_path / "run")
            assert (loaded["epoch"], loaded.path) == (1, tmp_path / "run.previous")
            assert "run: " in loaded.why
        file.write_bytes(content)
    assert hdet.load(tmp_path / "run")["epoch"] == 2


def test_a_flipped_bit_is_never_loaded(tmp_path: Path) -> None:
    made = Made("AutoLR").train(15)
    save(made, tmp_path / "run", epoch=1)
    save(made, tmp_path / "run", epoch=2)
    logging.getLogger("hdet").setLevel(logging.ERROR)
    chance = random.Random(0)
    for _ in range(200):
        file = chance.choice(files(tmp_path / "run"))
        content = file.read_bytes()
        bits = bytearray(content)
        bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
        file.write_bytes(bytes(bits))
        loaded = hdet.load(tmp_path / "run")
        # JSON may be changed where it says nothing: then it is the same checkpoint.
        assert loaded["epoch"] == (1 if loaded.why else 2)
        assert loaded.why or file.name == "manifest.json"
        file.write_bytes(content)


def test_what_it_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Made("Ensemble").train(5)
    with pytest.raises(ValueError, match=r"hdet.load: there must be a complete checkpoint at .*run.previous"):
        load(made, tmp_path / "run")
    save(made, tmp_path / "run")
    save(made, tmp_path / "run")
    (tmp_path / "run" / "shared.pt").write_bytes(b"nothing")
    load(made, tmp_path / "run")
    assert "loads the checkpoint before" in caplog.text
    assert "shared.pt is damaged: its SHA-256 is" in caplog.text
    with pytest.raises(ValueError, match=r"holds auto, .*, and not scaler"):
        hdet.load(tmp_path / "run", scaler=made.model)
    with pytest.raises(TypeError, match=r"epoch must have load_state_dict, got int; leave it out"):
        hdet.load(tmp_path / "run", epoch=0)


def test_what_could_not_be_read_back_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"hdet.save: odd\[1\]\.x must be made of tensors.*got object"):
        hdet.save(tmp_path / "run", odd=[1, {"x": object()}])
    assert not (tmp_path / "run").exists()


def test_files_of_others_are_never_deleted(tmp_path: Path) -> None:
    """Neither in a folder that is no checkpoint nor where the one before is kept."""
    for name in ("run", "run.previous", "run.writing"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").write_text("mine")
        for _ in range(2):
            with pytest.raises(
                FileExistsError, match=rf"{name} must be a checkpoint .*'notes.txt' in it is no"
            ):
                hdet.save(tmp_path / "run", epoch=1)
        assert (tmp_path / name / "notes.txt").read_text() == "mine"
        shutil.rmtree(tmp_path / name)
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match=r"run must be a folder or not exist, got a file or a link"):
        hdet.save(tmp_path / "run", epoch=1)


def test_another_model_or_optimizer_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    def made(*widths: int) -> nn.Sequential:
        return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))

    model = made(4, 8, 1)
    hdet.save(tmp_path / "run", model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    for other, groups in ((made(4, 8, 1, 1), 1), (made(4, 9, 1), 1), (made(4, 8), 1), (made(4, 8, 1), 2)):
        halves = [{"params": list(part.parameters())} for part in other]
        optimizer = torch.optim.SGD(halves if groups == 2 else other.parameters(), 0.1)
        before = deepcopy(other.state_dict())
        with pytest.raises(
            ValueError, match=r"must be built as it was when it was saved.*Nothing was loaded"
        ):
            hdet.load(tmp_path / "run", model=other, optimizer=optimizer)
        assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    hdet.load(tmp_path / "run", model=model)


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def torn_by_torch(*_: object) -> None:
    raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 896 vs 790")


@pytest.mark.parametrize("fails", [no_space, torn_by_torch])
def test_what_cannot_be_written_says_what_to_do(
    fails: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(2, 1)
    hdet.save(tmp_path / "run", model=model, epoch=1)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", fails)
        with pytest.raises(OSError, match=r"hdet\.save: the checkpoint must be written.*Is the disk full"):
            hdet.save(tmp_path / "run", model=model, epoch=2)
    assert hdet.load(tmp_path / "run", model=model)["epoch"] == 1
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=r"hdet\.save: the checkpoint must be written.*is the folder yours"):
        hdet.save(tmp_path / "file" / "run", model=model)


def test_two_runs_that_save_to_one_path_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, write = nn.Linear(2, 1), torch.save

    def other_run(*args: Any) -> None:
        write(*args)
        shutil.rmtree(tmp_path / "run.writing")  # as the other one begins

    monkeypatch.setattr(torch, "save", other_run)
    with pytest.raises(FileNotFoundError, match=r"hdet\.save: .*does no other run save to the same path"):
        hdet.save(tmp_path / "run", model=model)


def test_a_manifest_of_anybody_s_is_read_without_harm(tmp_path: Path) -> None:
    """It may name any file, end never, or hold what is no manifest."""
    hdet.save(tmp_path / "run", model=nn.Linear(2, 1))
    sound = json.loads((tmp_path / "run" / "manifest.json").read_text())
    sound.pop("digest")
    hostile = [
        {**sound, "files": {"/dev/zero": "x"}},
        {**sound, "files": {"../run/shared.pt": sound["files"]["shared.pt"]}},
        {**sound, "files": {"rank7.pt": "x"}},
        {**sound, "steps": "ten"},
        {**sound, "ranks": None},
        {**sound, "files": []},
        {},
    ]
    os.symlink("/dev/zero", tmp_path / "run" / "rank7.pt")
    for manifest in hostile:
        text = json.dumps({**manifest, "digest": digest(manifest)})
        (tmp_path / "run" / "manifest.json").write_text(text)
        assert examined(tmp_path / "run")[1]
    (tmp_path / "run" / "manifest.json").unlink()
    os.symlink("/dev/zero", tmp_path / "run" / "manifest.json")
    assert examined(tmp_path / "run")[1] == "manifest.json is missing"


def test_what_numpy_holds_is_read_back(tmp_path: Path) -> None:
    """In an optimizer's groups, and in values of the user's; BatchNorm's version stays known."""
    made = Made("AutoLR", optimizer=lambda *a, **k: torch.optim.AdamW(*a, weight_decay=np.float64(0.01), **k))
    found = defaultdict(int, a=np.int64(2))
    save(made.train(15), tmp_path / "run", epoch=np.int64(3), found=found)
    loaded = load(made, tmp_path / "run")
    assert (loaded["epoch"], loaded["found"]) == (3, {"a": 2})
    hdet.save(tmp_path / "model", model=made.model)
    assert hdet.load(tmp_path / "model")["model"]._metadata == made.model.state_dict()._metadata  # type: ignore[attr-defined]


def test_a_damaged_one_never_takes_the_place_of_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest is damaged, the one before is whole, and the next save is cut short."""
    made = Made("Ensemble").train(5)
    logging.getLogger("hdet").setLevel(logging.ERROR)
    for epoch in (1, 2):
        save(made, tmp_path / "good" / "run", epoch=epoch)
    (tmp_path / "good" / "run" / "shared.pt").write_bytes(b"")
    points, done = 0, False
    while not done:
        folder = tmp_path / f"try{points}"
        shutil.copytree(tmp_path / "good", folder)
        done = cut_short(made, folder / "run", points, [(os, "replace"), (shutil, "rmtree")], monkeypatch)
        assert hdet.load(folder / "run")["epoch"] in ((99,) if done else (1, 99))
        points += 1
    assert points > 4


# ---------------------------------------------------------------------- several ranks


class Own:
    """What trains on one of several ranks: its state is this rank's alone."""

    apart, steps = False, 5

    def __init__(self, replicas: Thread) -> None:
        self.replicas = replicas
        self.value = 10.0 + replicas.rank

    def converge(self) -> None:
        self.value, self.apart = sum(row[0] for row in self.replicas.gather([self.value])), False

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


def save_on(ranks: int, path: Path, **anything: Any) -> list[Any]:
    return on_threads(ranks, lambda rank: hdet.save(path, auto=Own(rank), **anything))


def load_on(ranks: int, path: Path) -> list[Any]:
    def values(rank: Thread) -> float:
        own = Own(rank)
        own.value = 0.0
        hdet.load(path, auto=own)
        return own.value

    return on_threads(ranks, values)


def test_each_rank_loads_what_it_has_saved(tmp_path: Path) -> None:
    save_on(3, tmp_path / "run", epoch=2)
    names = ["manifest.json", "rank0.pt", "rank1.pt", "rank2.pt", "shared.pt"]
    assert [file.name for file in files(tmp_path / "run")] == names
    assert load_on(3, tmp_path / "run") == [10.0, 11.0, 12.0]
    assert hdet.load(tmp_path / "run")["epoch"] == 2


def test_replicas_that_differ_are_averaged_before_they_are_saved(tmp_path: Path) -> None:
    def differs(rank: Thread) -> None:
        own = Own(rank)
        own.apart = True
        hdet.save(tmp_path / "run", auto=own, rng=False)

    on_threads(2, differs)
    assert [file.name for file in files(tmp_path / "run")] == ["manifest.json", "shared.pt"]
    assert load_on(2, tmp_path / "run") == [21.0, 21.0]


def test_another_number_of_ranks_takes_rank_0s_state_and_nobodys_random_states(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_on(2, tmp_path / "run")
    torch.manual_seed(99)
    before = torch.get_rng_state()
    assert load_on(3, tmp_path / "run") == [10.0] * 3
    assert torch.equal(torch.get_rng_state(), before)
    assert caplog.text.count("auto was saved on 2 ranks, each its own, and there are 3: rank 0's is") == 1


def test_shards_are_not_loaded_on_another_number_of_ranks(tmp_path: Path) -> None:
    on_threads(2, lambda rank: hdet.save(tmp_path / "run", auto=Own(rank), model=torch.nn.Linear(2, 2)))
    with pytest.raises(ValueError, match=r"model was saved by each of 2 ranks, and there are 1: resume with"):
        hdet.load(tmp_path / "run")


def test_a_file_that_is_damaged_on_one_rank_is_loaded_on_none(tmp_path: Path) -> None:
    for _ in range(2):
        save_on(2, tmp_path / "run")
    logging.getLogger("hdet").setLevel(logging.ERROR)
    (tmp_path / "run" / "rank1.pt").write_bytes(b"")
    paths = on_threads(2, lambda rank: hdet.load(tmp_path / "run", auto=Own(rank)))
    assert [loaded.path.name for loaded in paths] == ["run.previous"] * 2
    assert "is damaged on rank 1; see that rank's error" in paths[0].why
    assert "rank1.pt is damaged: its SHA-256" in paths[1].why


def test_ranks_that_write_to_different_folders_save_nothing(tmp_path: Path) -> None:
    """On two machines, one path is two folders."""
    (tmp_path / "1" / "run.writing").mkdir(parents=True)
    first, second = on_threads(2, lambda rank: hdet.save(tmp_path / str(rank.rank) / "run", auto=Own(rank)))
    assert isinstance(first, FileNotFoundError)
    assert "all ranks must write to one folder, and rank1.pt is not in" in str(first)
    assert "hdet.save: renaming it raised on rank 0; see that rank's error" in str(second)
    assert not (tmp_path / "0" / "run").exists()
