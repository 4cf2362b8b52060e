"""Where a mark's FILE lies: a measurement in docs/evidence, or the runs of a figure in docs/figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["read"]


def read(name: str, evidence: Path) -> dict[str, Any]:
    """What NAME.json holds. Figures have a folder of their own, because they prove nothing: no claim rests on
    one run that was made to be drawn."""
    for folder in (evidence, evidence.parent / "figures"):
        file = folder / f"{name}.json"
        if file.exists():
            found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return found
    raise LookupError(f"there is no {name}.json in docs/evidence, nor in docs/figures")
