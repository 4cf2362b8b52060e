"""Numbers as a person reads them. ``assets/words.js`` says the same in the page."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["count", "number", "plural", "share"]


def number(value: Any, digits: int = 3) -> str:
    """So many digits that matter, with a power of ten only where one would count zeros.

    >>> [number(x) for x in (0.00310, 3.1e-5, 1234.5, 0, 2e7, None)]
    ['0.0031', '3.1e-5', '1230', '0', '2e7', '–']
    """
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    rounded = float(f"{mantissa}e{exponent}")
    if 1e-3 <= abs(rounded) < 1e5:
        return _bare(f"{rounded:.10f}")
    return f"{_bare(mantissa)}e{int(exponent)}"


def _bare(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def count(value: int) -> str:
    """A number of things: 12,345."""
    return f"{value:,}"


def plural(value: int, one: str) -> str:
    """One thing, or several: a plain English plural."""
    return f"{value:,} {one}{'' if value == 1 else 's'}"


def share(value: float) -> str:
    """A share in per cent, to two digits that matter.

    >>> [share(x) for x in (0.0184, 0.1234, 0.00012)]
    ['1.8 %', '12 %', '0.012 %']
    """
    return f"{number(100 * value, 2)} %"
