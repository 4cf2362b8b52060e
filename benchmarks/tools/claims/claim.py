"""One claim, and which question of docs/evidence.md it belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.tools.claims.rules import Judge

__all__ = ["Claim"]


@dataclass(frozen=True)
class Claim:
    """One claim: in few words, where it stands, what it is judged by, and the rule."""

    #: A name from :data:`benchmarks.tools.claims.questions.QUESTIONS`.
    question: str
    #: A section of the paper, or one of our pages, from the root of the repository.
    source: str
    text: str
    judge: Judge
    #: JSON files of docs/evidence, without their suffix.
    files: tuple[str, ...] = ()
    #: Tests that hold it, as ``file::function``.
    tests: tuple[str, ...] = ()
