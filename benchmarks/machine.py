"""What every experiment's JSON file has in common: the machine, its noise, the rounding."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import hdet

__all__ = ["about", "file_of", "rounded", "summary"]


def about(name: str, *, quick: bool, device: str) -> dict[str, Any]:
    """How to repeat an experiment, and where it was made."""
    options = (" --quick" if quick else "") + (f" --device {device}" if device != "cpu" else "")
    return {
        "experiment": name,
        "command": f"python -m benchmarks {name}{options}",
        "machine": _describe(device),
    }


def file_of(rows: Path) -> Path:
    """Beside a file of rows: says where they were made."""
    return rows.with_suffix(".machine.json")


def _describe(device: str) -> dict[str, Any]:
    """The machine and the versions: enough to repeat a measurement, nothing that names the host."""
    facts: dict[str, Any] = {
        "hdet": hdet.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "device": device,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    if torch.device(device).type == "cuda":
        # Rows that a GPU elsewhere has made can be put into a table on any machine.
        here = torch.cuda.is_available()
        facts["gpu"] = torch.cuda.get_device_name(device) if here else "a GPU elsewhere"
        facts["cuda"] = torch.version.cuda
    return facts


def summary(name: str, values: Iterable[float]) -> dict[str, Any]:
    """The median under ``name`` and the quartiles beside it."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {name: middle, f"{name}_iqr": [low, high]}


def rounded(value: Any) -> Any:
    """Four significant digits for every float within."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def _cpu() -> str:
    """The processor's name, as far as the system tells."""
    try:
        listed = subprocess.run(["lscpu"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return platform.processor() or platform.machine()
    facts = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in listed.splitlines())
    }
    return facts.get("Model name", platform.machine())
