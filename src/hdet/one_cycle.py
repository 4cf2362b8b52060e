"""``OneCycleAutoLR``: the paper's method behind the face of ``torch.optim.lr_scheduler.OneCycleLR``.

The curve is torch's own, bit for bit; the cycle of fan-out, converge, control and reassignment is the
engine's (:mod:`hdet.engine.cycle`). What is here is the translation of names:

========================  ===================================  =====
the authors' argument     ours                                 paper
========================  ===================================  =====
auto_lr_warmup_steps      Ensemble(control_after=)             S_w
ensemble_lr_spread_ratio  LearningRate(spread=)                α
model_sync_interval       Ensemble(sync_every=)                T
rank, world_size          Ensemble(process_group=)             r, N
enable_auto_lr            Ensemble(controller=)
loss_scale                SoftmaxController(temperature=)      σ
lr_of_lr                  SoftmaxController(step_size=)        λ
momentum_of_lr            SoftmaxController(momentum=)         β
========================  ===================================  =====
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, SupportsFloat

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from hdet import rules
from hdet.arguments import refuse_closures
from hdet.controllers import HorizonController, SoftmaxController, geometric_decay, literal_decay
from hdet.engine import envelope
from hdet.engine.agreement import check_sync_every
from hdet.engine.cycle import Cycle
from hdet.engine.events import Event
from hdet.engine.face import Face
from hdet.engine.optimizers import unwrapped
from hdet.engine.step_hooks import take_over
from hdet.history import History, SyncRecord
from hdet.hyperparameters import LearningRate, separate_learning_rates
from hdet.policies import Fixed, Horizon, Policy, Vote
from hdet.probes import Probe
from hdet.replicas import ProcessGroup, Replicas, Wire, replicas_of
from hdet.schedules import Every, Windows
from hdet.weights.outer import OuterStep
from hdet.weights.parameters import describe

__all__ = ["OneCycleAutoLR"]

logger = logging.getLogger("hdet")


class OneCycleAutoLR(Face, OneCycleLR):
    """OneCycleLR whose data-parallel replicas diverge in learning rate and find it while they train.

    The arguments up to ``last_epoch`` are OneCycleLR's, the next nine those of the authors' code (same
    names, order and defaults: aliases of ours, by the table above), the rest is keyword-only. With
    ``ensemble_lr_spread_ratio=0``, the default, it *is* OneCycleLR.

    What is read is called as at every door: :attr:`sync_every`, :attr:`spread`, :attr:`steps`,
    :attr:`replica_lrs`, :attr:`values`, :attr:`history`.

    ``group["lr"]`` and :meth:`get_last_lr` show the base learning rate; :attr:`replica_lrs` is what this
    replica uses. Under GradScaler a skipped step does not count. Fused optimizers skip on the device: such
    steps are read and taken back when a round is to end, which then goes on for as many.

    Args:
        auto_lr_warmup_steps: S_w, the first step at which auto-LR may act.
        ensemble_lr_spread_ratio: α in [0, 1); replica r uses η·ρ_r with ρ from 1 − α to 1 + α (Eq. 1).
        model_sync_interval: T ≥ 1, steps between two averagings of the replicas (Eq. 3).
        rank, world_size: only checked; the process group knows them.
        enable_auto_lr: move the base learning rate by the replicas' losses (Eq. 4–7); ``step`` then
            needs the loss, each rank its own.
        loss_scale: σ > 0, in units of the loss, or ``"auto"`` for the spread of the replicas' losses. The
            paper says 0.1, its code 0.002.
        lr_of_lr: λ > 0.
        momentum_of_lr: β in [0, 1).
        decay: what brings the learning rate down once auto-LR acts. ``"schedule"``: the OneCycle curve
            itself goes on and auto-LR moves a factor on it. ``"geometric"``: Eq. 8 with its logarithm
            mended, one step of decay per sync. ``"literal"``: Eq. 8 as printed, which with OneCycleLR's
            default factors *raises* the learning rate.
        controller: ``"softmax"`` is the paper's, switched on by ``enable_auto_lr``. ``"horizon"`` judges
            windows of its own by ``probe`` (:class:`~hdet.AutoLR` without the shape): ``max_lr`` is then not
            read but for the ratios between groups, and ``step`` needs no loss.
        probe: what the horizon controller measures with.
        process_group: the replicas; the default group if None, this process alone without one.
        seed: of the reassignments. Global random states are never touched. Give two schedulers of one run
            (two optimizers) different seeds, or their replicas explore in step.
        model: makes buffers known, which are then averaged with the parameters.
        wire: ``"bf16"`` or ``"int8"`` sends what replicas have moved by in half or a quarter of float32's
            bytes, with error feedback (:class:`~hdet.Ensemble`).
        history: a JSONL file to which rank 0 appends one :class:`~hdet.SyncRecord` per sync; or a
            callable that is told each line (:class:`hdet.integrations.trackers.Tracker`); or a list of both.
        on_event: called with every :class:`~hdet.Event` at the end of its step, on every rank.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(3))
        >>> optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        >>> scheduler = OneCycleAutoLR(optimizer, max_lr=0.1, total_steps=10,
        ...                            ensemble_lr_spread_ratio=1 / 9, model_sync_interval=5)
        >>> for _ in range(10):
        ...     loss = (weight**2).sum()
        ...     loss.backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     record = scheduler.step(loss)
        >>> record.step, record.round
        (10, 1)
    """

    _cycle: Cycle | None = None

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
        auto_lr_warmup_steps: int = 100_000,
        ensemble_lr_spread_ratio: float = 0.0,
        model_sync_interval: int = 1000,
        rank: int = 0,
        world_size: int = 1,
        enable_auto_lr: bool = False,
        loss_scale: float | Literal["auto"] = 0.002,
        lr_of_lr: float = 0.5,
        momentum_of_lr: float = 0.9,
        *,
        decay: Literal["schedule", "geometric", "literal"] = "schedule",
        controller: Literal["softmax", "horizon"] = "softmax",
        probe: Probe | None = None,
        process_group: ProcessGroup | None = None,
        seed: int = 0,
        model: nn.Module | None = None,
        wire: Wire | None = None,
        history: History | None = None,
        on_event: Callable[[Event], object] | None = None,
    ) -> None:
        given = dict(locals())
        optimizer = unwrapped("OneCycleAutoLR", optimizer)
        replicas = replicas_of("OneCycleAutoLR", optimizer, model=model, process_group=process_group)
        known = (0, 1), (replicas.rank, replicas.size), (replicas.place, replicas.ranks)
        trusted = (rank, world_size) in known
        # The ranks compare their arguments before any of them objects to one, so that all raise together
        # and none is left waiting.
        settings = {name: repr(given[name]) for name in _SHARED}
        settings["rank"] = "the group's" if trusted else f"{rank} of {world_size}"
        replicas.agree("OneCycleAutoLR", {**settings, **describe(optimizer, model)})
        if not trusted:
            raise ValueError(_wrong_rank(rank, world_size, replicas))
        _check(auto_lr_warmup_steps, decay, model_sync_interval, controller, probe)
        _check_peak(max_lr, total_steps)
        if probe is not None:
            refuse_closures("OneCycleAutoLR", optimizer)
        explore = [LearningRate(spread=ensemble_lr_spread_ratio)]
        softmax = SoftmaxController(loss_scale, momentum_of_lr, lr_of_lr)

        take_over(optimizer)
        separate_learning_rates(optimizer)
        super().__init__(optimizer, **{name: given[name] for name in _ONE_CYCLE})
        policy: Policy
        if probe is not None:
            policy = Horizon(explore, probe, HorizonController(), Windows(), keep="off")
        elif enable_auto_lr:
            gamma = self._gamma(
                decay, auto_lr_warmup_steps, model_sync_interval, div_factor, final_div_factor
            )
            policy = Vote(
                explore,
                Every(model_sync_interval),
                replace(softmax, decay=gamma),
                act_from=auto_lr_warmup_steps,
            )
        else:
            policy = Fixed(explore, Every(model_sync_interval))
        self._cycle = Cycle(
            optimizer,
            [policy],
            replicas,
            schedule=_Curve(self),
            total_steps=self.total_steps,
            outer=None if wire is None else OuterStep("OneCycleAutoLR", None, wire),
            model=model if probe is None else probe.model,
            seed=seed,
            history=history,
            on_event=on_event,
            caller="OneCycleAutoLR",
            first_step=self.last_epoch,
        )

    def _gamma(
        self, decay: str, warmup_steps: int, sync_every: int, div_factor: float, final_div_factor: float
    ) -> float | None:
        """γ of Eq. 8; None where the curve goes on by itself."""
        remaining = self.total_steps - warmup_steps
        if remaining <= 0:
            logger.warning(
                "OneCycleAutoLR: auto-LR will never act: auto_lr_warmup_steps=%d, total_steps=%d",
                warmup_steps,
                self.total_steps,
            )
        if remaining <= 0 or decay == "schedule":
            return None
        rule = geometric_decay if decay == "geometric" else literal_decay
        return rule(div_factor=div_factor, final_div_factor=final_div_factor, syncs=remaining / sync_every)

    def step(self, loss: Tensor | SupportsFloat | None = None) -> SyncRecord | None:  # type: ignore[override]
        """Call after ``optimizer.step()`` with this rank's own loss; returns the record of a sync.

        Between syncs nothing waits for the device.
        """
        if self._cycle is None:  # OneCycleLR's constructor takes the step that sets the first values
            super().step()
            return None
        return self._cycle.step(loss)

    def get_lr(self) -> list[float | Tensor]:
        """OneCycleLR's values times what auto-LR has found."""
        values: list[float | Tensor] = super().get_lr()
        cycle = self._cycle
        return values if cycle is None or not cycle.schedule.moved else cycle.schedule.covered(values)

    def state_dict(self, *, compact: bool = False) -> dict[str, Any]:
        """OneCycleLR's state and, under ``"hdet"``, the engine's; and an envelope. ``compact``, as AutoLR's:
        without what the window in progress has collected."""
        state = super().state_dict()
        state.pop("_cycle", None)
        inner = {**state, "hdet": self._engine.inner_state(compact=compact)}
        return envelope.sealed("OneCycleAutoLR", self._engine.configuration(), inner)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off. A plain OneCycleLR's state is taken too. What cannot be
        taken is refused whole: nothing changes then."""
        caller = "OneCycleAutoLR"
        known = (*vars(self), "hdet", *_OF_OTHER_VERSIONS)
        state, before = envelope.opened(caller, state_dict, needed=_NEEDED, known=known)
        saved = state.pop("hdet", None)
        envelope.sound(caller, lambda: _check_curve(state, self.total_steps, len(self.base_lrs)))
        if saved is not None:
            saved = self._engine.checked_state(saved)
            envelope.refuse_other_run(caller, self._engine.configuration(), before)
        super().load_state_dict(state)
        if saved is not None:
            self._engine.take_state(saved)
        else:
            self._engine.resume_at(self.last_epoch)

    @property
    def _engine(self) -> Cycle:
        assert self._cycle is not None
        return self._cycle


#: OneCycleLR's own arguments; ``verbose``, which torch had until 2.6, prints and is left to it.
_ONE_CYCLE = [
    name
    for name in inspect.signature(OneCycleLR.__init__).parameters
    if name not in ("self", "optimizer", "verbose")
]
#: Arguments that must be the same on all ranks, in their order.
_SHARED = [
    name
    for name in inspect.signature(OneCycleAutoLR.__init__).parameters
    if name not in ("self", "optimizer", "rank", "process_group", "model", "probe", "history", "on_event")
]


#: Names in OneCycleLR's state, and those that other versions of torch have there.
_NEEDED = ("total_steps", "_schedule_phases", "base_lrs", "last_epoch")
_OF_OTHER_VERSIONS = ("verbose", "_anneal_func_type", "_is_initial", "_get_lr_called_within_step")


def _check_curve(state: Mapping[str, Any], total_steps: int, groups: int) -> None:
    """OneCycleLR's own values: of as long a run, with as many groups, and within it."""
    caller = "OneCycleAutoLR"
    if state["total_steps"] != total_steps:
        raise ValueError(
            f"{caller}.load_state_dict: total_steps must be as it was when the state was saved, "
            f"{state['total_steps']}, got {total_steps}: the whole curve follows from it. Give as many as "
            "then, or begin a new run from the weights"
        )
    rules.count(caller, "last_epoch", state["last_epoch"], most=total_steps)
    for name in ("base_lrs", "_last_lr"):
        for lr in rules.of_length(caller, name, state.get(name, [0.0] * groups), groups):
            rules.number(caller, name, float(lr), least=0.0)
    for phase in state["_schedule_phases"]:
        rules.number(caller, "a phase's end", phase["end_step"])


class _Curve:
    """The OneCycleLR beneath it, as the engine's base schedule.

    It computes each value from ``max_lr``, never from the last one, so that ``get_lr`` above can cover it.
    """

    covers_itself = True

    def __init__(self, scheduler: OneCycleAutoLR) -> None:
        self.step = partial(OneCycleLR.step, scheduler)


def _check_peak(max_lr: object, total_steps: object) -> None:
    """A peak of NaN or infinity would be trained at without a word."""
    for peak in max_lr if isinstance(max_lr, (list, tuple)) else [max_lr]:
        if not isinstance(peak, (int, float, Tensor)) or not 0 <= float(peak) < math.inf:
            raise ValueError(
                f"OneCycleAutoLR: max_lr must be finite and at least 0, one for all groups or one for each, "
                f"got {max_lr!r}"
            )
    if total_steps is not None and not isinstance(total_steps, int):
        raise ValueError(
            f"OneCycleAutoLR: total_steps must be an integer, or None beside epochs, got {total_steps!r}"
        )


def _check(
    warmup_steps: object, decay: object, sync_every: int, controller: object, probe: Probe | None
) -> None:
    if not isinstance(warmup_steps, int) or warmup_steps < 0:
        raise ValueError(
            "OneCycleAutoLR: auto_lr_warmup_steps (S_w) must be an integer of at least 0, "
            f"got {warmup_steps!r}"
        )
    if decay not in ("schedule", "geometric", "literal"):
        raise ValueError(f"OneCycleAutoLR: decay must be 'schedule', 'geometric' or 'literal', got {decay!r}")
    check_sync_every("OneCycleAutoLR", sync_every)
    if controller not in ("softmax", "horizon"):
        raise ValueError(f"OneCycleAutoLR: controller must be 'softmax' or 'horizon', got {controller!r}")
    if (controller == "horizon") != (probe is not None):
        raise ValueError(
            "OneCycleAutoLR: controller='horizon' and probe= go together, got "
            f"controller={controller!r} and probe={probe!r}"
        )


def _wrong_rank(rank: int, world_size: int, replicas: Replicas) -> str:
    got = f"got rank={rank} and world_size={world_size}"
    if replicas.ranks == 1:
        return (
            f"OneCycleAutoLR: world_size > 1 needs a process group, and none is initialised; {got}. Call "
            "torch.distributed.init_process_group first"
        )
    return (
        "OneCycleAutoLR: rank and world_size must be the process group's, "
        f"rank={replicas.place} and world_size={replicas.ranks}; {got}. Leave them out"
    )
