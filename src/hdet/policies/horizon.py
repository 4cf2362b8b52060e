"""What the horizon controller looks at: the points that a window leaves behind, and the loss at each.

A virtual fan-out: one replica moves its weights to the points, one after the other, and no divergence is
needed. Several replicas probe at the same time, each its own batches and, where they diverge, its own points.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

from torch.optim import Optimizer

from hdet.controllers.horizon import HorizonController, HorizonDecision, HorizonState, Window
from hdet.probes.probe import Probe
from hdet.replicas import Replicas, local
from hdet.schedules.windows import Windows
from hdet.weights.snapshot import Snapshot, Where
from hdet.weights.trail import Trail

__all__ = ["Horizon", "Verdict", "average"]

logger = logging.getLogger("hdet")

#: The learning rate of the first window: as good as none, and the same whatever the optimizer was given.
FIRST_LR = 1e-5
#: One probe batch for so many steps of a window: what probing costs stays a small share of training.
_STEPS_PER_BATCH = 50
_MAX_BACKS, _MAX_BACKS_IN_A_ROW = 20, 5
_MAX_CONSTANT = 3
#: A schedule below this share of its peak is in its final descent.
_DESCENT = 0.7
#: After so many draws of one and the same batch there is reason to say so.
_SAME_BATCH = 8


class Verdict(NamedTuple):
    """What one window came to."""

    decisions: list[HorizonDecision]
    windows: list[Window]
    events: list[str]


class Horizon:
    """Windows, their means, the probe at their points, and the way back.

    Args:
        probe: measures the loss.
        controller: decides.
        windows: how long they are.
        scope: ``"together"`` moves all parameter groups by one factor; ``"each"`` compares, and moves, every
            group by itself, which takes two points more for each.
        snapshot: where the way back is kept: on the device, in host memory, or not at all.
    """

    def __init__(
        self,
        probe: Probe,
        controller: HorizonController,
        windows: Windows,
        *,
        scope: Literal["together", "each"] = "together",
        snapshot: Where = "device",
    ) -> None:
        self.probe = probe
        self.controller = controller
        self.windows = windows
        self.scope = scope
        self._where = snapshot
        self.states: list[HorizonState] = []

    def bind(self, caller: str, optimizer: Optimizer, replicas: Replicas, *, diverges: bool) -> None:
        """Take the weights of an optimizer; the window begins with its first step."""
        self._caller = caller
        self.window_end: int | None = None
        groups = len(optimizer.param_groups) if self.scope == "each" else None
        self._trail = Trail(optimizer, replicas, groups=groups, diverges=diverges)
        if not self._trail.weights:
            raise ValueError(
                f"{caller}: the optimizer must train something, and all its parameters are frozen; call "
                "requires_grad_() on some first"
            )
        self._snapshot = (
            Snapshot(
                # The frozen ones too: they may be freed within a window.
                [local(p) for group in optimizer.param_groups for p in group["params"]],
                optimizer,
                self.probe.model,
                self._where,
            )
            if self._where != "off"
            else None
        )
        self.states = [HorizonState(1.0) for _ in self._trail.scopes]
        self._constant = self._drawn = 0
        self._varied = False
        self._curve_peak = self._curve_before = 0.0
        #: Whether the last window was taken back.
        self.went_back = False
        self._said_same_batch = False
        self.start(0)

    def facts(self) -> dict[str, str]:
        """On what all ranks must agree."""
        return {
            "horizon controller": repr(self.controller),
            "windows": repr(self.windows),
            "scope": self.scope,
            "snapshot": self._where,
            "probe batches a sync": repr(self.probe.per_sync),
        }

    def start_at(self, curves: Sequence[float]) -> None:
        """The first factor: next to no learning rate, whatever the schedule's values are."""
        self.states = [HorizonState(FIRST_LR / max(curves)) for _ in self.states]
        self._curve_peak = self._curve_before = curves[0]

    # ------------------------------------------------------------------ between syncs

    def start(self, step: int) -> None:
        """Begin the first window; the weights before it are those that its first step will find."""
        self._fresh = True
        self._previous_middle = [float(step) for _ in self._trail.scopes]
        self.begin(step)

    def begin(self, step: int) -> None:
        """Begin the window that follows ``step`` steps."""
        self._began = step
        self.window_end = self.windows.end_after(step)
        self._taken = False

    def stop(self) -> None:
        """No window any more."""
        self.window_end = None

    def before_step(self) -> None:
        """The way back leads to the weights as the window's first step finds them."""
        if self._taken:
            return
        self._taken = True
        if self.window_end is not None:
            self._trail.follow()
            self._trail.mean.begin(self.window_end - self._began)
        if self._fresh:
            self._trail.start()
            self._fresh = False
        if self._snapshot is not None and self.window_end is not None:
            self._snapshot.take()

    def after_step(self) -> None:
        """An iterate more. Waits for nothing."""
        if self.window_end is not None:
            self._trail.mean.add()

    # ------------------------------------------------------------------ at a sync

    def measure(self) -> list[float]:
        """This replica's row: losses at every point, for each probe batch. Empty until weights have moved."""
        if all(state.windows == 0 for state in self.states):
            return []
        assert self.window_end is not None
        count = max(2, (self.window_end - self._began) // _STEPS_PER_BATCH)
        batches = self.probe.draw(count)
        self._drawn += len(batches)
        if self._drawn >= _SAME_BATCH and self.probe.distinct == 1 and not self._said_same_batch:
            self._said_same_batch = True
            logger.warning(
                "%s: the probe's %d batches so far were one and the same: the learning rate is fitted to it. "
                "Training goes on; give Probe more batches",
                self._caller,
                self._drawn,
            )
        self._trail.leave()
        losses: list[float] = []
        try:
            for point in self._trail.points():
                self._trail.go(point)
                losses += self.probe.losses(batches)
        finally:
            self._trail.go(self._trail.end)
        return losses

    def displacements(self) -> list[float]:
        """‖m − p‖ / ‖p‖ of each scope, m being by now the mean over all replicas. Waits for the device."""
        return self._trail.displacements()

    def decide(
        self, step: int, total_steps: int | None, rows: Sequence[Sequence[float]], curve: float
    ) -> Verdict:
        """The controller's decision for each scope and what follows from it.

        Everything is read off the rows of all replicas (displacements, then losses), so all decide alike.
        ``curve`` is the schedule's own value. Once it is well below its peak it is on its way down, and what
        follows is its own doing: no further window.
        """
        rise = math.log(curve / self._curve_before) if min(curve, self._curve_before) > 0 else 0.0
        verdict = self._decide(step, total_steps, rows, rise)
        self._curve_peak, self._curve_before = max(self._curve_peak, curve), curve
        if curve < _DESCENT * self._curve_peak:
            self.stop()
            if total_steps is None or step < total_steps / 3:
                logger.warning(
                    "%s: the schedule is below %d %% of its peak after %d steps: the search for its size "
                    "ends here",
                    self._caller,
                    100 * _DESCENT,
                    step,
                )
        return verdict

    def check_end(self) -> str:
        """What is wrong with the weights that training ends with, if anything. Waits for the device."""
        if self._trail.is_finite():
            return ""
        return (
            "the weights are not finite at the end of training: they were lost after the last window, from "
            "where on there is no way back"
        )

    def _decide(
        self, step: int, total_steps: int | None, rows: Sequence[Sequence[float]], rise: float
    ) -> Verdict:
        scopes = len(self.states)
        displacements = [math.fsum(row[i] for row in rows) / len(rows) for i in range(scopes)]
        rows = [row[scopes:] for row in rows]
        middle = (self._began + 1 + step) / 2
        following = self.windows.end_after(step) or step + (step - self._began)
        seen: list[Window] = []
        for scope, displacement in enumerate(displacements):
            mean, previous, end = self._pooled(rows, scope)
            window = Window(
                step,
                following,
                total_steps,
                displacement,
                middle - self._previous_middle[scope],
                previous,
                mean,
                end,
                rise,
            )
            seen.append(window)
        self._refuse_useless(step, seen)
        decisions = [
            self.controller.update(state, window)
            if self._trail.weights[part]
            else HorizonDecision(state, "hold", 0.0, why="nothing is trained")
            for state, window, part in zip(self.states, seen, self._trail.scopes, strict=True)
        ]
        self.went_back = any(decision.action == "back" for decision in decisions)
        if self.went_back:
            return self._go_back(step, decisions, seen)
        if all(decision.why == "does not move" for decision in decisions):
            raise RuntimeError(
                f"{self._caller}.step: step {step}: the weights must move, and did not, although the "
                f"learning rate was raised {self.states[0].blind} times a hundredfold; does "
                "loss.backward() reach what the optimizer trains?"
            )
        self.states = [decision.state for decision in decisions]
        for i, state in enumerate(self.states):
            if state.windows > 0:
                self._trail.keep(i)
                self._previous_middle[i] = middle
            else:  # it hardly moved: what it will have moved by is the next window's doing alone
                self._previous_middle[i] = step
        self.begin(step)
        return Verdict(decisions, seen, [])

    def _pooled(self, rows: Sequence[Sequence[float]], scope: int) -> list[list[float]]:
        """Losses at m, p and e over the batches of all replicas."""
        count = len(rows[0]) // (1 + 2 * len(self.states)) if rows else 0
        parts = [(0, 1 + 2 * scope, 2 + 2 * scope)[k] * count for k in range(3)]
        return [[loss for row in rows for loss in row[part : part + count]] for part in parts]

    def _go_back(self, step: int, decisions: list[HorizonDecision], seen: list[Window]) -> Verdict:
        """To the window's start, with smaller factors where the loss rose; the steps taken are spent."""
        before = self.states
        self.states = [d.state if d.action == "back" else s for d, s in zip(decisions, before, strict=True)]
        total, in_a_row = (max(getattr(s, n) for s in self.states) for n in ("total_backs", "backs"))
        worst = next(i for i, decision in enumerate(decisions) if decision.action == "back")
        rose = (
            f"the weights moved by {seen[worst].displacement:.3g} of their norm"
            if before[worst].windows == 0
            else f"the probe's loss rose from {average(seen[worst].previous):.4g} to "
            f"{average(seen[worst].mean):.4g}"
        )
        if self._snapshot is None or total > _MAX_BACKS or in_a_row > _MAX_BACKS_IN_A_ROW:
            tried = (
                "snapshot='off'" if self._snapshot is None else f"{in_a_row - 1} retries, {total - 1} in all"
            )
            raise RuntimeError(
                f"{self._caller}.step: step {step}: {rose} over the window, and going back is no way out "
                f"({tried}). Check the loss for NaN, the data from here on, and that the probe's batches are "
                "of the kind that is trained on"
            )
        self._snapshot.restore()
        shrunk = min(new.value / old.value for new, old in zip(self.states, before, strict=True))
        event = f"{rose}: back to the weights of step {self._began}, learning rate times {shrunk:.2g}"
        # The steps taken are spent, but they lead nowhere: the weights have not travelled in them.
        self._previous_middle = [middle + step - self._began for middle in self._previous_middle]
        self.begin(step)
        return Verdict(decisions, seen, [event])

    def _refuse_useless(self, step: int, seen: Sequence[Window]) -> None:
        """A probe that says nothing must not steer."""
        losses = [loss for window in seen for loss in (*window.previous, *window.mean, *window.end)]
        if not losses:
            return
        lost = not all(math.isfinite(loss) for window in seen for loss in window.previous)
        # One group's p has the other groups at m, which may be what is lost: then there is a way back.
        if lost and (self.scope == "together" or math.isfinite(average(seen[0].mean))):
            raise ValueError(
                f"{self._caller}.step: step {step}: the probe's loss must be finite at weights that training "
                f"has left behind, got {seen[0].previous}; check loss_fn and its batches"
            )
        moved = any(window.displacement > 0 for window in seen)
        alike = moved and all(window.previous == window.mean == window.end for window in seen)
        self._varied = self._varied or not alike
        # A loss that did depend on the weights may end at zero, or at the precision of a float.
        self._constant = 0 if self._varied else self._constant + 1
        if self._constant >= _MAX_CONSTANT:
            raise ValueError(
                f"{self._caller}.step: step {step}: the probe's loss must depend on the weights, and was "
                f"{losses[0]:.6g} at all points of {self._constant} windows; does loss_fn call the model "
                "that the optimizer trains?"
            )

    # ------------------------------------------------------------------ resume

    def state_dict(self) -> dict[str, Any]:
        """Numbers, and the tensors without which a window in progress could not go on bit for bit."""
        return {
            "states": [asdict(state) for state in self.states],
            "began": self._began,
            "window_end": self.window_end,
            "previous_middle": list(self._previous_middle),
            "taken": self._taken,
            "fresh": self._fresh,
            "curve": [self._curve_peak, self._curve_before],
            "constant": [self._constant, self._varied],
            "trail": self._trail.state_dict(),
            "snapshot": None if self._snapshot is None else self._snapshot.state_dict(),
            "probe": self.probe.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off."""
        if len(state["states"]) != len(self.states):
            raise ValueError(
                f"{self._caller}.load_state_dict: scope must be the one it was saved with: the state has "
                f"{len(state['states'])} factors, this run {len(self.states)}"
            )
        self.states = [HorizonState(**saved) for saved in state["states"]]
        self._began, self.window_end = state["began"], state["window_end"]
        self._previous_middle = list(state["previous_middle"])
        self._taken, self._fresh = state["taken"], state["fresh"]
        self._curve_peak, self._curve_before = state["curve"]
        self._constant, self._varied = state["constant"]
        self._trail.load_state_dict(state["trail"])
        if self._snapshot is not None and state["snapshot"] is not None:
            self._snapshot.load_state_dict(state["snapshot"])
        self.probe.load_state_dict(state["probe"])

    def extra_bytes(self) -> int:
        """Memory beyond training itself, the way back included once it has been taken."""
        return self._trail.bytes() + (0 if self._snapshot is None else self._snapshot.bytes())


def average(losses: Sequence[float]) -> float:
    """The mean; NaN where one of them is not finite, or there is none."""
    return math.fsum(losses) / len(losses) if losses and all(map(math.isfinite, losses)) else math.nan
