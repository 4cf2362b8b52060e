"""An hdet scheduler as a framework holds it: when replicas are averaged, and which state a rank loads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hdet.integrations.checkpointing import WrappedScheduler


class Door:
    """Replicas that differ after every step, and a state that names its rank."""

    apart = False

    def __init__(self, rank: int = 0, ranks: int = 2, parts: int = 1) -> None:
        self.replicas = SimpleNamespace(world_rank=rank, world_size=ranks, ranks_per_replica=parts)
        self.converged, self.loaded = 0, ""

    def step(self, loss: Any) -> None:
        self.apart = True

    def converge(self) -> None:
        self.apart = False
        self.converged += 1

    def state_dict(self) -> dict[str, Any]:
        return {"of": f"rank {self.replicas.world_rank}"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["of"]


def saved(folder: Path, *, early: bool, parts: int = 1) -> dict[str, Any]:
    """What rank 0 saved in a framework's own file; each rank has written its own, if files are needed."""
    states = []
    for rank in range(2):
        wrapped = WrappedScheduler("test", Door(rank, 2, parts))
        wrapped.step()
        if early:
            wrapped.converge()
        wrapped.save_rank(folder)
        states.append(wrapped.state_dict())
    return states[0]


def loaded(folder: Path, state: dict[str, Any], rank: int, ranks: int = 2, parts: int = 1) -> str:
    wrapped = WrappedScheduler("test", Door(rank, ranks, parts))
    wrapped.folder = folder
    wrapped.load_state_dict(state)
    return str(wrapped.loaded)


def test_replicas_are_averaged_if_they_differ() -> None:
    wrapped = WrappedScheduler("test", Door())
    wrapped.converge()
    assert wrapped.auto.converged == 0
    wrapped.step()
    with wrapped.converged():
        assert not wrapped.auto.apart
    wrapped.converge()
    assert wrapped.auto.converged == 1


def test_between_two_syncs_every_rank_has_its_own_state(tmp_path: Path) -> None:
    state = saved(tmp_path, early=True)
    assert [loaded(tmp_path, state, rank) for rank in (0, 1)] == ["rank 0", "rank 1"]
    assert loaded(tmp_path, state, rank=2, ranks=3) == "rank 0", "another number of ranks"
    assert loaded(tmp_path, saved(tmp_path, early=False), rank=1) == "rank 0", "files of an older save"
    (tmp_path / "hdet_1.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"a file for each of 2 ranks, and lacks .*hdet_1.pt"):
        loaded(tmp_path, state, rank=1)


def test_at_a_sync_rank_0s_state_is_enough_unless_the_model_is_sharded(tmp_path: Path) -> None:
    state = saved(tmp_path, early=False)
    assert list(tmp_path.iterdir()) == []
    assert loaded(tmp_path, state, rank=1) == "rank 0"
    assert loaded(tmp_path, {"of": "a door"}, rank=1) == "a door", "a door's own state"
    assert loaded(tmp_path, saved(tmp_path, early=False, parts=2), rank=1, parts=2) == "rank 1"


def test_another_scheduler_raises() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(
        TypeError, match=r"test: the door must be an AutoLR.* got ConstantLR, which has no co"
    ):
        WrappedScheduler("test", torch.optim.lr_scheduler.ConstantLR(optimizer))
