"""What a number in a saved state may be. No torch: every room that takes a state may ask.

Each rule gives the value back, or raises ValueError with the call, the name, the rule and what was there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

__all__ = ["count", "flag", "number", "of_length", "positive"]

_MEND = "the state was changed after it was saved; go back to an earlier checkpoint"


def count(caller: str, name: str, value: Any, *, most: int | None = None) -> int:
    """A number of steps, or of anything else that is counted."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not fits or (most is not None and value > most):
        bound = "" if most is None else f" and at most {most}"
        raise _refused(caller, name, f"an integer of at least 0{bound}", value)
    return int(value)


def number(caller: str, name: str, value: Any, *, least: float = -math.inf) -> float:
    """A finite number."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value < least:
        bound = "" if least == -math.inf else f" of at least {least:g}"
        raise _refused(caller, name, f"a finite number{bound}", value)
    return float(value)


def positive(caller: str, name: str, value: Any) -> float:
    """A finite number above 0."""
    if number(caller, name, value) <= 0:
        raise _refused(caller, name, "above 0", value)
    return float(value)


def flag(caller: str, name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise _refused(caller, name, "True or False", value)
    return value


def of_length(caller: str, name: str, value: Any, length: int) -> Sequence[Any]:
    """A list of so many."""
    if not isinstance(value, (list, tuple)) or len(value) != length:
        raise _refused(caller, name, f"a list of {length}", value)
    return value


def _refused(caller: str, name: str, rule: str, value: Any) -> ValueError:
    return ValueError(f"{caller}.load_state_dict: {name} must be {rule}, got {str(value)[:80]}; {_MEND}")
