"""A search: training that finds its learning rate, and perhaps more, while it runs. AutoLR and AutoTune share
it.

To frameworks it is a scheduler; inside, a cycle with AutoLR's policy. It checks the arguments, steps, ends
early where nothing improves, loads the best weights, exports the schedule and saves its state."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, SupportsFloat

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hdet.autolr.best import Best
from hdet.autolr.policy import Horizon
from hdet.autolr.prior import likely_rates
from hdet.autolr.rule import HorizonController
from hdet.autolr.schedule import (
    SHAPES,
    Decay,
    DrawnShape,
    FoundSchedule,
    Shape,
    WarmStableDecay,
    end_of,
    set_lr,
)
from hdet.history import History, SyncRecord
from hdet.hyperparameters import LearningRate
from hdet.loop.announce import Event
from hdet.loop.checks import OneSearch, check_together
from hdet.loop.cycle import Cycle, Door
from hdet.loop.fan_out import Gradients
from hdet.loop.levels import Design
from hdet.loop.optimizers import JointOptimizer, parts_of, unwrapped
from hdet.loop.policy import Policy
from hdet.loop.state import Owner, check_fits
from hdet.loop.windows import Windows
from hdet.probes import Probe
from hdet.removed import explains_calls
from hdet.replicas import Replicas
from hdet.replicas.stacked.optimizer import StackedOptimizer

__all__ = [
    "Search",
    "advice",
    "check_model",
    "check_offload",
    "check_probe",
    "shortest_window",
    "take_optimizers",
]

logger = logging.getLogger("hdet")

#: The shortest window; momentum that remembers more steps than twice as many makes it longer, and a run that
#: has not so many as for eight of them shorter.
_FIRST = 10
#: Where the best weights come before this share of the run, training overfits.
_EARLY = 0.9
#: After so many windows it is known how long a step takes; below this many seconds calls are a share of it.
_TIMED_WINDOWS, _SHORT_STEP = 8, 1e-3
#: Fewer steps than this are not one to find how far a rate carries, one at it, and one to decay.
_LEAST_STEPS = 4


class Search(Door, LRScheduler):
    """What :class:`hdet.AutoLR` and :class:`hdet.AutoTune` have in common.

    Args:
        every: the optimizer, or several as one.
        replicas: who trains.
        beside: from the horizon to the policies that move anything else in its windows.
        gradients: who shares them.
        design: how values are dealt; None takes whichever serves best.

    All others are those of :class:`hdet.AutoLR`.
    """

    _finished: Best | None = None
    #: Whether the model was given other weights after :meth:`finish_`.
    _replaced = False
    #: Frameworks add to it; hdet does not read it.
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
        offload: bool | None,
        history: History | None,
        on_event: Callable[[Event], object] | None,
        gradients: Gradients,
        beside: Callable[[Horizon], Sequence[Policy]] | None = None,
        design: Design | None = None,
        seed: int = 0,
    ) -> None:
        # Not LRScheduler.__init__: it writes into the groups, puts a step of its own over the optimizer's
        # and steps. Everything that a scheduler is asked for is defined below.
        self._name = type(self).__name__
        self.optimizers = parts_of(every)
        #: The first of them, as a scheduler has one; :attr:`optimizers` has all.
        self.optimizer = self.optimizers[0]
        kind = self._kind = schedule if isinstance(schedule, str) else type(schedule).__name__
        check_together(
            self._name,
            replicas,
            lambda: _check(self._name, every, probe, total_steps, schedule, rule, patience, offload),
            {"schedule": repr(kind)},
        )
        self.base_lrs = [float(group["lr"]) for group in every.param_groups]
        sizes = every.sizes if isinstance(every, JointOptimizer) else ()
        self._shape: Shape | None = None
        self._driver: LRScheduler | DrawnShape
        if isinstance(schedule, LRScheduler):
            self._driver = schedule
        else:
            # _check has raised for total_steps=None with every shape that needs an end.
            self._shape = SHAPES[schedule](total_steps)  # type: ignore[arg-type]
            self._driver = DrawnShape(every, self._shape, sizes)
        last = self._shape.decay_from if isinstance(self._shape, WarmStableDecay) else None
        first = shortest_window(every, total_steps)
        self._horizon = Horizon(
            [LearningRate(spread=0.0)],
            probe,
            rule or HorizonController(),
            Windows(first=first, last=last),
            offload=offload,
            patience=patience,
            sizes=sizes,
            # What others compare is less than what is gained: they need all batches.
            spares=beside is None,
        )
        self._budget, self._optimizer = total_steps, every
        self._cycle = Cycle(
            every,
            [self._horizon, *(() if beside is None else beside(self._horizon))],
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
            # Next to no rate for ten steps looks like a broken run.
            opening=f"finds the learning rate; the probe looks at {probe.describe()}; the first {first} "
            "steps have next to no rate on purpose, to measure how far one carries",
        )
        self._cycle.says_end = False  # the summary says it
        self._groups = len(every.param_groups)
        self._found = FoundSchedule(self._groups)
        self._said_late_group = self._said_summary = False
        self._plain = not any(isinstance(group["lr"], Tensor) for group in every.param_groups)
        self._only = OneSearch(
            self._name, probe.model, " and ".join(type(p).__name__ for p in self.optimizers)
        )
        #: For the summary: windows, rollbacks, the probe's first and last loss.
        self._windows = self._rollbacks = 0
        #: When the first step of this process was counted, how many were before it, and the seconds that
        #: windows' ends have taken since.
        self._began: tuple[float, int] | None = None
        self._spent = 0.0
        self._first_loss = self._last_loss = math.nan
        if replicas.world_rank == 0:
            for doubt in _doubts(self._name, every, probe):
                logger.warning("%s: %s", self._name, doubt)

    def step(self, loss: Tensor | SupportsFloat | None = None) -> SyncRecord | None:  # type: ignore[override]
        """Call after ``optimizer.step()``, of several after that of the last; returns the record of a window
        when one has ended.

        The training loss is not needed; given, its mean is in the record, and that of the first window is
        compared with the probe's at the same weights. Between windows nothing waits for the device.
        """
        cycle = self._cycle
        before = cycle.steps
        if self._began is None:
            self._began = time.perf_counter(), before
        used = self.get_last_lr() if self._plain else []
        shape, decays = self._shape, None
        if isinstance(shape, WarmStableDecay) and shape.decay_from is not None and before >= shape.decay_from:
            decays = self._decays(shape)
        try:
            record = cycle.step(loss)
            if record is not None:
                self._only.window_ended()
                self._count(record)
                if self._horizon.stalled:
                    self.end_early("the probe's loss has not improved beyond its error for long")
            return record
        finally:  # a step counts although the probe that followed it raised
            back = cycle.taken_back
            if cycle.steps + len(back) > before:
                if self._plain:
                    self._found.add(used[: self._groups], decays)
                    if back:
                        self._found.drop(back)
                    if len(used) > self._groups and not self._said_late_group:
                        self._warn_of_late_group(used[self._groups])
                if cycle.steps == cycle.total_steps and self.finished:
                    self._log_summary()

    def _decays(self, shape: WarmStableDecay) -> list[Decay]:
        """The decay that each group's learning rate follows now; other shapes change by no exact rule."""
        assert isinstance(self._driver, DrawnShape)
        factors = [axis.factor for axis in self._horizon.axes]  # type: ignore[attr-defined]  # learning rates
        return [Decay(f, ratio, shape) for f, ratio in zip(factors, self._driver.ratios, strict=True)]

    def end_early(self, why: str) -> bool:
        """Decay over a tenth of the steps so far, within the budget, and end; ``why`` is logged.

        Returns whether training goes on to decay. It does not where it cannot: with another schedule than
        ``"wsd"``, which decays by itself, and before the first window has ended. Every rank calls it at the
        same step.
        """
        left = math.inf if self._budget is None else self._budget - self.steps
        steps = int(min(max(_FIRST, self.steps // 10), left))
        if steps < 1 or not isinstance(self._shape, WarmStableDecay) or not self._cycle.rounds:
            return False
        if self._shape(self.steps) < 1:
            return not self.finished  # it decays already
        self.cooldown(steps)
        if self._cycle.replicas.world_rank == 0:
            logger.warning(
                "%s: step %d: %s: the learning rate decays and training ends at step %d",
                self._name,
                self.steps,
                why,
                self.total_steps,
            )
        return True

    def _count(self, record: SyncRecord) -> None:
        """Remember a window for the summary."""
        self._windows += 1
        self._spent += record.milliseconds / 1e3
        if self._windows == _TIMED_WINDOWS:
            self._tell_cost()
        self._rollbacks += any(": back to " in event for event in record.events)
        seen = record.horizon[0]
        if math.isnan(self._first_loss):
            self._first_loss = seen.loss_previous
        # The end of the run is measured on all batches; within a run the mean stands for it.
        for loss in (seen.loss_mean, seen.loss_end):
            self._last_loss = loss if math.isfinite(loss) else self._last_loss

    def _tell_cost(self) -> None:
        """Where a step is so short that calls and probing are much of it, and how to spend less."""
        assert self._began is not None
        began, before = self._began
        whole, steps = time.perf_counter() - began, self.steps - before
        if self._cycle.replicas.world_rank or not 0 < whole - self._spent < _SHORT_STEP * steps:
            return
        logger.info(
            "%s: a step takes %.2g ms, of which hdet's hooks and calls are some 0.03 to 0.1; windows' ends "
            "have taken %.0f %% of the time so far, and a smaller share as windows grow. Larger batches, or "
            "Probe(..., per_sync=2), cost less",
            self._name,
            1e3 * (whole - self._spent) / steps,
            100 * self._spent / whole,
        )

    def _log_summary(self) -> None:
        """One line, once, if anything was measured: what the run found, or that it did not improve."""
        first, last = self._first_loss, self._last_loss
        if self._cycle.replicas.world_rank or self._said_summary or math.isnan(first):
            return
        self._said_summary = True
        weights = self._horizon.incumbent.weights
        best, improved = weights.best, weights.choice.improved
        loads = "nothing was kept for finish_()"
        if best is not None:
            by = "" if best.metric is None else f"a metric of {best.metric:.4g} and a loss of "
            loads = f"finish_() loads the {best.kind} of step {best.step}, at {by}{best.loss:.4g}"
        steps = f"{self.steps} steps" if self._budget is None else f"{self.steps} of {self._budget} steps"
        rollbacks = f"{self._rollbacks} rollback{'' if self._rollbacks == 1 else 's'}"
        counted = f"{self._windows} windows, {rollbacks}"
        lowest = last if best is None else min(best.loss, last)
        # Where the start was measured like the rest, nothing since was better than it by more than the error.
        if (improved is not None and improved.kind == "start") or not lowest < first:
            logger.warning(
                "%s: %s: the run did not improve: the probe's loss was %.4g at the start and is %.4g (%s); "
                "%s. Is the probe's data of the kind that is trained on, and does the training loss fall?",
                *(self._name, steps, first, last, counted, loads),
            )
        elif not last < first:
            logger.warning(
                "%s: %s: the run ended above its start: the probe's loss was %.4g at the start and is %.4g "
                "(%s); %s",
                *(self._name, steps, first, last, counted, loads),
            )
        else:
            rate = math.nan if best is None else self._rate_of(best)
            low, high = likely_rates(rate)
            self._cycle.say(
                f"{steps}: the learning rate found is {rate:.2g}, the best probably between {low:.1g} "
                f"and {high:.1g}{self._other_values()}; the probe's loss went from {first:.4g} to {last:.4g} "
                f"({counted}); {loads}{self._cost()}"
            )
            size, alone = self._cycle.replicas.size, self._cycle.trains_alone
            said = "" if best is None or self.switches else advice(best.step, self.steps, size, alone=alone)
            if said:
                logger.info("%s: %s", self._name, said)

    def _other_values(self) -> str:
        rates = {axis.name for axis in self._horizon.axes}
        found = [f"{name} {value:.2g}" for name, value in self.values.items() if name not in rates]
        return "".join(f", {one}" for one in found)

    def _cost(self) -> str:
        """Of this process: what a resumed run cost before is not known."""
        if self._began is None:
            return ""
        own = self._horizon.incumbent.weights.probe.deciding
        each = " of each rank" if self._cycle.replicas.world_size > 1 else ""
        samples = "" if own is None else f" {own:,} samples{each}"
        share = 100 * self._spent / (time.perf_counter() - self._began[0])
        return f"; probing{samples} took {share:.1f} % of the time"

    @property
    def finished(self) -> bool:
        """Whether the run has ended, at ``total_steps``, after a cooldown, or because nothing improved."""
        return self.steps == (self._budget if self._shape is None else self._shape.total_steps)

    @property
    def searching(self) -> bool:
        """Whether the learning rate is still searched for; else the schedule decays."""
        return self._horizon.learns

    @property
    def best(self) -> Best | None:
        """The best weights seen so far by the probe, and how sure their learning rate is; with an honest
        estimate after :meth:`finish_`. None where a framework has loaded other weights since then."""
        if self._replaced:
            return None
        return self._finished or self._with_rate(self._horizon.incumbent.weights.best)

    def weights_replaced(self) -> None:
        """The model was given other weights than those that :meth:`finish_` loaded; calling that again loads
        them again."""
        self._replaced = True

    def _with_rate(self, best: Best | None) -> Best | None:
        return best and replace(best, rate=self._rate_of(best))

    def _rate_of(self, best: Best) -> float:
        """The learning rate of the window that these weights are of: at its last step, or before the decay.
        Of a shape that falls throughout, its height there; of several groups, the highest."""
        shape = self._shape
        last = min(best.step, getattr(shape, "decay_from", None) or best.step) - 1
        if last < 0 or not self._plain or last >= self._found.steps:
            return math.nan
        height = 1.0 if shape is None or isinstance(shape, WarmStableDecay) else shape(last)
        return max(rate(last) for rate in self._found.lambdas()) / height

    def finish_(self) -> Best | None:
        """Load the best weights seen into the model and estimate their loss.

        The decayed end, or an earlier window's mean where the probe finds that better. Every rank
        calls it, when training is over. None if nothing was measured: the model stays as it is.
        """
        self._cycle.stop()
        self._log_summary()
        self._finished = self._with_rate(self._horizon.finish_())
        self._replaced = False
        if self._finished is not None:
            self._cycle.note("handed", weights={**asdict(self._finished), "rates": self._finished.rates})
        return self._finished

    def _warn_of_late_group(self, lr: float) -> None:
        self._said_late_group = True
        logger.warning(
            "%s: a parameter group was added after it was made: it keeps its own lr, %g, which hdet does not "
            "move; add groups first",
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
        """S, or None while it is not known; a run that ends early ends there."""
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
        """Decay to zero, linearly, over the next ``steps`` steps; the search ends now.

        Every rank must call it at the same step.
        """
        if not isinstance(self._shape, WarmStableDecay):
            raise ValueError(f"{self._name}.cooldown: schedule must be 'wsd'; any other decays by itself")
        if not isinstance(steps, int) or steps < 1:
            raise ValueError(f"{self._name}.cooldown: steps must be an integer of at least 1, got {steps!r}")
        if not self._cycle.rounds:
            raise RuntimeError(
                f"{self._name}.cooldown: a window must have ended before, and none has at step "
                f"{self.steps}: there is no learning rate yet to decay from"
            )
        # Where it decays already, it decays from its present height.
        self._change_shape(WarmStableDecay(self.steps + steps, self.steps, self._shape(self.steps)))
        self._cycle.end_search()

    def _change_shape(self, shape: WarmStableDecay) -> None:
        assert isinstance(self._driver, DrawnShape)
        assert shape.total_steps is not None
        self._shape = self._driver.shape = shape
        self._cycle.end_at(shape.total_steps)

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

    @explains_calls
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
            "verdict": {
                "counts": [self._windows, self._rollbacks],
                "losses": [self._first_loss, self._last_loss],
                "said": self._said_summary,
            },
        }

    @property
    def _owner(self) -> Owner:
        owner = self._cycle.owner
        own = {"total_steps": self._budget, "schedule": self._kind}
        return replace(owner, configuration={**owner.configuration, **own})

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`, after model and optimizers have been loaded. Another
        ``total_steps`` than before counts from now on, where the schedule is ``"wsd"``. Raises for what
        cannot be loaded, and then changes nothing."""
        decays = isinstance(self._shape, WarmStableDecay)
        state, before = self._owner.unpack(state_dict, free={"total_steps"} if decays else ())
        check_fits(self._name, {**self._own_state(), "engine": {}}, state)
        self._cycle.check_state(state["engine"])
        found, end = FoundSchedule.from_json(state["found"], f"{self._name}.load_state_dict"), None
        if decays:
            decay_from, last, height = state["cooldown"]
            saved, steps = WarmStableDecay(last, decay_from, height), state["engine"]["steps"]
            end = end_of(self._name, saved, before["total_steps"], self._budget, steps)
        self._driver.load_state_dict(state["schedule"][0])
        self._cycle.take_state(state["engine"])
        # The optimizer may have been loaded before this object was made, which then wrote its own.
        for group, lr in zip(self._optimizer.param_groups, state["lr"], strict=False):
            set_lr(group, lr)
        if end is not None and end.shape.total_steps is not None:
            self._change_shape(end.shape)
            if end.over:
                self._cycle.end_search(meet=False)
            if end.new:
                self._horizon.recounted(self.steps)
        self._found, self._finished, self._replaced = found, None, False
        summary = state["verdict"]
        self._windows, self._rollbacks = summary["counts"]
        self._first_loss, self._last_loss = summary["losses"]
        self._said_summary = summary["said"]

    def extra_bytes(self) -> int:
        """Memory taken beyond training itself."""
        return self._horizon.extra_bytes()


def advice(best: int, steps: int, replicas: int, *, alone: bool) -> str:
    """What the next run may gain by, with several replicas (docs/replicas.md, when replicas pay), or "".

    >>> advice(300, 400, 4, alone=False)[:60]
    'the best weights came after 75 % of the run: where training '
    >>> advice(400, 400, 4, alone=False), advice(300, 400, 4, alone=True), advice(300, 400, 1, alone=False)
    ('', '', '')
    """
    early = best < _EARLY * steps
    if replicas == 1 or early == alone:
        return ""
    if alone:
        return (
            "the loss fell until the end: there a shared gradient mostly ends lower; with the model in "
            "DistributedDataParallel AutoTune shares it while the loss falls"
        )
    return (
        f"the best weights came after {100 * best / steps:.0f} % of the run: where training overfits, "
        "replicas on data of their own (hdet.AutoTune) mostly end lower than one large batch"
    )


def take_optimizers(caller: str, optimizer: Optimizer | Sequence[Optimizer]) -> Optimizer:
    """Torch's own optimizer, or several as one."""
    if not isinstance(optimizer, (list, tuple)):
        return unwrapped(caller, optimizer)
    parts = [unwrapped(caller, part) for part in optimizer]
    if not parts or len({id(part) for part in parts}) < len(parts):
        raise ValueError(f"{caller}: optimizer must be one, or a list of different ones, got {len(parts)}")
    if len(parts) > 1 and any(isinstance(part, StackedOptimizer) for part in parts):
        raise TypeError(f"{caller}: several optimizers must train one model, got replicas that are stacked")
    return parts[0] if len(parts) == 1 else JointOptimizer(caller, parts)


def shortest_window(optimizer: Optimizer, total_steps: int | None) -> int:
    """Ten steps, or as many as momentum remembers: within fewer its swing looks like a trend.

    A run has eight of them at least.
    """
    betas = [group.get("momentum", group.get("betas", (0.0,))[0]) for group in optimizer.param_groups]
    memory = max(1 / (1 - beta) if isinstance(beta, float) and beta < 1 else 1.0 for beta in betas)
    wanted = _FIRST if memory <= 2 * _FIRST else memory
    longest = math.inf if total_steps is None else max(total_steps // 8, 1)
    return round(min(wanted, longest))


def _check(
    caller: str,
    optimizer: Optimizer,
    probe: object,
    total_steps: object,
    schedule: object,
    rule: object,
    patience: object,
    offload: object,
) -> None:
    """Raise TypeError or ValueError for what cannot work."""
    check_probe(caller, probe)
    _check_optimizer(caller, optimizer)
    if total_steps is not None and (not isinstance(total_steps, int) or total_steps < _LEAST_STEPS):
        raise ValueError(
            f"{caller}: total_steps must be an integer of at least {_LEAST_STEPS}, or None to run "
            f"open-ended, got {total_steps!r}; a run of fewer steps needs a rate of yours, such as "
            "torch's OneCycleLR(optimizer, max_lr=1e-3, total_steps=...)"
        )
    _check_schedule(caller, optimizer, schedule, total_steps)
    if rule is not None and not isinstance(rule, HorizonController):
        raise TypeError(
            f"{caller}: rule must be a hdet.autolr.rule.HorizonController, got {type(rule).__name__}"
        )
    if patience is not None and (not isinstance(patience, int) or patience < 1):
        raise ValueError(f"{caller}: patience must be an integer of at least 1, or None, got {patience!r}")
    if offload is not None:
        check_offload(caller, offload)


def check_probe(caller: str, probe: object, *, required: bool = True) -> None:
    """Raise TypeError for anything but a probe."""
    if not isinstance(probe, Probe) and (required or probe is not None):
        raise TypeError(
            f"{caller}: probe must be a hdet.Probe{'' if required else ' or None'}, got "
            f"{type(probe).__name__}; hdet.Probe(loss_fn, batches, model=model) makes one"
        )


def check_model(caller: str, model: object) -> None:
    """Raise TypeError for anything but a module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: model must be a torch nn.Module, got {type(model).__name__}")


def check_offload(caller: str, offload: object) -> None:
    """Raise TypeError for anything but True and False."""
    if not isinstance(offload, bool):
        raise TypeError(f"{caller}: offload must be True or False, got {offload!r}")


def _check_optimizer(caller: str, optimizer: Optimizer) -> None:
    for part in parts_of(optimizer):
        if any(kind.__name__ == "LBFGS" for kind in type(part).__mro__):
            raise TypeError(
                f"{caller}: optimizer must take one step on one gradient, got LBFGS, whose step evaluates a "
                f"closure many times, on one batch, and has no rate to judge; use it without {caller}, "
                "with line_search_fn='strong_wolfe', or another optimizer, such as AdamW"
            )
    for i, group in enumerate(optimizer.param_groups):
        lr = float(group["lr"])
        if not (math.isfinite(lr) and lr > 0):
            raise ValueError(
                f"{caller}: the groups' lr must be finite and > 0, for their ratios are kept, got {lr} in "
                f"group {i}; give another (a schedule may not begin at zero; after a run that has decayed "
                "to zero, make a new optimizer), or freeze it"
            )


def _check_schedule(caller: str, optimizer: Optimizer, schedule: object, total_steps: object) -> None:
    if isinstance(schedule, ReduceLROnPlateau):
        raise TypeError(f"{caller}: schedule must step without a metric, got ReduceLROnPlateau; use 'wsd'")
    if not isinstance(schedule, LRScheduler):
        if not isinstance(schedule, str) or schedule not in SHAPES:
            raise ValueError(
                f"{caller}: schedule must be one of {', '.join(map(repr, SHAPES))} or a torch LRScheduler, "
                f"got {schedule!r}"
            )
        if total_steps is None and schedule != "wsd":
            raise ValueError(f"{caller}: schedule={schedule!r} needs total_steps; only 'wsd' runs open-ended")
    elif hasattr(schedule, "finish_"):
        raise TypeError(f"{caller}: schedule must be a shape for AutoLR to scale, got an AutoLR; use 'wsd'")
    elif isinstance(optimizer, JointOptimizer):
        raise TypeError(
            f"{caller}: schedule must be a name where there are several optimizers, got a "
            f"{type(schedule).__name__}, which writes the learning rates of one of them alone; use "
            f"{', '.join(map(repr, SHAPES))}"
        )
    elif unwrapped(caller, schedule.optimizer) is not optimizer:
        raise ValueError(f"{caller}: schedule must be a scheduler of this optimizer, got one of another")


def _doubts(caller: str, optimizer: Optimizer, probe: Probe) -> list[str]:
    """What a user should know before training begins."""
    said = [
        f"optimizer {type(part).__name__} brings a learning rate of its own ({sign}): {caller} moves a "
        "factor on it while it moves itself, and neither knows of the other; use a plain optimizer, such as "
        f"AdamW, or leave {caller} out"
        for part in parts_of(optimizer)
        if (sign := _own_rate(part))
    ]
    if not probe.decides:
        said.append(
            "the probe has one sample to decide by, which says nothing: the learning rate keeps to what is "
            "usual, and finish_ loads the end of training; give Probe 8 batches or more"
        )
    elif probe.choosing == 1:
        only = probe.holds == 1
        said.append(
            f"the probe has {'one batch' if only else 'one batch to choose by'}: decisions have no standard "
            f"error{', and there is no honest estimate of what finish_ loads' if only else ''}; give "
            "Probe 8 batches or more"
        )
    return said


def _own_rate(optimizer: Optimizer) -> str:
    """By what signs an optimizer that finds its own learning rate is known; nothing is imported for it."""
    for key in ("d", "d_coef", "d0"):  # Prodigy, D-Adaptation
        if any(key in group for group in optimizer.param_groups):
            return f"its groups hold {key!r}"
    if all(callable(getattr(optimizer, name, None)) for name in ("train", "eval")):
        return "it averages its own iterates, by train() and eval()"  # Schedule-Free
    mechanic = any(kind.__name__.startswith("Mechani") for kind in type(optimizer).__mro__)
    if mechanic or "_mechanic" in optimizer.state:
        return "it is a Mechanic"
    return ""
