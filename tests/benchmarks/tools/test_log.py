"""docs/log.md: every entry is dated, says how it came out, and is newest first within its subject."""

from __future__ import annotations

import re

import pytest

from tests import ROOT

TEXT = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
SUBJECTS = {
    part.partition("\n")[0]: part.partition("\n")[2]
    for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
}
TABLES = ("Tried and kept", "Tried and given up")


def anchor(heading: str) -> str:
    """What a link to a heading ends with, on GitHub and in MyST."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def entries(subject: str) -> dict[str, str]:
    parts = re.split(r"^### ", SUBJECTS[subject], flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


@pytest.mark.parametrize("subject", [subject for subject in SUBJECTS if subject not in TABLES])
def test_entries_are_dated_say_how_they_came_out_and_newest_first(subject: str) -> None:
    found = entries(subject)
    assert found, "an entry goes under its subject, as ### title, *date.*, what and why, **Outcome**: …"
    dates = []
    for title, body in found.items():
        date = re.match(r"\*(\d{4}-\d\d-\d\d)\.\*", body)
        assert date, f"{title} has no date"
        dates.append(date[1])
        assert re.search(r"\*\*Outcome\*\*:\s", body.partition("<details>")[0]), title
        assert body.count("<details>") == body.count("</details>")
    assert dates == sorted(dates, reverse=True)


@pytest.mark.parametrize("table", TABLES)
def test_the_tables_at_the_top_lead_to_entries(table: str) -> None:
    assert list(SUBJECTS).index(table) < len(TABLES)
    titles = {anchor(title) for subject in SUBJECTS if subject not in TABLES for title in entries(subject)}
    links = re.findall(r"\| \[entry\]\(#([^)]*)\) \|", SUBJECTS[table])
    assert len(links) > 10
    assert set(links) <= titles


def test_the_subjects_are_listed_at_the_top() -> None:
    top = TEXT.partition("\n## ")[0]
    assert [
        subject for subject in SUBJECTS if subject not in TABLES and f"(#{anchor(subject)})" not in top
    ] == []
