"""Checks of what a probe measures. Losses that are not finite or never change raise; a loss that has steps,
one that is trained on, and one whose loss is not the training loss give a warning; so do ranks that train on
the same batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import cycle
from typing import Any

from hdet.autolr.rule import Window
from hdet.loop.policy import Sample, Seen
from hdet.probes import Probe
from hdet.probes.batch_contents import count_samples
from hdet.probes.overlap import WIDTH, Overlap

__all__ = ["ProbeChecks", "other_loss"]

_MAX_CONSTANT = 3
#: Of a quotient in float32, beside one.
_ROUNDING = 1e-6
#: Losses at the same weights differ clearly by so many standard errors, and enough for a warning by this
#: share of the smaller. Where training losses hardly differ among themselves, as for one batch repeated,
#: their spread says nothing about other samples, and it takes more.
_ERRORS, _SHARE, _SHARE_OF_ONE, _ONE = 5, 0.25, 1.0, 1e-3
#: Fewer batches do not give a usable spread.
_ENOUGH = 4
#: A loss that counts samples shows so by this many bits, each of which chance grants in one of two cases.
_BITS = 24


class ProbeChecks:
    """Checks what a probe measures, window by window, and raises or warns.

    Args:
        caller: prefix for errors and log lines.
        probe: what is checked.
        watches: whether to look at the model's inputs.
        own_data: whether every rank should train on data of its own.
    """

    def __init__(self, caller: str, probe: Probe, *, watches: bool = True, own_data: bool = False) -> None:
        self._caller = caller
        self._probe = probe
        self._own_data = own_data
        self._constant, self._varied = 0, False
        self._overlap = Overlap(probe)
        if not watches:
            self._overlap.settle()
        #: For each batch the counts of samples that its losses were; None once one was none, or it was said.
        self._counts: set[tuple[int, int]] | None = set()
        #: The training losses at the weights that the first judged window is compared with.
        self._training: Sample | None = Sample()

    def watch(self) -> None:
        """Training has begun."""
        self._overlap.watch()

    def row(self) -> list[float]:
        """What this rank has seen of samples that are trained on; the same length on all ranks."""
        return [] if self._overlap.settled else self._overlap.row()

    def judge(self, seen: Seen, windows: Sequence[Window], *, judged: bool) -> tuple[str, ...]:
        """New warnings; raises for what cannot be used where windows are ``judged``."""
        if judged:
            self._check_losses(seen.step, windows)
        said = [self._steps(windows[0].mean)]
        if not self._overlap.settled:
            rows = [row[-WIDTH:] for row in seen.rows]
            said += [self._overlap.same_batches(rows)] if self._own_data else []
            said.append(self._overlap.found(rows))
        if not judged and self._training is not None:
            self._training = seen.training
        elif self._training is not None:
            said.append(other_loss(self._training, Sample.of(windows[0].previous)))
            self._training = None
        return tuple(filter(None, said))

    def prepare(self) -> None:
        """The probe is about to measure."""
        if not self._overlap.settled:
            self._overlap.prepare()

    def _check_losses(self, step: int, seen: Sequence[Window]) -> None:
        """Raise ValueError where losses at known weights are not finite, or do not depend on the weights."""
        losses = [loss for window in seen for loss in (*window.previous, *window.mean, *window.end)]
        if not all(math.isfinite(loss) for window in seen for loss in window.previous):
            raise ValueError(
                f"{self._caller}.step: step {step}: the probe's loss must be finite at weights that training "
                f"has left behind, got {seen[0].previous}; check loss_fn and its batches"
            )
        moved = any(window.displacement > 0 for window in seen)
        alike = moved and all(
            list(window.previous) == list(window.mean)
            and list(window.end) == list(window.mean_there or window.mean)
            for window in seen
        )
        self._varied = self._varied or not alike
        # A loss that did depend on the weights may end at zero, or at the precision of a float.
        self._constant = 0 if self._varied else self._constant + 1
        if self._constant >= _MAX_CONSTANT:
            raise ValueError(
                f"{self._caller}.step: step {step}: the probe's loss must depend on the weights, and was "
                f"{losses[0]:.6g} at all points of {self._constant} windows; does loss_fn call the model "
                "that the optimizer trains?"
            )

    def _steps(self, losses: Sequence[float]) -> str:
        """The warning if all losses so far are numbers of samples over the size of a batch, or "".

        Chance grants that to no float32. In bfloat16, which has eight binary digits, a count of samples below
        2^k has 8 - k of them behind the point, and chance makes all of them zero once in 2^(8 - k) cases.
        """
        if self._counts is None or not all(map(math.isfinite, losses)):
            return ""
        sizes = [count_samples(batch) for batch in self._probe.halves()[0]]
        for loss, (batch, size) in zip(losses, cycle(enumerate(sizes)), strict=False):
            count = abs(loss) * (size or 0)
            if size is None or abs(count - round(count)) > _ROUNDING * size:
                self._counts = None
                return ""
            self._counts.add((batch, round(count)))
        if sum(max(0, 8 - count.bit_length()) for _, count in self._counts if count) < _BITS:
            return ""
        self._counts = None
        return (
            f"the probe's losses are whole numbers of samples over {sizes[0]}, the size of its batches: a "
            "step function of the weights, such as 1 - accuracy, by which a learning rate is badly judged. "
            "Give the probe the loss that is trained on, and the metric (higher is better) as choose_by: "
            "hdet.Probe(loss_fn, batches, model=model, choose_by=metric)"
        )

    def state(self) -> list[Any]:
        """Plain values."""
        first = None if self._training is None else asdict(self._training)
        return [self._constant, self._varied, self._overlap.settled, first]

    def load(self, state: Sequence[Any]) -> None:
        """Continue from :meth:`state`."""
        self._constant, self._varied, settled, first = state
        self._training = None if first is None else Sample(**first)
        if settled:
            self._overlap.settle()


def other_loss(training: Sample, probe: Sample) -> str:
    """The warning if the training loss and the probe's, at the same weights, clearly differ, or "".

    Dropout is off in the probe, so a small difference is expected.

    >>> other_loss(Sample(2.3, 0.1, 10), Sample(2.4, 0.1, 4))
    ''
    >>> other_loss(Sample(2.3, 0.1, 10), Sample(147.0, 3.0, 4))[:71]
    'at the same weights the training loss is 2.3 and that of the probe 147:'
    """
    if probe.count < _ENOUGH and training.mean:  # so few may be alike by chance
        relative = training.spread * min(1, abs(probe.mean / training.mean))
        probe = replace(probe, spread=max(probe.spread, relative))
    difference = abs(training.mean - probe.mean)
    one = training.spread <= _ONE * abs(training.mean)
    least = (_SHARE_OF_ONE if one else _SHARE) * min(abs(training.mean), abs(probe.mean))
    if not difference > max(_ERRORS * math.hypot(training.error, probe.error), least):  # NaN is not known
        return ""
    return (
        f"at the same weights the training loss is {training.mean:.4g} and that of the probe "
        f"{probe.mean:.4g}: the probe has other data than training, or another loss (a sum, not a mean; "
        "a loss divided for accumulation; a penalty, smoothing, mixing or strong dropout in training alone), "
        "or the weights know the training data from before. The learning rate is fitted to the probe's loss: "
        "harmless if intended"
    )
