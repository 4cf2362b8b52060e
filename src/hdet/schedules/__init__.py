"""How a run goes over time: shapes of a schedule, lengths of windows, a found schedule run again. Shapes
and windows are pure; only ``drawn`` and ``replay`` know torch."""

from hdet.schedules.drawn import DrawnShape
from hdet.schedules.ends import End, end_of
from hdet.schedules.replay import Descent, FoundSchedule, replay
from hdet.schedules.shapes import SHAPES, Shape, WarmStableDecay
from hdet.schedules.windows import Every, Windows

__all__ = [
    "SHAPES",
    "Descent",
    "DrawnShape",
    "End",
    "Every",
    "FoundSchedule",
    "Shape",
    "WarmStableDecay",
    "Windows",
    "end_of",
    "replay",
]
