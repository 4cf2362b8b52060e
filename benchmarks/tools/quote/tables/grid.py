"""A grid of cells as a Markdown table, and words that several tables share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["machine_of", "markdown", "signed"]


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The headings, a rule, and the rows."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows))


def signed(value: float, form: str = ".3g") -> str:
    """With its sign, as it is printed.

    >>> signed(-0.25), signed(0.25, ".1f")
    ('−0.25', '+0.2')
    """
    return f"{value:+{form}}".replace("-", "−")


def machine_of(result: Mapping[str, Any]) -> str:
    """The GPU, or the processor and how many of its cores."""
    about = result["machine"]
    if about.get("gpu"):
        return str(about["gpu"])
    cpu = about["cpu"].replace("(R)", "").replace(" Processor", "")
    return f"{about['cores']} cores of {cpu}"
