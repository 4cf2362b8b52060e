"""What a table of a benchmark looks like."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console


def shown(view: Any) -> str:
    """What a table of rich's looks like on a wide screen."""
    printed = io.StringIO()
    Console(width=400, file=printed).print(view)
    return printed.getvalue()
