"""The index names every measurement once, and says of it what the file says of itself."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.tools.claims.questions import QUESTIONS, anchor, question_of
from benchmarks.tools.claims.table import CLAIMS, judged
from benchmarks.tools.quote.index import INDEX, index, measurements
from tests import ROOT

EVIDENCE = ROOT / "docs" / "evidence"
KEPT = json.loads((EVIDENCE / INDEX).read_text(encoding="utf-8"))


def test_the_index_is_that_of_the_evidence() -> None:
    assert (EVIDENCE / INDEX).read_text(encoding="utf-8") == index(EVIDENCE), (
        "run: python -m benchmarks.tools.quote"
    )


def test_it_says_of_a_file_what_the_file_says() -> None:
    for file in measurements(EVIDENCE):
        result = json.loads(file.read_text(encoding="utf-8"))
        told = KEPT["files"][file.name]
        assert told["command"] == result["command"]
        assert result["machine"]["date"].startswith(told["date"])
        assert told["machine"]["torch"] == result["machine"]["torch"]
        assert told["machine"]["gpu"] == result["machine"].get("gpu")
        assert told["question"] in QUESTIONS
        assert told["claims"], "a file on which no claim rests"
        assert all((EVIDENCE / name).exists() for name in told["beside"])


def test_every_file_answers_one_question_and_every_question_names_files_that_are_there() -> None:
    names = [file for question in QUESTIONS.values() for file in question.files]
    assert sorted(names) == sorted(file.stem for file in measurements(EVIDENCE))
    assert len(set(names)) == len(names)
    with pytest.raises(LookupError, match=r"unheard-of\.json answers no question"):
        question_of("unheard-of")


def test_every_claim_is_in_it_with_its_verdict() -> None:
    listed = [claim for file in KEPT["files"].values() for claim in file["claims"]]
    listed += KEPT["claims_without_a_file"]
    assert {(claim["claim"], claim["verdict"]) for claim in listed} == {
        (claim.text, verdict.value) for claim, (_, verdict) in judged(EVIDENCE).items()
    }


def test_every_question_is_a_section_of_the_page() -> None:
    text = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    asked = [question.heading for question in QUESTIONS.values()]
    assert [heading for heading in sections if heading in asked] == asked, "in their order"
    top = text[: text.index(f"## {asked[0]}")]
    assert [heading for heading in asked if f"(#{anchor(heading)})" not in top] == []


def test_every_claim_belongs_to_a_question() -> None:
    assert {claim.question for claim in CLAIMS} <= QUESTIONS.keys()


def test_a_claim_stands_on_a_page_that_is_there() -> None:
    pages = {claim.source for claim in CLAIMS if claim.source.endswith(".md")}
    assert pages
    assert {page for page in pages if not (ROOT / page).exists()} == set()
    for claim in CLAIMS:
        assert claim.source.endswith(".md") or re.match(r"§|abstract", claim.source), claim.source
