"""A grid of cells as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["markdown"]


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The headings, a rule, and the rows."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows))
