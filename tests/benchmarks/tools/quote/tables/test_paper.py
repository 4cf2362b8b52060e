"""The tables of docs/evidence/paper.json."""

from __future__ import annotations

from typing import Any

from benchmarks.paper.studies import STUDIES
from benchmarks.tools.quote.tables import paper


def cell(course: str, arm: str, *losses: float, **more: Any) -> dict[str, Any]:
    setting = {"lr": 9e-4, "replicas": 8, "spread": 0.0, "sync_every": 10, "seeds": len(losses)}
    return {"course": course, "arm": arm, **setting, "held_out": list(losses), "train": list(losses), **more}


def told(study: str, *cells: dict[str, Any]) -> dict[str, Any]:
    return {study: {**STUDIES[study].told(cells), "cells": list(cells)}}


def test_the_final_rate_and_what_the_vote_adds() -> None:
    table = paper.eq8(
        told(
            "eq8",
            cell("kuairand", "OneCycle", 1.0, 2.0, auc=[0.5, 0.7], sync_every=10**9),
            cell("kuairand", "Eq. 8, no vote, T = 10", 1.1, 2.2, final_rate=[0.2, 0.2]),
            cell("kuairand", "Eq. 8, σ = 0.1, T = 10", 1.21, 2.42, final_rate=[0.14, 0.22], spread=0.1),
        )
    )
    assert "| KuaiRand | 0.0009 | OneCycle |  |  |  | 0.6000 |" in table
    assert "| Eq. 8, no vote, T = 10 | 0.20 | +10.00 ± 0.00 |  |  |" in table
    assert "| Eq. 8, σ = 0.1, T = 10 | 0.14–0.22 | +21.00 ± 0.00 | +10.00 ± 0.00 |  |" in table


def test_a_study_that_was_not_run_says_so() -> None:
    for study, table in (("parts", paper.parts), ("large", paper.large)):
        assert table({}).startswith(f"Not run yet: `python -m benchmarks.paper {study} ")


def test_parts_are_compared_with_what_they_differ_from() -> None:
    found = told(
        "parts",
        cell("feed", "plain", 1.0, 1.0),
        cell("feed", "full, T = 250", 1.1, 1.1, spread=0.1),
        cell("feed", "never reassigned", 1.21, 1.21, spread=0.1),
        cell("feed", "plain from the checkpoint", 0.5, 0.5, warm=True),
        cell("feed", "full from the checkpoint", 0.6, 0.6, spread=0.1, warm=True),
        cell("feed", "full from the checkpoint, with noise", 0.3, 0.3, spread=0.1, warm=True),
    )
    table = paper.parts(found)
    assert "| never reassigned | plain | +21.00 ± 0.00 |" in table
    assert "| never reassigned | full, T = 250, reassigned in every round | +10.00 ± 0.00 |" in table
    assert "| full from the checkpoint | plain from the checkpoint | +20.00 ± 0.00 |" in table
    assert "| full from the checkpoint, with noise | full from the checkpoint | −50.00 ± 0.00 |" in table


def test_the_large_run_has_both_losses_and_its_ranking() -> None:
    facts = {"auc": [0.6, 0.8], "ne": [0.9, 0.9], "weights": 51_000_000, "steps": 20_000}
    table = paper.large(
        told("large", cell("stream", "plain", 1.0, 1.0, **facts), cell("stream", "full", 1.1, 1.1, **facts))
    )
    assert "| plain |  |  | 0.7000 | 0.9000 |" in table
    assert "| full | +10.00 ± 0.00 | +10.00 ± 0.00 | 0.7000 | 0.9000 |" in table
    assert "51,000,000 weights, 20,000 steps, 2 seeds" in table
