"""docs/evidence/index.json: what every file of the folder is, for a program that looks for evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.tools.claims.claim import Claim
from benchmarks.tools.claims.questions import QUESTIONS, anchor, question_of
from benchmarks.tools.claims.rules import Judged
from benchmarks.tools.claims.table import judged as judge
from benchmarks.tools.claims.table import seeds_of
from benchmarks.tools.quote.drawing import DRAWN

__all__ = ["INDEX", "index", "measurements"]

INDEX = "index.json"
_PAGE = "docs/evidence.md"
_ABOUT = (
    "Every measurement of this folder: the question of docs/evidence.md that it answers, the command and the "
    "machine that made it, and the claims that rest on it, with verdicts computed by "
    "benchmarks/tools/claims. Written by `python -m benchmarks.tools.quote`."
)


def measurements(evidence: Path) -> list[Path]:
    """The JSON files that hold a measurement."""
    return sorted(file for file in evidence.glob("*.json") if file.name != INDEX)


def index(evidence: Path) -> str:
    """The questions, the files and the claims, as JSON."""
    verdicts = judge(evidence)
    found = {
        "about": _ABOUT,
        "questions": {
            name: {
                "question": question.heading,
                "page": f"{_PAGE}#{anchor(question.heading)}",
                "files": [f"{file}.json" for file in question.files],
            }
            for name, question in QUESTIONS.items()
        },
        "files": {file.name: _file(file, verdicts) for file in measurements(evidence)},
        "claims_without_a_file": [
            {**_claim(claim, judged), "tests": list(claim.tests)}
            for claim, judged in verdicts.items()
            if not claim.files
        ],
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _file(file: Path, verdicts: Mapping[Claim, Judged]) -> dict[str, Any]:
    result = json.loads(file.read_text(encoding="utf-8"))
    about = result["machine"]
    beside = {other.name for other in file.parent.glob(f"{file.stem}.*")} - {file.name}
    beside |= {drawing for drawing, drawn_from in DRAWN.items() if drawn_from == file.stem}
    return {
        "experiment": result["experiment"],
        "question": question_of(file.stem),
        "command": result["command"],
        "machine": {
            "cpu": about["cpu"],
            "cores": about["cores"],
            "gpu": about.get("gpu"),
            "torch": about["torch"],
        },
        "date": about["date"][:10],
        "seeds": seeds_of(result),
        "beside": sorted(beside),
        "claims": [_claim(claim, judged) for claim, judged in verdicts.items() if file.stem in claim.files],
    }


def _claim(claim: Claim, judged: Judged) -> dict[str, Any]:
    measured, verdict = judged
    return {
        "claim": claim.text,
        "source": claim.source,
        "question": claim.question,
        "measured": measured,
        "verdict": verdict.value,
    }
