"""A search: training that finds its learning rate, and perhaps more, while it runs. What its doors share.

A scheduler to whoever asks, an engine with a horizon inside, a shape instead of a size, and an end.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, SupportsFloat

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hdet.autolr.arguments import LEAST_STEPS, check, doubt, shortest_window
from hdet.autolr.drawn import DrawnShape
from hdet.autolr.ends import end_of
from hdet.autolr.keeper import Handed
from hdet.autolr.policy import Horizon
from hdet.autolr.replay import Descent, FoundSchedule
from hdet.autolr.rule import HorizonController
from hdet.autolr.shapes import SHAPES, Shape, WarmStableDecay
from hdet.autolr.verdict import Verdict
from hdet.history import History, SyncRecord
from hdet.hyperparameters import LearningRate
from hdet.loop.announce import Event
from hdet.loop.checks import OneSearch, check_together
from hdet.loop.cycle import Cycle, Door
from hdet.loop.fan_out import Gradients
from hdet.loop.levels import Design
from hdet.loop.optimizers import JointOptimizer, parts_of
from hdet.loop.policy import Policy
from hdet.loop.state import Owner, check_fits
from hdet.loop.windows import Windows
from hdet.probes import Probe
from hdet.removed import refuse_removed
from hdet.replicas import Replicas

__all__ = ["Search"]

logger = logging.getLogger("hdet")


class Search(Door, LRScheduler):
    """Steps, ends, hands over and remembers; :class:`hdet.AutoLR` and :class:`hdet.AutoTune` say what of.

    Args:
        every: the optimizer, or several as one.
        replicas: who trains.
        beside: from the horizon to the policies that move anything else in its windows.
        gradients: who shares them.
        design: how values are dealt; None takes whichever serves best.

    All others are those of :class:`hdet.AutoLR`.
    """

    _handed: Handed | None = None
    #: Frameworks add to it; nobody reads it here.
    _step_count = 1

    def __init__(
        self,
        every: Optimizer,
        replicas: Replicas,
        *,
        probe: Probe,
        total_steps: int | None,
        schedule: Literal["wsd", "cosine", "onecycle"] | LRScheduler,
        rule: HorizonController | None,
        patience: int | None,
        offload: bool,
        history: History | None,
        on_event: Callable[[Event], object] | None,
        gradients: Gradients,
        beside: Callable[[Horizon], Sequence[Policy]] = lambda _: (),
        design: Design | None = None,
        seed: int = 0,
    ) -> None:
        # Not LRScheduler.__init__: it writes into the groups, puts a step of its own over the optimizer's
        # and steps. Everything that a scheduler is asked for is here.
        self._name = type(self).__name__
        self.optimizers = parts_of(every)
        #: The first of them, as a scheduler has one; :attr:`optimizers` has all.
        self.optimizer = self.optimizers[0]
        kind = self._kind = schedule if isinstance(schedule, str) else type(schedule).__name__
        check_together(
            self._name,
            replicas,
            lambda: check(self._name, every, probe, total_steps, schedule, rule, patience, offload),
            {"schedule": repr(kind)},
        )
        self.base_lrs = [float(group["lr"]) for group in every.param_groups]
        sizes = every.sizes if isinstance(every, JointOptimizer) else ()
        self._shape: Shape | None = None
        self._driver: LRScheduler | DrawnShape
        if isinstance(schedule, LRScheduler):
            self._driver = schedule
        else:
            # total_steps=None has been refused for every shape that needs an end.
            self._shape = SHAPES[schedule](total_steps)  # type: ignore[arg-type]
            self._driver = DrawnShape(every, self._shape, sizes)
        last = None if self._shape is None else self._shape.search_until
        self._horizon = Horizon(
            [LearningRate(spread=0.0)],
            probe,
            rule or HorizonController(),
            Windows(first=shortest_window(every, total_steps), last=last),
            offload=offload,
            patience=patience,
            sizes=sizes,
        )
        self._budget, self._optimizer = total_steps, every
        self._cycle = Cycle(
            every,
            [self._horizon, *beside(self._horizon)],
            replicas,
            schedule=self._driver,
            total_steps=total_steps,
            gradients=gradients,
            design=design,
            model=probe.model,
            seed=seed,
            history=history,
            on_event=on_event,
            caller=self._name,
        )
        self._cycle.says_end = False  # the verdict does
        self._begin(probe, doubt(self._name, every, probe) if replicas.world_rank == 0 else [])

    def _begin(self, probe: Probe, doubts: Sequence[str]) -> None:
        groups = self._optimizer.param_groups
        self._groups = len(groups)
        self._found = FoundSchedule(self._groups)
        self._said_late_group = False
        self._plain = not any(isinstance(group["lr"], Tensor) for group in groups)
        kinds = " and ".join(type(part).__name__ for part in self.optimizers)
        self._only = OneSearch(self._name, probe.model, kinds)
        self._verdict = Verdict(self._name)
        for said in doubts:
            logger.warning("%s: %s", self._name, said)

    def step(self, loss: Tensor | SupportsFloat | None = None) -> SyncRecord | None:  # type: ignore[override]
        """Call after ``optimizer.step()``, of several after that of the last; returns the record of a window
        when one has ended.

        The training loss is not needed; given, its mean stands in the record, and that of the first window is
        held against the probe's at the same weights. Between windows nothing waits for the device.
        """
        cycle = self._cycle
        before = cycle.steps
        used = self.get_last_lr() if self._plain else []
        decays = self._decay_from is not None and before >= self._decay_from
        descents = self._descents() if decays else None
        try:
            record = cycle.step(loss)
            if record is not None:
                self._only.window_ended()
                self._verdict.see(record, used)
                if self._horizon.stalled:
                    self._come_down()
            return record
        finally:  # a step counts although the probe that followed it raised
            back = cycle.taken_back
            if cycle.steps + len(back) > before:
                if self._plain:
                    self._found.add(used[: self._groups], descents)
                    if back:
                        self._found.drop(back)
                    if len(used) > self._groups and not self._said_late_group:
                        self._warn_of_late_group(used[self._groups])
                if cycle.steps == cycle.total_steps and self.finished:
                    self._say_verdict()

    def _say_verdict(self) -> None:
        if self._cycle.replicas.world_rank == 0:
            self._verdict.say(logger, self.steps, self._budget, self._horizon.incumbent.keeper)

    def _come_down(self) -> None:
        """Where nothing improves any more, the run comes down, over a tenth of the steps so far. Other
        schedules come down by themselves."""
        left = math.inf if self._budget is None else self._budget - self.steps
        steps = int(min(max(LEAST_STEPS // 4, self.steps // 10), left))
        if steps < 1 or not isinstance(self._shape, WarmStableDecay) or self._shape(self.steps) < 1:
            return
        logger.warning(
            "%s: step %d: the probe's loss has not improved beyond its error for long: training comes down "
            "and ends at step %d",
            self._name,
            self.steps,
            self.steps + steps,
        )
        self.cooldown(steps)

    @property
    def finished(self) -> bool:
        """Whether the run has ended, at ``total_steps``, after a cooldown, or because nothing improved."""
        return self.steps == (self._budget if self._shape is None else self._shape.total_steps)

    @property
    def searching(self) -> bool:
        """Whether the learning rate is still being looked for; else the schedule comes down with it."""
        return self._horizon.learns

    @property
    def best(self) -> Handed | None:
        """The best weights seen so far by the probe; with an honest estimate once they were handed over."""
        return self._handed or self._horizon.incumbent.keeper.best

    def finish_(self) -> Handed | None:
        """Let the model hold the best weights that were seen, and say what they are worth.

        The decayed end, or an earlier window's mean where the probe finds that clearly better. Every rank
        calls it, when training is over. None if nothing was measured: the model stays as it is.
        """
        self._cycle.stop()
        self._say_verdict()
        best = self._horizon.incumbent.keeper.best
        standing = best is not None and best.kind == "end" and best.step == self.steps
        self._handed = self._horizon.incumbent.keeper.hand_over_(standing=standing)
        if self._handed is not None:
            self._cycle.note("handed", weights=asdict(self._handed))
        return self._handed

    def _descents(self) -> list[Descent]:
        """Of which descent the present learning rates are a part; other shapes change by no exact rule."""
        shape, driver = self._shape, self._driver
        assert isinstance(shape, WarmStableDecay)
        assert isinstance(driver, DrawnShape)
        factors = [axis.factor for axis in self._horizon.axes]  # type: ignore[attr-defined]  # learning rates
        return [Descent(f, ratio, shape) for f, ratio in zip(factors, driver.ratios, strict=True)]

    @property
    def _decay_from(self) -> int | None:
        """The step at which a ``"wsd"`` comes down."""
        return self._shape.decay_from if isinstance(self._shape, WarmStableDecay) else None

    def _warn_of_late_group(self, lr: float) -> None:
        self._said_late_group = True
        logger.warning(
            "%s: a parameter group was added after it was made: it keeps its own lr, %g, which nobody moves; "
            "add groups first",
            self._name,
            lr,
        )

    def get_last_lr(self) -> list[float]:  # type: ignore[override]
        """The learning rate of each group's next step, the groups of all optimizers in order."""
        return [float(group["lr"]) for group in self._optimizer.param_groups]

    get_lr = get_last_lr  # type: ignore[assignment]

    @property
    def _last_lr(self) -> list[float]:  # type: ignore[override]
        return self.get_last_lr()

    @property
    def total_steps(self) -> int | None:
        """S, or None while nobody knows; a run that comes down early ends there."""
        return self._cycle.total_steps

    @property
    def last_epoch(self) -> int:
        """As :attr:`steps`, under the name that torch's schedulers have for it."""
        return self.steps

    @last_epoch.setter
    def last_epoch(self, value: int) -> None:
        raise AttributeError(
            f"{self._name}.last_epoch: steps are counted as the optimizer takes them, and cannot be set to "
            f"{value}; use load_state_dict, and no scheduler of schedulers (SequentialLR, ChainedScheduler)"
        )

    def cooldown(self, steps: int) -> None:
        """Come down to zero, linearly, over the next ``steps`` steps; the search for a size ends here.

        Every rank must call it at the same step.
        """
        if not isinstance(self._shape, WarmStableDecay):
            raise ValueError(f"{self._name}.cooldown: schedule must be 'wsd'; any other comes down by itself")
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(f"{self._name}.cooldown: steps must be an integer of at least 1, got {steps!r}")
        if not self._cycle.rounds:
            raise RuntimeError(
                f"{self._name}.cooldown: a window must have ended before, which the first does after ten "
                f"steps, and this is step {self.steps}: there is no learning rate yet to come down from"
            )
        # Where it is coming down already, it comes down from there.
        self._cool(self.steps, self.steps + steps, self._shape(self.steps))
        self._cycle.end_search()

    def _cool(self, start: int, end: int, height: float) -> None:
        assert isinstance(self._driver, DrawnShape)
        self._shape = self._driver.shape = WarmStableDecay(end, start, height)
        self._cycle.end_at(end)

    def export(self, path: str | PathLike[str]) -> None:
        """Write the learning rate of every step so far as JSON, for :func:`hdet.replay`."""
        Path(path).write_text(self.found() + "\n", encoding="utf-8")

    def found(self) -> str:
        """What :meth:`export` writes."""
        if not self._plain:
            raise ValueError(
                f"{self._name}.export: learning rates that are tensors are not read between windows, so they "
                "are not known; use floats"
            )
        return self._found.to_json()

    @refuse_removed
    def state_dict(self) -> dict[str, Any]:
        """Save it beside model and optimizer. Holds tensors: the window in progress, the weights to go back
        to, and the best ones.

        As torch's own states, it refers to what training goes on to change: to keep it in memory, copy it.
        """
        return self._owner.pack({**self._own_state(), "engine": self._cycle.saved()})

    def _own_state(self) -> dict[str, Any]:
        shape = self._shape
        return {
            "found": self._found.to_json(),
            "cooldown": [shape.decay_from, shape.total_steps, shape.height]
            if isinstance(shape, WarmStableDecay)
            else None,
            "schedule": [self._driver.state_dict()],
            "lr": self.get_last_lr()[: self._groups],
            "verdict": self._verdict.state_dict(),
        }

    @property
    def _owner(self) -> Owner:
        owner = self._cycle.owner
        own = {"total_steps": self._budget, "schedule": self._kind}
        return replace(owner, configuration={**owner.configuration, **own})

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off, after model and optimizers have been loaded. Another
        ``total_steps`` than before counts from here on, where the schedule is ``"wsd"``. Raises for what
        cannot be loaded, and then changes nothing."""
        comes_down = isinstance(self._shape, WarmStableDecay)
        state, before = self._owner.unpack(state_dict, free={"total_steps"} if comes_down else ())
        check_fits(self._name, {**self._own_state(), "engine": {}}, state)
        self._cycle.check_state(state["engine"])
        found, end = FoundSchedule.from_json(state["found"], f"{self._name}.load_state_dict"), None
        if comes_down:
            decay_from, last, height = state["cooldown"]
            saved, steps = WarmStableDecay(last, decay_from, height), state["engine"]["steps"]
            end = end_of(self._name, saved, before["total_steps"], self._budget, steps)
        self._driver.load_state_dict(state["schedule"][0])
        self._cycle.take_state(state["engine"])
        # The optimizer may have been loaded before this object was made, which then wrote its own.
        for group, lr in zip(self._optimizer.param_groups, state["lr"], strict=False):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        if end is not None and end.shape.decay_from is not None and end.shape.total_steps is not None:
            self._cool(end.shape.decay_from, end.shape.total_steps, end.shape.height)
            if end.over:
                self._cycle.end_search(meet=False)
            if end.new:
                self._horizon.recounted(self.steps)
        self._found = found
        self._verdict.load_state_dict(state["verdict"])

    def extra_bytes(self) -> int:
        """Memory taken beyond training itself."""
        return self._horizon.extra_bytes()
