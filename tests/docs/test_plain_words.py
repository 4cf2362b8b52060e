"""No page, message or docstring has a word that readers stumble over; one sentence says what hdet is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import hdet
from tests import ROOT

#: Write instead: again; returns, loads; warns, logs; raises; fixed; decays; rollback; resume.
QUAINT = re.compile(
    r"\b(anew|hand(?:s|ed)? over|(?:is|are|was|were|be|being) (?:said|refused)|mended|c[oa]mes? down|way back"
    r"|on the way out|whatever becomes|relapse\w*|speed of the weights|neither blindness"
    r"|worth -?\d+\.\d+|take the run up|take up the run)\b",
    re.IGNORECASE,
)
#: Dated notes of what was done, and what was promised before a measurement: they stay as they were written.
NOTES = ("docs/log.md", "docs/protocols/", "docs/_build/")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples/README.md",
    *ROOT.glob("docs/**/*.md"),
]
PAGES = sorted(page for page in PAGES if not page.relative_to(ROOT).as_posix().startswith(NOTES))
SOURCES = sorted(ROOT.glob("src/hdet/**/*.py"))
SENTENCE = "Training finds its own hyperparameters while it runs, on the replicas you already pay for"


def quaint(text: str) -> list[str]:
    text = " ".join(text.split())
    return [text[max(0, m.start() - 30) : m.end() + 30] for m in QUAINT.finditer(text)]


def strings(source: str) -> list[str]:
    """What a program may print, and its docstrings; parts of one f-string together."""
    found, inner = [], set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            inner |= set(map(id, parts))
            found.append("…".join(str(part.value) for part in parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            found.append(node.value)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_a_quaint_word(page: Path) -> None:
    assert quaint(page.read_text(encoding="utf-8")) == []


def test_no_message_and_no_docstring_has_one() -> None:
    found = {path.name: quaint("\n".join(strings(path.read_text(encoding="utf-8")))) for path in SOURCES}
    assert {name: words for name, words in found.items() if words} == {}


def test_they_would_be_found() -> None:
    assert quaint("the rate has not come\ndown") == ["the rate has not come down"]
    assert len(quaint("the state is refused, and made Anew")) == 2
    assert strings('f"a {1} mended"') == ["a … mended"]


def test_one_sentence_says_everywhere_what_it_is() -> None:
    assert hdet.__doc__ is not None
    for text in (
        hdet.__doc__,
        *(
            (ROOT / name).read_text(encoding="utf-8")
            for name in ("README.md", "docs/index.md", "pyproject.toml", "CITATION.cff")
        ),
    ):
        assert SENTENCE.lower() in " ".join(text.split()).lower()
