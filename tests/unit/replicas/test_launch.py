"""Processes that stay alive between runs: what a run leaves to the next."""

from __future__ import annotations

import weakref

import pytest
import torch.distributed as dist

from hdet.replicas.launch import LocalProcesses

#: In a rank's process: the groups of its runs, as far as they live.
SEEN: list[weakref.ref[dist.ProcessGroup]] = []


def groups_alive(rank: int) -> list[bool]:
    """Of every run so far, whether its groups live; then one more run has its own."""
    alive = [group() is not None for group in SEEN]
    SEEN.extend(map(weakref.ref, (dist.group.WORLD, dist.new_group())))
    return alive


@pytest.mark.slow
def test_a_group_is_not_freed_while_its_threads_may_be_at_work(ranks: LocalProcesses) -> None:
    """torch 2.6 stopped there for ever, now and then: it is freed when the run after it has ended."""
    first, second, third = (ranks.run(groups_alive, size=2, timeout=60) for _ in range(3))
    assert first == [[], []]
    assert second == [[True, True]] * 2
    assert third == [[False, False, True, True]] * 2
