"""Every claim of the paper and of our own pages; nothing here is typed by hand but the claims."""

from __future__ import annotations

from benchmarks.tools.claims.stated import cost, faults, paper, published, rates, replicas, several

__all__ = ["CLAIMS"]

#: Those of the paper first, in its order.
CLAIMS = tuple(
    claim for room in (paper, published, rates, several, cost, replicas, faults) for claim in room.CLAIMS
)
