"""What decides the last bit of a sum: the kind of processor, its vector instructions, and torch."""

from __future__ import annotations

import platform

import torch


def fingerprint() -> dict[str, str]:
    return {
        "processor": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }
