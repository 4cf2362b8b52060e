"""The places of a page that are filled from docs/evidence."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.tools.claims import table as claims
from benchmarks.tools.quote.numbers import number
from benchmarks.tools.quote.tables import made_by, quoted

__all__ = ["fill", "pages"]

#: What begins a place, and what ends one; a mark in a code span is text about marks.
_MARK = re.compile(r"(?<!`)<!-- *(quote|number|source|claims|end)\b(.*?)-->", re.DOTALL)
_CLAIMS = {"": claims.table, "counts": claims.counts}
#: All that may stand before a mark and still leave its line to begin with it.
_NOTHING = re.compile(r"[\s>]*(?:[-*+]\s+|\d+[.)]\s+)?")


def pages(root: Path) -> list[str]:
    """README.md and the pages of docs/ and of docs/evidence, relative to ``root``."""
    found = [file for folder in ("docs", "docs/evidence") for file in (root / folder).glob("*.md")]
    return ["README.md", *sorted(str(file.relative_to(root)) for file in found)]


def fill(text: str, evidence: Path, page: str = "this text") -> str:
    """``text`` with every marked place filled anew; an error names ``page``, line and mark."""
    parts: list[str] = []
    done = 0
    opened: re.Match[str] | None = None
    for mark in _MARK.finditer(text):
        if (mark[1] == "end") == (opened is None):
            lone = mark if opened is None else opened
            needs = "begins nothing" if lone[1] == "end" else "has no <!-- end -->"
            raise ValueError(f"{_where(page, text, lone)} {needs}")
        if opened is None:
            opened = mark
            continue
        try:
            filled = _filled(text, opened, evidence)
        except (LookupError, ValueError) as error:
            raise ValueError(f"{_where(page, text, opened)}: {error}") from error
        parts += [text[done : opened.end()], filled]
        done, opened = mark.start(), None
    if opened is not None:
        raise ValueError(f"{_where(page, text, opened)} has no <!-- end -->")
    return "".join([*parts, text[done:]])


def _where(page: str, text: str, mark: re.Match[str]) -> str:
    return f"{page}, line {text.count(chr(10), 0, mark.start()) + 1}, {mark[0]}"


def _filled(text: str, mark: re.Match[str], evidence: Path) -> str:
    kind, rest = mark[1], mark[2].removeprefix(":").strip()
    before = text[text.rfind("\n", 0, mark.start()) + 1 : mark.start()]
    if kind in ("number", "source"):
        if _NOTHING.fullmatch(before):
            raise ValueError("begins its line, which Markdown then takes for HTML: put a word before it")
        return number(rest, evidence) if kind == "number" else made_by(rest, evidence)
    if not text.startswith("\n", mark.end()):
        raise ValueError("a table needs lines of its own: end the line after the mark")
    if kind == "claims":
        if rest not in _CLAIMS:
            raise ValueError(f"there is no table of claims {rest!r}: there is 'claims' and 'claims counts'")
        return f"\n{_CLAIMS[rest](evidence)}\n"
    name, _, part = rest.partition(" ")
    return f"\n{quoted(name, part.strip(), evidence)}\n"
