"""What decides the last bit of a sum: the processor, whose maker MKL asks for, its vector instructions, and
torch."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def fingerprint() -> dict[str, str]:
    return {
        "processor": platform.machine(),
        "maker": _maker(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def _maker() -> str:
    """As Linux has it; elsewhere unknown."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
