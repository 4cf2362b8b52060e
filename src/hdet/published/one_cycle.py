"""``OneCycleAutoLR``: the paper's method as a drop-in for ``torch.optim.lr_scheduler.OneCycleLR``.

The curve is torch's own, bit for bit; the cycle of fan-out, converge, control and reassignment is
:mod:`hdet.loop.cycle`. This file translates the names:

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, SupportsFloat

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from hdet.history import History, SyncRecord
from hdet.hyperparameters import LearningRate, separate_learning_rates
from hdet.loop.announce import Event
from hdet.loop.checks import check_sync_every
from hdet.loop.comparison import Fixed
from hdet.loop.cycle import Cycle, Door
from hdet.loop.hooks import take_over
from hdet.loop.optimizers import describe, unwrapped
from hdet.loop.policy import Policy
from hdet.loop.state import check_fits
from hdet.loop.windows import Every
from hdet.published.softmax import SoftmaxController, geometric_decay, literal_decay
from hdet.published.vote import PrintedVote, Vote
from hdet.removed import explains_calls
from hdet.replicas import ProcessGroup, Replicas, replicas_of

__all__ = ["OneCycleAutoLR"]

logger = logging.getLogger("hdet")

#: §4.1 of the paper, and its rules as they are printed.
_PAPER: dict[str, Any] = {
    "auto_lr_warmup_steps": 100_000,
    "ensemble_lr_spread_ratio": 1 / 9,
    "model_sync_interval": 1000,
    "enable_auto_lr": True,
    "loss_scale": 0.1,
    "lr_of_lr": 0.5,
    "momentum_of_lr": 0.9,
    "decay": "literal",
    "rules": "printed",
}


class OneCycleAutoLR(Door, OneCycleLR):
    """OneCycleLR whose data-parallel replicas diverge in learning rate, are averaged, and vote on it.

    "Auto" is that vote, the paper's auto-LR, on a rate that you give; :class:`hdet.AutoLR` is given none.

    The arguments up to ``last_epoch`` are OneCycleLR's, the next nine those of the authors' code (same
    names, order and defaults: aliases of ours, by the table above), the rest is keyword-only. With
    ``ensemble_lr_spread_ratio=0``, the default, it *is* OneCycleLR. :meth:`paper` has the paper's values, and
    its rules as printed.

    What is read is called as at every door: :attr:`sync_every`, :attr:`spread`, :attr:`steps`,
    :attr:`replica_lrs`, :attr:`values`, :attr:`history`.

    ``group["lr"]`` and :meth:`get_last_lr` show the base learning rate; :attr:`replica_lrs` is what this
    replica uses. Under GradScaler a skipped step does not count. Fused optimizers skip on the device: such
    steps are read and taken back when a round is to end, which then goes on for as many.

    Args:
        auto_lr_warmup_steps: S_w, the first step at which auto-LR may act.
        ensemble_lr_spread_ratio: α in [0, 1), for all parameter groups or a list with one for each; replica r
            uses η·ρ_r with ρ from 1 − α to 1 + α (Eq. 1). A group with 0 is not explored.
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
            corrected, one step of decay per sync. ``"literal"``: Eq. 8 as printed, which from S_w to the
            end multiplies the learning rate by ``final_div_factor/div_factor``. Where ``div_factor`` is the
            larger, that leaves a residual; where it is the smaller, the rate *grows*, 400-fold with the
            default factors, and a warning says so.
        rules: ``"corrected"``: replicas swap their learning rates (Eq. 9) at every sync, and a decision
            compares the mean losses of one round. ``"printed"``, Algorithm 1 to the letter: they swap only
            where auto-LR decides, and the first decision compares the losses of the whole warm-up, divided
            by T.
        process_group: the replicas; the default group if None, this process alone without one.
        seed: of the reassignments. Global random states are never touched. Give two schedulers of one run
            (two optimizers) different seeds, or their replicas explore in step.
        model: makes buffers known, which are then averaged with the parameters.
        history: a JSONL file to which rank 0 appends one :class:`~hdet.history.SyncRecord` per sync; or a
            callable that is told each line (:class:`hdet.integrations.trackers.Tracker`); or a list of both.
        on_event: called with every :class:`~hdet.loop.announce.Event` at the end of its step, on every rank.

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

    @explains_calls
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
        ensemble_lr_spread_ratio: float | Sequence[float] = 0.0,
        model_sync_interval: int = 1000,
        rank: int = 0,
        world_size: int = 1,
        enable_auto_lr: bool = False,
        loss_scale: float | Literal["auto"] = 0.002,
        lr_of_lr: float = 0.5,
        momentum_of_lr: float = 0.9,
        *,
        decay: Literal["schedule", "geometric", "literal"] = "schedule",
        rules: Literal["corrected", "printed"] = "corrected",
        process_group: ProcessGroup | None = None,
        seed: int = 0,
        model: nn.Module | None = None,
        history: History | None = None,
        on_event: Callable[[Event], object] | None = None,
    ) -> None:
        given = dict(locals())
        optimizer = unwrapped("OneCycleAutoLR", optimizer)
        replicas = replicas_of("OneCycleAutoLR", optimizer, model=model, process_group=process_group)
        known = (0, 1), (replicas.rank, replicas.size), (replicas.world_rank, replicas.world_size)
        trusted = (rank, world_size) in known
        # The ranks compare their arguments before any of them objects to one, so that all raise together
        # and none is left waiting.
        settings = {name: repr(given[name]) for name in _SHARED}
        settings["rank"] = "the group's" if trusted else f"{rank} of {world_size}"
        replicas.agree("OneCycleAutoLR", {**settings, **describe(optimizer, model)})
        if not trusted:
            raise ValueError(_wrong_rank(rank, world_size, replicas))
        _check(max_lr, total_steps, auto_lr_warmup_steps, decay, rules, model_sync_interval)
        explore = [LearningRate(spread=ensemble_lr_spread_ratio)]
        softmax = SoftmaxController(loss_scale, momentum_of_lr, lr_of_lr)

        take_over(optimizer)
        separate_learning_rates(optimizer)
        super().__init__(optimizer, **{name: given[name] for name in _ONE_CYCLE})
        policy: Policy
        if enable_auto_lr:
            gamma = self._gamma(
                decay, auto_lr_warmup_steps, model_sync_interval, div_factor, final_div_factor
            )
            if replicas.world_rank == 0:
                for warning in _warnings(self.total_steps, given):
                    logger.warning("OneCycleAutoLR: %s", warning)
            policy = (PrintedVote if rules == "printed" else Vote)(
                explore,
                Every(model_sync_interval),
                replace(softmax, decay=gamma),
                act_from=auto_lr_warmup_steps,
            )
        else:
            policy = Fixed(explore, Every(model_sync_interval))
        reassign_from: float = 0
        if rules == "printed":  # line 17: at a sync where auto-LR acts, and nowhere else
            reassign_from = -(-auto_lr_warmup_steps // model_sync_interval) if enable_auto_lr else math.inf
        self._cycle = Cycle(
            optimizer,
            [policy],
            replicas,
            schedule=_Curve(self),
            total_steps=self.total_steps,
            model=model,
            seed=seed,
            history=history,
            on_event=on_event,
            caller="OneCycleAutoLR",
            first_step=self.last_epoch,
            reassign_from=reassign_from,
        )

    @classmethod
    def paper(
        cls,
        optimizer: Optimizer,
        max_lr: float | list[float] = 9e-4,
        total_steps: int | None = None,
        *,
        model: nn.Module | None = None,
        history: History | None = None,
        **changed: Any,
    ) -> OneCycleAutoLR:
        """The method to the letter: the values of the paper's §4.1, and Algorithm 1 and Eq. 8 as printed.

        That is α = 1/9, T = 1000, auto-LR from S_w = 100,000 on with σ = 0.1, β = 0.9 and λ = 0.5,
        ``decay="literal"`` and ``rules="printed"``. Any argument of the class that is given wins. The paper
        does not name its ``div_factor`` and ``final_div_factor``; with torch's defaults Eq. 8 raises the
        learning rate 400-fold, of which there is a warning. Losses that are not finite have no vote here
        either, and one sync never takes the rate below the slowest replica's: without these the rate could
        become NaN or negative. For the warm noisy start call :func:`hdet.warm_start_` first.

        >>> import torch
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> scheduler = OneCycleAutoLR.paper(optimizer, max_lr=9e-4, total_steps=300_000, model=model,
        ...                                  final_div_factor=5)
        >>> scheduler.spread, scheduler.sync_every
        (0.1111111111111111, 1000)
        """
        return cls(optimizer, max_lr, total_steps, model=model, history=history, **{**_PAPER, **changed})

    def _gamma(
        self, decay: str, warmup_steps: int, sync_every: int, div_factor: float, final_div_factor: float
    ) -> float | None:
        """γ of Eq. 8; None where the curve goes on by itself."""
        remaining = self.total_steps - warmup_steps
        if remaining <= 0 or decay == "schedule":
            return None
        rule = geometric_decay if decay == "geometric" else literal_decay
        return rule(div_factor=div_factor, final_div_factor=final_div_factor, syncs=remaining / sync_every)

    def step(self, loss: Tensor | SupportsFloat | None = None) -> SyncRecord | None:  # type: ignore[override]
        """Call after ``optimizer.step()`` with this rank's own loss; returns the record of a sync.

        Between syncs nothing waits for the device.
        """
        if not hasattr(self, "_cycle"):  # OneCycleLR's constructor takes the step that sets the first values
            super().step()
            return None
        return self._cycle.step(loss)

    def get_lr(self) -> list[float | Tensor]:
        """OneCycleLR's values times what auto-LR has found."""
        values: list[float | Tensor] = OneCycleLR.get_lr(self)
        if hasattr(self, "_cycle") and self._cycle.schedule.moved:
            return self._cycle.schedule.covered(values)
        return values

    def state_dict(self) -> dict[str, Any]:
        """OneCycleLR's state and the loop's, with a checksum."""
        return self._cycle.owner.pack({"curve": [self._curve_state()], "engine": self._cycle.saved()})

    def _curve_state(self) -> dict[str, Any]:
        return {name: value for name, value in super().state_dict().items() if name != "_cycle"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off. A plain OneCycleLR's state is taken too. Raises for what
        cannot be loaded, and changes nothing then."""
        if _is_plain(state_dict):
            self._check_plain(state_dict)
            super().load_state_dict(state_dict)
            self._cycle.resume_at(self.last_epoch)
            return
        state, _ = self._cycle.owner.unpack(state_dict)
        check_fits("OneCycleAutoLR", {"curve": [], "engine": {}}, state)
        self._cycle.check_state(state["engine"])
        super().load_state_dict(state["curve"][0])
        self._cycle.take_state(state["engine"])

    def _check_plain(self, state: Mapping[str, Any]) -> None:
        """Nothing in a plain OneCycleLR's state says whether it is whole."""
        for name in ("total_steps", "base_lrs"):
            mine, saved = getattr(self, name), state[name]
            if (len(mine) != len(saved)) if name == "base_lrs" else (mine != saved):
                raise ValueError(
                    f"OneCycleAutoLR.load_state_dict: {name} must be as when the state was saved, {saved}, "
                    f"got {mine}: the whole curve follows from it; begin a new run from the weights"
                )


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
    if name not in ("self", "optimizer", "rank", "process_group", "model", "history", "on_event")
]


#: Names in OneCycleLR's state.
_NEEDED = ("total_steps", "_schedule_phases", "base_lrs", "last_epoch")


def _is_plain(state: object) -> bool:
    """Whether it is a OneCycleLR's own."""
    return isinstance(state, Mapping) and all(name in state for name in _NEEDED) and "hdet" not in state


class _Curve:
    """The OneCycleLR beneath it, as the loop's base schedule.

    It computes each value from ``max_lr``, never from the last one, so that ``get_lr`` above can cover it.
    """

    covers_itself = True

    def __init__(self, scheduler: OneCycleAutoLR) -> None:
        self.step = partial(OneCycleLR.step, scheduler)


def _warnings(total_steps: int, given: Mapping[str, Any]) -> Iterator[str]:
    """What a user of auto-LR should know before training begins."""
    warmup_steps, f_div, f_final = (
        given[name] for name in ("auto_lr_warmup_steps", "div_factor", "final_div_factor")
    )
    if warmup_steps >= total_steps:
        yield f"auto-LR will never act: auto_lr_warmup_steps={warmup_steps}, total_steps={total_steps}"
    elif given["decay"] == "literal" and f_div < f_final:
        yield (
            "decay='literal' (Eq. 8 as printed) raises the learning rate where div_factor is below "
            f"final_div_factor, got {f_div:g} and {f_final:g}: by the end it will have grown "
            f"{f_final / f_div:.4g}-fold since step {warmup_steps}. Give final_div_factor={f_div / 5:g}, "
            "which leaves a fifth of it, or decay='schedule', which follows OneCycleLR's curve"
        )


def _check(
    max_lr: object,
    total_steps: object,
    warmup_steps: object,
    decay: object,
    rules: object,
    sync_every: int,
) -> None:
    check_sync_every("OneCycleAutoLR", sync_every)
    if not isinstance(warmup_steps, int) or warmup_steps < 0:
        raise ValueError(
            "OneCycleAutoLR: auto_lr_warmup_steps (S_w) must be an integer of at least 0, "
            f"got {warmup_steps!r}"
        )
    if decay not in ("schedule", "geometric", "literal"):
        raise ValueError(f"OneCycleAutoLR: decay must be 'schedule', 'geometric' or 'literal', got {decay!r}")
    if rules not in ("corrected", "printed"):
        raise ValueError(f"OneCycleAutoLR: rules must be 'corrected' or 'printed', got {rules!r}")
    # torch would train at a peak of NaN or infinity without a warning.
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


def _wrong_rank(rank: int, world_size: int, replicas: Replicas) -> str:
    got = f"got rank={rank} and world_size={world_size}"
    if replicas.world_size == 1:
        return (
            f"OneCycleAutoLR: world_size > 1 needs a process group, and none is initialised; {got}. Call "
            "torch.distributed.init_process_group first"
        )
    return (
        "OneCycleAutoLR: rank and world_size must be the process group's, "
        f"rank={replicas.world_rank} and world_size={replicas.world_size}; {got}. Leave them out"
    )
