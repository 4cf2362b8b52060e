"""AutoTune: one run that is given no learning rate, no regularisation and no number of steps.

Two policies run in the same windows: a horizon finds the learning rate and the end, a
regression moves everything else by what replicas that differ in it come to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hdet.autolr.policy import Horizon
from hdet.autolr.rule import HorizonController
from hdet.autolr.search import Search, check_probe, take_optimizers
from hdet.history import History
from hdet.hyperparameters import Explorable, LearningRate
from hdet.loop.announce import Event
from hdet.loop.checks import check_explore, check_together
from hdet.loop.fan_out import Gradients, GradientSharing
from hdet.loop.policy import Policy
from hdet.probes import Probe
from hdet.removed import explains_calls
from hdet.replicas import ProcessGroup, Replicas, ddps, replicas_of
from hdet.tuning.discover import Discovered, discover
from hdet.tuning.policies import SequentialRegression, WindowRegression
from hdet.tuning.regression import RegressionController

__all__ = ["AutoTune"]

logger = logging.getLogger("hdet")


class AutoTune(Search):
    """Finds the learning rate, and whatever ``explore`` names, while it trains.

    Call :meth:`step` once after every ``optimizer.step()``; stop where :attr:`finished`; :meth:`finish_`
    loads the best weights that were seen. Replicas are processes, each with data of its own. They train
    apart for a window, each at values of its own, become one model, and their held-out losses, each at its
    own mean over the window and relative to that of all, move the values. The learning rate is the same for
    all; it, rollbacks and the end follow the averaged path, as in :class:`hdet.AutoLR`, whose arguments
    the others are.

    One process alone finds the learning rate, and tries all else in turn, one window after the other.

    Args:
        optimizer: any torch optimizer, or several that step together. Its learning rate is not read; other
            values are where the search begins.
        explore: what is moved beside the learning rate: ``[hdet.WeightDecay(), hdet.Dropout(model), …]``.
            ``"auto"`` takes what there is, in this order: ``WeightDecay(spread=1.5)``, if groups have it;
            the dropout layers of ``probe.model``; the label smoothing of a criterion in that model, or that
            the probe's loss function refers to. What N replicas cannot tell apart (more than N − 1), or
            what acts through a gradient that they share, is left out. The line at the start says what is
            explored, a line of log what is left out. An empty list only averages replicas that train on data
            of their own.
        probe: measures the loss on batches that are not trained on.
        total_steps: S, a budget: it may end earlier. None goes on until nothing improves any more.
        gradients: who shares them: ``"switch"``, the default for a model in DDP, lets DDP average them until
            a window does not improve, and from there on nobody; ``"none"``, the default for any other, lets
            every process train by itself between two syncs; ``"all"`` where they are shared throughout,
            which leaves dropout, label smoothing and the like out; an ``hdet.Arms`` for something between.
            A loop that averages gradients by other means than DDP does so while ``trains_alone`` is
            False.
        process_group: the replicas; the default group if None. May be :class:`hdet.replicas.Replicas` of
            one's own.
        seed: of how values are dealt to replicas.
        rule: for experts: the constants of the rule that moves the learning rate.
        regression: for experts: those of the rule that moves all else.

    What the forward pass reads (dropout, label smoothing, temperature) holds this replica's own value while
    training goes on. :meth:`at_base` shows the base values, for an evaluation or a checkpoint.

    Example::

        tune = hdet.AutoTune(optimizer, probe=hdet.Probe(loss_fn, held_out, model=model))
        for batch in endless(loader):
            loss_fn(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            tune.step()
            if tune.finished:
                break
        print(tune.finish_(), tune.values)
    """

    @explains_calls
    def __init__(
        self,
        optimizer: Optimizer | Sequence[Optimizer],
        explore: Sequence[Explorable] | Literal["auto"] = "auto",
        *,
        probe: Probe,
        total_steps: int | None = None,
        schedule: Literal["wsd", "cosine", "onecycle"] | LRScheduler = "wsd",
        patience: int | None = 3,
        gradients: Gradients | None = None,
        offload: bool | None = None,
        process_group: ProcessGroup | Replicas | None = None,
        seed: int = 0,
        history: History | None = None,
        on_event: Callable[[Event], object] | None = None,
        rule: HorizonController | None = None,
        regression: RegressionController | None = None,
    ) -> None:
        every = take_optimizers("AutoTune", optimizer)
        _check(explore, regression)
        model = getattr(probe, "model", None)
        replicas = replicas_of("AutoTune", every, model=model, process_group=process_group)
        alone = replicas.size == 1
        gradients = gradients or _gradients_of(model, replicas)
        if explore == "auto":
            explore = _discover(every, probe, gradients, replicas)
        chosen = list(explore)
        if not chosen and gradients == "all":
            raise ValueError(
                "AutoTune: explore must name a hyperparameter, such as hdet.WeightDecay(), where replicas "
                f"({replicas.size} here) have no gradients of their own, got none; hdet.AutoLR finds the "
                "learning rate alone"
            )

        def beside(horizon: Horizon) -> list[Policy]:
            kind = SequentialRegression if alone else WindowRegression
            return [kind(chosen, horizon, regression or RegressionController())] if chosen else []

        super().__init__(
            every,
            replicas,
            probe=probe,
            total_steps=total_steps,
            schedule=schedule,
            rule=rule,
            patience=patience,
            offload=offload,
            history=history,
            on_event=on_event,
            gradients=gradients,
            beside=beside,
            design="in turn" if alone else None,
            seed=seed,
        )


def _discover(
    optimizer: Optimizer, probe: Probe, gradients: Gradients, replicas: Replicas
) -> list[Explorable]:
    """What ``explore="auto"`` stands for; rank 0 logs it. Raises on all ranks where one finds nothing."""
    several = replicas.size > 1
    sharing = GradientSharing("AutoTune", gradients, replicas, None)
    found = Discovered([], [], [])

    def look() -> None:
        nonlocal found
        check_probe("AutoTune", probe)
        found = discover(
            optimizer,
            probe,
            own_gradients=sharing.own_gradients or not several,
            most=sharing.arms - 1 if several else None,
        )
        if not found.explore:
            raise ValueError(
                "AutoTune: explore='auto' must find weight_decay in the optimizer's groups, dropout layers "
                "in the model, or label_smoothing of a module in the model or in what the probe's loss "
                f"function refers to, got {type(optimizer).__name__} and {type(probe.model).__name__}: it "
                f"{found}; name a hyperparameter in explore=[...], or hdet.AutoLR finds the learning rate "
                "alone"
            )

    check_together("AutoTune", replicas, look, {})
    if replicas.world_rank == 0 and found.left_out:
        logger.info("AutoTune: left out: %s", ", ".join(found.left_out))
    return found.explore


def _check(explore: Sequence[Explorable] | str, regression: object) -> None:
    """Raise TypeError or ValueError for what nobody could explore."""
    if isinstance(explore, str) and explore != "auto":
        raise ValueError(
            f"AutoTune: explore must be 'auto' or a list of hyperparameters such as hdet.WeightDecay(), got "
            f"{explore!r}"
        )
    check_explore("AutoTune", explore)
    if any(isinstance(item, LearningRate) for item in explore):
        raise ValueError(
            "AutoTune: explore must not name the learning rate, which is found by other means, got "
            "LearningRate; leave it out"
        )
    if regression is not None and not isinstance(regression, RegressionController):
        raise TypeError(
            "AutoTune: regression must be a hdet.tuning.regression.RegressionController, got "
            f"{type(regression).__name__}; rule= is the learning rate's"
        )


def _gradients_of(model: nn.Module | None, replicas: Replicas) -> Gradients:
    if replicas.gradients is not None:
        return replicas.gradients
    if replicas.size == 1:
        return "all"
    return "switch" if ddps(model) else "none"
