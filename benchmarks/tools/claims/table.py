"""Every claim of the paper and of our pages, with what was measured and the verdict that follows.

Numbers and verdicts come from docs/evidence/*.json by the rules of :mod:`.judges`. What no number can
show is held by a test, which is named instead.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.tools.claims.claim import Claim
from benchmarks.tools.claims.questions import QUESTIONS, anchor
from benchmarks.tools.claims.rules import Result, Verdict, machine_of
from benchmarks.tools.claims.stated import CLAIMS

__all__ = ["CLAIMS", "counts", "judged", "seeds_of", "table"]

_EVIDENCE = "docs/evidence.md"


def table(evidence: Path) -> str:
    """All claims as Markdown, with what the JSON files under ``evidence`` hold now."""
    results = _read(evidence)
    return _markdown(
        ["claim", "where", "measured", "evidence", "verdict"],
        [_cells(claim, results) for claim in CLAIMS],
    )


def counts(evidence: Path) -> str:
    """How many claims have which verdict, question by question."""
    found = Counter((_row(claim), verdict) for claim, (_, verdict) in judged(evidence).items())
    order = [(name, of_paper) for name in QUESTIONS for of_paper in (True, False)]
    rows = [
        [_link(name) + (", its own claims" if of_paper else ", ours about it" if name == "paper" else "")]
        + [str(found[(name, of_paper), verdict] or "–") for verdict in Verdict]
        for name, of_paper in order
        if any(_row(claim) == (name, of_paper) for claim in CLAIMS)
    ]
    total = [f"**{sum(found[row, verdict] for row in order)}**" for verdict in Verdict]
    headings = ["question", *(verdict.value for verdict in Verdict)]
    return _markdown(headings, [*rows, [f"**all {len(CLAIMS)} claims**", *total]])


def _row(claim: Claim) -> tuple[str, bool]:
    """What a claim is counted under: its question, and whether it is the paper's."""
    return claim.question, not claim.source.endswith(".md")


def judged(evidence: Path) -> dict[Claim, tuple[str, Verdict]]:
    """What was measured of every claim, and its verdict."""
    results = _read(evidence)
    return {claim: claim.judge({name: results[name] for name in claim.files}) for claim in CLAIMS}


def seeds_of(result: Result) -> int | None:
    """How many seeds a result has, None where there are none to count."""
    if "runs" in result:
        column = result["runs"]["header"].index("seed")
        return len({row[column] for row in result["runs"]["rows"]})
    counted: int | None = result.get("seeds", result.get("settings", {}).get("seeds"))
    return counted


def _read(evidence: Path) -> dict[str, Any]:
    names = {name for claim in CLAIMS for name in claim.files}
    return {name: json.loads((evidence / f"{name}.json").read_text(encoding="utf-8")) for name in names}


def _cells(claim: Claim, results: Mapping[str, Result]) -> list[str]:
    mine = {name: results[name] for name in claim.files}
    measured, verdict = claim.judge(mine)
    made_by = [*_commands(mine.values()), *(f"`{test}`" for test in claim.tests)]
    return [claim.text, _where(claim), measured, "; ".join(made_by) or "–", f"**{verdict.value}**"]


def _where(claim: Claim) -> str:
    """The paper's section, our page, or the question of this one."""
    if claim.source == _EVIDENCE:
        return _link(claim.question)
    return f"`{claim.source}`" if claim.source.endswith(".md") else claim.source


def _link(question: str) -> str:
    heading = QUESTIONS[question].heading
    return f"[{heading}](#{anchor(heading)})"


def _commands(results: Iterable[Result]) -> list[str]:
    """Commands and seeds, machine by machine."""
    by_machine: dict[str, list[str]] = {}
    for result in results:
        seeds = seeds_of(result)
        said = f"`{result['command']}`" + (f" ({seeds} seeds)" if seeds else "")
        by_machine.setdefault(machine_of(result), []).append(said)
    return [f"{', '.join(commands)}, {machine}" for machine, commands in by_machine.items()]


def _markdown(headings: list[str], rows: Iterable[list[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
