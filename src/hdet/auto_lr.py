"""AutoLR: training without a learning rate. A door to the engine, with a shape instead of a size.

The optimizer's ``lr`` is not read, but for the ratios between groups. The first steps are taken at next to
no learning rate, then the horizon controller brings the weights to speed and climbs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal, SupportsFloat

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hdet.best import Handed
from hdet.controllers import HorizonController
from hdet.engine.agreement import check_optimizer, check_sync_every, check_together
from hdet.engine.cycle import Cycle
from hdet.history import SyncRecord
from hdet.hyperparameters import LearningRate
from hdet.policies import Horizon
from hdet.probes import Probe
from hdet.replicas import ProcessGroup, replicas_of
from hdet.schedules import SHAPES, DrawnShape, FoundSchedule, Shape, WarmStableDecay, Windows
from hdet.weights.room import Where

__all__ = ["AutoLR"]

logger = logging.getLogger("hdet")

#: Fewer steps than this hold too few windows for any decision.
_LEAST_STEPS = 40


class AutoLR:
    """Finds the learning rate while it trains; call :meth:`step` once after every ``optimizer.step()``.

    Memory, beyond training: four copies of the trained weights (the window's mean, the one before, the
    iterate to return to from probing, the best so far) and, with a snapshot, one more of weights, optimizer
    state and buffers. Time: next to nothing between windows; at the end of each, a forward pass at the mean
    for every probe batch, and one at the last iterate for some.

    The learning rate is moved until the schedule comes down (for ``"wsd"`` the last quarter of the run, for
    any other as soon as it is below 70 % of its peak). Windows are measured, and lead back from an explosion,
    to the last step. :meth:`finish_` hands over the best weights that were seen.

    Args:
        optimizer: any torch optimizer. Of its learning rates only the ratios between groups count.
        probe: measures the loss on batches that are not trained on.
        total_steps: S. None trains open-ended until :meth:`cooldown` is called.
        schedule: ``"wsd"`` (constant, then linearly to zero in the last quarter), ``"cosine"``,
            ``"onecycle"``, or a torch scheduler on this optimizer, of which the curve is kept.
        controller: the rule; its defaults are meant for everything.
        sync_every: windows of this length, instead of ones that grow with the run.
        scope: ``"together"`` moves all parameter groups by one factor, ``"each"`` every one by its own.
        spread: above 0, replicas diverge by this much and each is probed at its own points (a real fan-out).
        snapshot: where the way back from a relapse is kept: ``"device"``, ``"host"`` (pinned) or ``"off"``.
        keep: where the best weights seen are kept, for :meth:`finish_`: likewise.
        patience: so often it goes back to the best weights, at a third of the rate, without a better one
            coming of it; then it comes down and ends, whatever is left of ``total_steps``. None never goes
            back; nor does it with ``scope="each"``, a spread, or ``keep="off"``.
        process_group: the replicas; the default group if None, and this process alone without one.
        seed: of the reassignments under a spread.
        history: a JSONL file to which rank 0 appends every :class:`SyncRecord`.

    >>> import torch
    >>> weight = torch.nn.Linear(8, 1)
    >>> data = torch.randn(200, 32, 8)
    >>> loss_of = lambda x: (weight(x) - x.sum(1, keepdim=True)).square().mean()
    >>> optimizer = torch.optim.SGD(weight.parameters(), lr=1e-8)  # not used
    >>> auto = AutoLR(optimizer, total_steps=160, probe=Probe(loss_of, data[160:], model=weight))
    >>> for x in data[:160]:
    ...     loss = loss_of(x)
    ...     loss.backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    ...     record = auto.step()
    >>> auto.finished, auto.get_last_lr(), auto.finish_().kind
    (True, [0.0], 'end')
    """

    _handed: Handed | None = None

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        probe: Probe,
        total_steps: int | None = None,
        schedule: Literal["wsd", "cosine", "onecycle"] | LRScheduler = "wsd",
        controller: HorizonController | None = None,
        sync_every: int | None = None,
        scope: Literal["together", "each"] = "together",
        spread: float = 0.0,
        snapshot: Where = "host",
        keep: Where = "host",
        patience: int | None = 3,
        process_group: ProcessGroup | None = None,
        seed: int = 0,
        history: str | PathLike[str] | None = None,
    ) -> None:
        check_optimizer("AutoLR", optimizer)
        replicas = replicas_of(
            "AutoLR", optimizer, model=getattr(probe, "model", None), process_group=process_group
        )
        kind = schedule if isinstance(schedule, str) else type(schedule).__name__
        ways = (scope, spread, snapshot, keep, patience)
        check_together(
            "AutoLR",
            replicas,
            lambda: _check(optimizer, probe, total_steps, schedule, controller, sync_every, *ways),
            {"schedule": repr(kind)},
        )
        self._shape: Shape | None = None
        self._driver: LRScheduler | DrawnShape
        if isinstance(schedule, LRScheduler):
            self._driver = schedule
        else:
            # total_steps=None has been refused for every shape that needs an end.
            self._shape = SHAPES[schedule](total_steps)  # type: ignore[arg-type]
            self._driver = DrawnShape(optimizer, self._shape)
        last = None if self._shape is None else self._shape.search_until
        self._horizon = Horizon(
            [LearningRate(spread=spread)],
            probe,
            controller or HorizonController(),
            Windows(last=last) if sync_every is None else Windows(first=sync_every, share=0.0, last=last),
            scope=scope,
            snapshot=snapshot,
            keep=keep,
            patience=patience,
        )
        self._budget = total_steps
        self._optimizer = optimizer
        self._cycle = Cycle(
            optimizer,
            [self._horizon],
            replicas,
            schedule=self._driver,
            total_steps=total_steps,
            model=probe.model,
            seed=seed,
            history=history,
            caller="AutoLR",
        )
        self._groups = len(optimizer.param_groups)
        self._found = FoundSchedule(self._groups)
        self._said_late_group = self._said_finished = False
        self._plain = not any(isinstance(group["lr"], Tensor) for group in optimizer.param_groups)

    def step(self, loss: Tensor | SupportsFloat | None = None) -> SyncRecord | None:
        """Call after ``optimizer.step()``; returns the record of a window when one has ended.

        The training loss is not needed; given, its mean stands in the record. Between windows nothing waits
        for the device.
        """
        before = self._cycle.steps
        used = self.get_last_lr() if self._plain else []
        if self.finished and self.steps != self._budget:
            self._say_finished()
            return None
        try:
            record = self._cycle.step(loss)
            if record is not None and self._horizon.stalled:
                self._come_down()
            return record
        finally:  # a step counts although the probe that followed it raised
            if self._plain and self._cycle.steps > before:
                self._note(used)

    def _come_down(self) -> None:
        """Where nothing improves any more, the run comes down, over a tenth of the steps so far. Other
        schedules come down by themselves."""
        left = math.inf if self._budget is None else self._budget - self.steps
        steps = int(min(max(_LEAST_STEPS // 4, self.steps // 10), left))
        if steps < 1 or not isinstance(self._shape, WarmStableDecay) or self._shape(self.steps) < 1:
            return
        logger.warning(
            "AutoLR: step %d: the probe's loss has not improved beyond its error for long: training comes "
            "down and ends at step %d",
            self.steps,
            self.steps + steps,
        )
        self.cooldown(steps)

    def _say_finished(self) -> None:
        if not self._said_finished:
            self._said_finished = True
            logger.warning(
                "AutoLR.step: training has ended at step %d: the learning rate is zero, and further steps "
                "change nothing; stop where auto.finished, then call auto.finish_()",
                self.steps,
            )

    @property
    def finished(self) -> bool:
        """Whether the run has ended: at ``total_steps``, after a cooldown, or because nothing improved."""
        return self.steps == (self._budget if self._shape is None else self._shape.total_steps)

    @property
    def best(self) -> Handed | None:
        """The best weights seen so far by the probe; with an honest estimate once they were handed over."""
        return self._handed or self._horizon.incumbent.keeper.best

    def finish_(self) -> Handed | None:
        """Let the model hold the best weights that were seen, and say what they are worth.

        The decayed end, or an earlier window's mean where the probe finds that clearly better. Every rank
        calls it, when training is over. None if nothing was measured: the model stays as it is.
        """
        if not self._horizon.incumbent.keeper.keeps:
            raise ValueError("AutoLR.finish_: keep must be 'device' or 'host', got 'off': nothing was kept")
        best = self._horizon.incumbent.keeper.best
        standing = best is not None and best.kind == "end" and best.step == self.steps
        self._handed = self._horizon.incumbent.keeper.hand_over_(standing=standing)
        return self._handed

    def _note(self, used: list[float]) -> None:
        self._found.add(used[: self._groups])
        if len(used) > self._groups and not self._said_late_group:
            self._said_late_group = True
            logger.warning(
                "AutoLR: a parameter group was added after it was made: it keeps its own lr, %g, which "
                "nobody moves; add groups first",
                used[self._groups],
            )

    def get_last_lr(self) -> list[float]:
        """The learning rate of each group's next step."""
        return [float(group["lr"]) for group in self._optimizer.param_groups]

    @property
    def steps(self) -> int:
        """Optimizer steps counted so far."""
        return self._cycle.steps

    def cooldown(self, steps: int) -> None:
        """Come down to zero, linearly, over the next ``steps`` steps; the search for a size ends here.

        Every rank must call it at the same step.
        """
        if not isinstance(self._shape, WarmStableDecay):
            raise ValueError("AutoLR.cooldown: schedule must be 'wsd'; any other comes down by itself")
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(f"AutoLR.cooldown: steps must be an integer of at least 1, got {steps!r}")
        # Where it is coming down already, it comes down from there.
        self._cool(self.steps, self.steps + steps, self._shape(self.steps))
        self._cycle.end_search()

    def _cool(self, start: int, end: int, height: float) -> None:
        assert isinstance(self._driver, DrawnShape)
        self._shape = self._driver.shape = WarmStableDecay(end, start, height)
        self._cycle.end_at(end)

    def converge(self) -> None:
        """Average replicas that diverge (``spread`` above 0) now, without ending the window."""
        self._cycle.converge()

    def export(self, path: str | PathLike[str]) -> None:
        """Write the learning rate of every step so far as JSON, for :func:`hdet.replay`."""
        if not self._plain:
            raise ValueError(
                "AutoLR.export: learning rates that are tensors are not read between windows, so they are "
                "not known; use floats"
            )
        Path(path).write_text(self._found.to_json() + "\n", encoding="utf-8")

    def state_dict(self) -> dict[str, Any]:
        """Save it beside model and optimizer. Holds tensors: the window in progress and the way back."""
        shape = self._shape
        return {
            "engine": self._cycle.state_dict(),
            "found": self._found.to_json(),
            "cooldown": [shape.decay_from, shape.total_steps, shape.height]
            if isinstance(shape, WarmStableDecay)
            else None,
            "schedule": self._driver.state_dict(),
            "lr": self.get_last_lr()[: self._groups],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off, after model and optimizer have been loaded."""
        drawn = "ratios" in state["schedule"]
        if drawn != isinstance(self._driver, DrawnShape):
            raise ValueError(
                "AutoLR.load_state_dict: schedule must be of the kind it was saved with, a "
                f"{'name' if drawn else 'torch scheduler'}, got a {'torch scheduler' if drawn else 'name'}"
            )
        self._driver.load_state_dict(state["schedule"])
        self._cycle.load_state_dict(state["engine"])
        # The optimizer may have been loaded before this object was made, which then wrote its own.
        for group, lr in zip(self._optimizer.param_groups, state["lr"], strict=False):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        if state["cooldown"] is not None and None not in state["cooldown"]:
            self._cool(*state["cooldown"])
        self._found = FoundSchedule.from_json(state["found"])

    def extra_bytes(self) -> int:
        """Memory taken beyond training itself."""
        return self._horizon.extra_bytes()


def _check(
    optimizer: Optimizer,
    probe: object,
    total_steps: object,
    schedule: object,
    controller: object,
    sync_every: int | None,
    scope: object,
    spread: float,
    snapshot: object,
    keep: object,
    patience: object,
) -> None:
    if not isinstance(probe, Probe):
        raise TypeError(
            f"AutoLR: probe must be a hdet.Probe, got {type(probe).__name__}; hdet.Probe(loss_fn, batches, "
            "model=model) makes one"
        )
    lrs = [float(group["lr"]) for group in optimizer.param_groups]
    for i, lr in enumerate(lrs):
        if not (math.isfinite(lr) and lr > 0):
            raise ValueError(
                f"AutoLR: the groups' lr must be finite and > 0, for their ratios are kept, got {lr} in "
                f"group {i}; give another (a schedule may not begin at zero), or freeze it"
            )
    if total_steps is not None and (not isinstance(total_steps, int) or total_steps < _LEAST_STEPS):
        raise ValueError(
            f"AutoLR: total_steps must be an integer of at least {_LEAST_STEPS}, or None to run open-ended, "
            f"got {total_steps!r}"
        )
    if isinstance(schedule, ReduceLROnPlateau):
        raise TypeError("AutoLR: schedule must step without a metric, got ReduceLROnPlateau; use 'wsd'")
    if not isinstance(schedule, LRScheduler):
        if not isinstance(schedule, str) or schedule not in SHAPES:
            raise ValueError(
                f"AutoLR: schedule must be one of {', '.join(map(repr, SHAPES))} or a torch LRScheduler, "
                f"got {schedule!r}"
            )
        if total_steps is None and schedule != "wsd":
            raise ValueError(f"AutoLR: schedule={schedule!r} needs total_steps; only 'wsd' runs open-ended")
    elif schedule.optimizer is not optimizer:
        raise ValueError("AutoLR: schedule must be a scheduler of this optimizer, got one of another")
    if controller is not None and not isinstance(controller, HorizonController):
        raise TypeError(
            f"AutoLR: controller must be a hdet.HorizonController, got {type(controller).__name__}"
        )
    if sync_every is not None:
        check_sync_every("AutoLR", sync_every)
    if scope not in ("together", "each"):
        raise ValueError(f"AutoLR: scope must be 'together' or 'each', got {scope!r}")
    for name, where in (("snapshot", snapshot), ("keep", keep)):
        if where not in ("device", "host", "off"):
            raise ValueError(f"AutoLR: {name} must be 'device', 'host' or 'off', got {where!r}")
    if patience is not None and (not isinstance(patience, int) or patience < 1):
        raise ValueError(f"AutoLR: patience must be an integer of at least 1, or None, got {patience!r}")
    LearningRate(spread=spread)
