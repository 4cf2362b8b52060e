"""What was published of AdamW."""

from __future__ import annotations

from collections import Counter

from benchmarks.lightbench.published import ADAMW_TRIALS, DIFFICULTIES


def test_every_kind_comes_in_six_difficulties_or_in_one() -> None:
    kinds = Counter(name.rpartition("-")[0] for name in ADAMW_TRIALS)
    assert len(ADAMW_TRIALS) == 136
    assert Counter(kinds.values()) == {len(DIFFICULTIES): 22, 1: 4}
    assert ADAMW_TRIALS["xor_sequence-extreme"] == 30
    assert ADAMW_TRIALS["rastrigin-trivial"] == 58
