"""The documentation stays as long as somebody reads: the log apart, at most so many words."""

from __future__ import annotations

from tests import ROOT

_MOST = 30_000


def test_the_pages_have_no_more_words_than_somebody_reads() -> None:
    pages = [page for page in (ROOT / "docs").glob("**/*.md") if "_build" not in page.parts]
    words = {
        page.relative_to(ROOT).as_posix(): len(page.read_text(encoding="utf-8").split())
        for page in pages
        if page.name != "log.md"
    }
    longest = sorted(words.items(), key=lambda item: -item[1])[:5]
    assert sum(words.values()) <= _MOST, f"{sum(words.values()):,} words; the longest pages: {longest}"
