"""Relative links of our documents lead somewhere: to a file that is there, and to a heading that it has.

Sphinx holds the same for the site; this holds it for who reads them in the repository, and README.md and its
neighbours, which Sphinx never sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests import ROOT

DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *ROOT.glob("examples/*.md"),
    *ROOT.glob("benchmarks/*/*.md"),
]
DOCUMENTS = [page for page in DOCUMENTS if "_build" not in page.parts]

_FENCES = re.compile(r"^[ \t>]*(`{3,}|~{3,}).*?^[ \t>]*\1[`~]*[ \t]*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^)<>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
_HTML = re.compile(r"\b(?:href|src|srcset)=\"([^\"]+)\"")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:|//")


def links(text: str) -> Iterator[str]:
    """Where a document points to, relative to itself."""
    # A link's text may be code: that much of it is kept.
    prose = _CODE.sub("``", _FENCES.sub("", text))
    for match in (*_LINK.finditer(prose), *_HTML.finditer(prose)):
        target = next(filter(None, match.groups()))
        if not _ADDRESS.match(target):
            yield target


def anchors(text: str) -> set[str]:
    """The anchors that GitHub, and the site after it, give to headings; and those that are written out."""
    text = _FENCES.sub("", text)
    found = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    seen: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        again = seen.get(slug, 0)
        seen[slug] = again + 1
        found.add(f"{slug}-{again}" if again else slug)
    return found


def lost(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in links(page.read_text(encoding="utf-8")):
        name, _, anchor = unquote(link).partition("#")
        target = page.parent / name if name else page
        known = not anchor or (target.is_file() and anchor in anchors(target.read_text(encoding="utf-8")))
        if not target.exists() or not known:
            found.append(link)
    return found


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert not lost(page)


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text(
        "# What `step(loss)` costs: 1 %\n## Again\n## Again\n", encoding="utf-8"
    )
    page = tmp_path / "page.md"
    good = "other.md", "other.md#what-steploss-costs-1-", "other.md#again-1", "#here", "https://example.org/x"
    bad = "missing.md", "other.md#again-2", "#there", "../missing", "missing.png"
    lines = [f"[a `word`]({link})" for link in (*good, *bad)]
    page.write_text(
        "\n".join(["# Here", *lines, "```text\n[a](code.md)\n```", "`[b](code.md)`"]), encoding="utf-8"
    )
    assert lost(page) == list(bad)
