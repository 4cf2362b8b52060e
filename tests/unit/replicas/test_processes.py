"""The error when a group of hdet's own cannot be made, or a rank does not come."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
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


def test_where_the_others_are_is_told_and_who_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    store.set("hdet/gave up/g/1", "the converge after step 3")
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: store)
    group, patience = SimpleNamespace(group_name="g"), timedelta(seconds=0.4)
    words = processes._where_they_are(group, 0, 4, "the sync after step 5", patience)
    assert words == (
        "rank 0 is at the sync after step 5; rank 1 is at the converge after step 3; no word from ranks 2, 3"
    )
    assert store.get("hdet/gave up/g/0") == b"the sync after step 5", "for those who give up later"


@pytest.mark.parametrize(
    ("counts", "device", "words"),
    [
        ([3, 3], None, ""),
        ([3, 4], None, "its ranks have made different numbers of groups before"),
        ([3, 3], torch.device("cuda", 0), "init_process_group was given device_id"),
    ],
)
def test_a_few_ranks_make_a_group_only_where_they_need_no_other(
    counts: list[int], device: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch names it by the groups there were before, and splits one that is bound to a device by all."""

    def all_gather(every: list[torch.Tensor], *args: Any, **options: Any) -> Any:
        for count, tensor in zip(counts, every, strict=True):
            tensor.fill_(count)
        return SimpleNamespace(wait=lambda patience: None)

    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1])
    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=SimpleNamespace(bound_device_id=device)))
    like, patience = object(), timedelta(seconds=1)
    said = processes._obstacle(like, [0, 1], torch.device("cpu"), patience, at_once=False)
    assert said.startswith(words)
    assert bool(said) == bool(words)


def test_a_process_that_is_not_in_the_group_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda group=None: 5 if group is None else -1)
    with pytest.raises(ValueError, match=r"this process \(global rank 5\) is not in the group; construct"):
        processes.ProcessReplicas(object(), torch.device("cpu"))  # type: ignore[arg-type]
