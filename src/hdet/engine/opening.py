"""What a history opens with, so that it explains itself later: the run's set-up, versions and command."""

from __future__ import annotations

import os
import platform
import sys
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

import hdet
from hdet.engine.optimizers import parts_of
from hdet.hyperparameters import Axis
from hdet.hyperparameters.scalar import ScalarAxis

__all__ = ["bounds", "command", "memory_bytes", "of"]

#: No text of a set-up is longer: a history is to be read.
_LONGEST = 2000


def of(optimizer: Optimizer, facts: Mapping[str, str]) -> dict[str, Any]:
    """Set-up, versions and command; plain values all."""
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    return {
        "id": uuid.uuid4().hex[:12],
        "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "optimizer": " and ".join(type(part).__name__ for part in parts_of(optimizer)),
        "parameters": sum(p.numel() for p in trained),
        "device": str(trained[0].device) if trained else "none",
        "configuration": {key: value[:_LONGEST] for key, value in facts.items() if key != "history"},
        "versions": {
            "hdet": hdet.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "platform": platform.platform(),
        "command": command()[:_LONGEST],
    }


def bounds(axes: Sequence[Axis]) -> dict[str, list[float]]:
    """Between which values each hyperparameter must stay; a learning rate has no such bounds."""
    return {axis.name: list(axis.bounds) for axis in axes if isinstance(axis, ScalarAxis)}


def command() -> str:
    """How the run was started; a script outside of the working folder by its name alone."""
    script, *arguments = sys.argv or [""]
    path = Path(script)
    if path.is_absolute() and path.name != "__main__.py":
        path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(path.name)
    shown = f"python -m {path.parent.name}" if path.name == "__main__.py" else str(path)
    return " ".join([shown, *arguments])


def memory_bytes() -> dict[str, int | None]:
    """What this process holds now, and the most that its device held so far; None where nobody tells."""
    device = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {"process": pages * os.sysconf("SC_PAGE_SIZE"), "device": device}
    except OSError:  # no Linux
        return {"process": None, "device": device}
