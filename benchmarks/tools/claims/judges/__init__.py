"""The rules by which claims are judged, by subject: each function is one, and its docstring says which."""

from __future__ import annotations

from benchmarks.tools.claims.judges import cost, faults, paper, published, rates, replicas, several, studies

__all__ = ["ROOMS", "cost", "faults", "paper", "published", "rates", "replicas", "several", "studies"]

ROOMS = (paper, published, studies, rates, several, cost, replicas, faults)
