"""How a run goes over time: shapes of a schedule, lengths of windows, a found schedule run again. Shapes
and windows are pure; only ``replay`` knows torch."""

from hdet.schedules.replay import FoundSchedule, replay
from hdet.schedules.shapes import SHAPES, Shape, WarmStableDecay
from hdet.schedules.windows import Windows

__all__ = ["SHAPES", "FoundSchedule", "Shape", "WarmStableDecay", "Windows", "replay"]
