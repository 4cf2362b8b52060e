"""What an arm has spent, and the best that it could hand over by now.

A method is told the loss on the probe's samples and nothing else. The loss on the test's samples is
measured in the same moment, written down and shown to nobody: so the curve of what one would have had after
so many samples is known, and no choice has seen it.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import islice
from typing import Any

from torch import nn

from benchmarks.autotune.space import Setting
from benchmarks.workloads import Workload

__all__ = ["Ledger"]

#: Batches of the probe that every look measures, the same ones: of most tasks all that there are.
_PROBE_BATCHES = 8
#: Where a loss beyond so many times that of the start is cut off.
_WORST = 10.0


class Ledger:
    """Samples, seconds, and every improvement by the probe with what it was worth on the test's samples.

    Args:
        workload: whose probe and test are measured.
        seed: of the probe's batches, the same in every look.
        untrained: the model at the start, the first that could be handed over.
    """

    def __init__(self, workload: Workload, seed: int, untrained: nn.Module) -> None:
        self._test = workload
        self._probe = replace(workload, held_out=tuple(islice(workload.probe(seed), _PROBE_BATCHES)))
        self.samples = 0
        #: Each improvement: samples, loss on the probe, loss on the test.
        self.points: list[tuple[int, float, float]] = []
        #: What the best was trained with.
        self.setting: Setting | None = None
        #: Seconds that only the measurement on the test has cost, which are nobody's.
        self.outside = 0.0
        self._began = time.perf_counter()
        self._worst = math.inf
        self._worst = _WORST * self.look(untrained)

    def spend(self, samples: int) -> None:
        """So many more were trained on."""
        self.samples += samples

    def look(self, model: nn.Module, setting: Setting | None = None) -> float:
        """Measure the weights as they stand, a candidate to be handed over; the loss on the probe.

        A loss that is not finite, or far beyond that of the start, is told as the latter.
        """
        loss = self._probe.evaluate(model)
        if not loss <= self._worst:
            return self._worst
        if not self.points or loss < self.points[-1][1]:
            began = time.perf_counter()
            test = self._test.evaluate(model)
            self.outside += time.perf_counter() - began
            if math.isfinite(test):
                self.points.append((self.samples, loss, test))
                self.setting = setting
        return loss

    def result(self) -> dict[str, Any]:
        """What a row says of it."""
        _, probe, test = self.points[-1]
        return {
            "probe": probe,
            "test": test,
            "init": self.points[0][2],
            "samples": self.samples,
            "seconds": round(time.perf_counter() - self._began - self.outside, 3),
            "points": [list(point) for point in self.points],
        }
