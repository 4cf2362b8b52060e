"""The error when a group of hdet's own cannot be made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from hdet.replicas import processes


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, r"all ranks could not meet .*\(Connection closed by peer\).*first error of the others"),
        (10.0, r"gave up waiting for all ranks after 10 s: .*HDET_PATIENCE.*\(Connection closed by peer\)"),
    ],
)
def test_who_was_not_waited_for_is_not_said_to_be_late(
    seconds: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    def refuse(*args: Any, **options: Any) -> None:
        clock[0] += seconds
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(dist, "new_group", refuse)
    monkeypatch.setattr(processes.time, "monotonic", lambda: clock[0])
    with pytest.raises(RuntimeError, match=words):
        processes._new_group(None, "gloo", timedelta(seconds=10))


@pytest.mark.parametrize(("backend", "meets"), [("gloo", 1), ("cpu:gloo,cuda:nccl", 1), ("nccl", 0)])
def test_nobody_leaves_before_all_have_met(backend: str, meets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo hands out a group to which another rank may still be connecting."""
    waited = []

    class Work:
        def wait(self, patience: timedelta) -> None:
            waited.append(patience)

    group = object()
    monkeypatch.setattr(dist, "new_group", lambda *args, **options: group)
    monkeypatch.setattr(dist, "all_reduce", lambda *args, **options: Work())
    assert processes._new_group(None, backend, timedelta(seconds=10)) is group
    assert waited == [timedelta(seconds=10)] * meets
