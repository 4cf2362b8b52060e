"""What the commands of the benchmarks share: their choices, progress, JSON that a person can read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

__all__ = ["Device", "Scale", "as_json", "evidence_folder", "progress"]


class Device(str, Enum):
    """Where it can be measured."""

    cpu = "cpu"
    cuda = "cuda"


class Scale(str, Enum):
    """How large the tasks are."""

    cpu = "cpu"
    gpu = "gpu"


def progress(console: Console, status: Status) -> Callable[[str], None]:
    """Where a status line cannot be drawn again, a log must still show how far it is."""
    return status.update if console.is_terminal else partial(console.print, markup=False, highlight=False)


def as_json(result: object) -> str:
    """Indented, with every list of plain values on one line. No string of JSON holds a line break."""
    text = json.dumps(result, indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\n *", " ", found[0]), text) + "\n"


def evidence_folder() -> Path:
    """Where results go: beside the documents that quote them, if these are here."""
    evidence = Path("docs/evidence")
    return evidence if evidence.is_dir() else Path("runs")
