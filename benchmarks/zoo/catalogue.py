"""Every task of the zoo by its name, and the cells: a task with an optimizer."""

from __future__ import annotations

from benchmarks.zoo import graphs, images, physics, sequences, synthetic, tables, text, transfer
from benchmarks.zoo.families import part_of
from benchmarks.zoo.task import Task

__all__ = ["TASKS", "cells"]

_ROOMS = (tables, graphs, sequences, text, images, physics, transfer, synthetic)
TASKS: dict[str, Task] = {task.name: task for room in _ROOMS for task in room.TASKS}


def cells(part: str | None = None) -> list[tuple[str, str]]:
    """Name and optimizer of every cell, of one part or of all."""
    return [
        (task.name, optimizer)
        for task in TASKS.values()
        for optimizer in task.optimizers
        if part is None or part_of(task.family) == part
    ]
