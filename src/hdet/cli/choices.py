"""What several commands let a user choose from."""

from __future__ import annotations

from enum import Enum

__all__ = ["Device", "Scale"]


class Device(str, Enum):
    """Where it can be measured."""

    cpu = "cpu"
    cuda = "cuda"


class Scale(str, Enum):
    """How large the tasks are."""

    cpu = "cpu"
    gpu = "gpu"
