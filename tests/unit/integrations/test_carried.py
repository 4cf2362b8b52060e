"""A door in a framework's hands: who is brought together, and which state a rank takes up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hdet.integrations.carried import Carried


class Door:
    """Replicas that are apart after every step, and a state that says whose it is."""

    apart = False

    def __init__(self, rank: int = 0, ranks: int = 2, parts: int = 1) -> None:
        self.replicas = SimpleNamespace(place=rank, ranks=ranks, parts=parts)
        self.converged, self.loaded = 0, ""

    def step(self, loss: Any) -> None:
        self.apart = True

    def converge(self) -> None:
        self.apart = False
        self.converged += 1

    def state_dict(self) -> dict[str, Any]:
        return {"of": f"rank {self.replicas.place}"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["of"]


def saved(folder: Path, *, within: bool, ranks: int = 2, parts: int = 1) -> dict[str, Any]:
    """What rank 0 saved in a framework's own file; every rank has written its own, if there is to be one."""
    states = []
    for rank in range(ranks):
        carried = Carried("test", Door(rank, ranks, parts))
        carried.step()
        if within:
            carried.converge()
        carried.save_own(folder)
        states.append(carried.state_dict())
    return states[0]


def taken_up(folder: Path, state: dict[str, Any], rank: int, ranks: int = 2, parts: int = 1) -> str:
    carried = Carried("test", Door(rank, ranks, parts))
    carried.folder = folder
    carried.load_state_dict(state)
    return carried.door.loaded


def test_replicas_are_brought_together_if_they_are_apart() -> None:
    carried = Carried("test", Door())
    carried.converge()
    assert carried.door.converged == 0
    carried.step()
    with carried.looked_at():
        assert not carried.door.apart
    carried.converge()
    assert carried.door.converged == 1


def test_within_a_round_every_rank_has_a_state_of_its_own(tmp_path: Path) -> None:
    state = saved(tmp_path, within=True)
    assert [taken_up(tmp_path, state, rank) for rank in (0, 1)] == ["rank 0", "rank 1"]
    assert taken_up(tmp_path, state, rank=0, ranks=1) == "rank 0", "with another number of ranks there is one"
    assert taken_up(tmp_path, state, rank=2, ranks=3) == "rank 0"


def test_at_a_sync_the_state_of_one_is_that_of_all(tmp_path: Path) -> None:
    state = saved(tmp_path, within=False)
    assert list(tmp_path.iterdir()) == []
    assert taken_up(tmp_path, state, rank=1) == "rank 0"
    assert taken_up(tmp_path, saved(tmp_path, within=False, parts=2), rank=1, parts=2) == "rank 1", (
        "a shard's"
    )


def test_files_of_an_older_save_are_not_taken_up(tmp_path: Path) -> None:
    saved(tmp_path, within=True)
    assert taken_up(tmp_path, saved(tmp_path, within=False), rank=1) == "rank 0"


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    state = saved(tmp_path, within=True)
    (tmp_path / "hdet_1.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"a file for each of 2 ranks, and lacks .*hdet_1.pt"):
        taken_up(tmp_path, state, rank=1)


def test_a_doors_own_state_is_taken_up(tmp_path: Path) -> None:
    assert taken_up(tmp_path, {"of": "a door"}, rank=1) == "a door"


def test_what_is_no_door_is_refused() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(
        TypeError, match=r"test: the door must be an AutoLR.* got ConstantLR, which has no conv"
    ):
        Carried("test", torch.optim.lr_scheduler.ConstantLR(optimizer))
