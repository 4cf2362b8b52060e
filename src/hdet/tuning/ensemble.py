"""``Ensemble``: any scalar hyperparameters, explored by replicas and moved by their losses.

The loop itself (:class:`~hdet.loop.cycle.Cycle`), with the one policy that its arguments describe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn
from torch.optim import Optimizer

from hdet.history import History
from hdet.hyperparameters import Explorable, LearningRate
from hdet.loop.announce import Event
from hdet.loop.checks import check_explore, check_sync_every, check_together
from hdet.loop.comparison import Fixed
from hdet.loop.cycle import Cycle
from hdet.loop.fan_out import Gradients
from hdet.loop.levels import Design
from hdet.loop.optimizers import unwrapped
from hdet.loop.policy import Policy
from hdet.loop.schedule import Schedule
from hdet.loop.windows import Every
from hdet.probes import Probe
from hdet.published.softmax import SoftmaxController
from hdet.published.vote import Vote
from hdet.removed import explains_calls
from hdet.replicas import ProcessGroup, Replicas, replicas_of
from hdet.tuning.policies import Regression
from hdet.tuning.regression import RegressionController

__all__ = ["Ensemble"]


class Ensemble(Cycle):
    """Replicas that diverge in what they explore and are averaged back every ``sync_every`` steps.

    Args:
        optimizer: any torch optimizer, also one that a framework has wrapped; its step hooks carry the
            fan-out.
        explore: what the replicas diverge in: learning rate, weight decay, dropout, any scalar.

        schedule: *the run.* The base schedule; :meth:`step` drives it. None leaves ``group["lr"]`` to the
            user, who may then run any scheduler, as long as no controller moves the learning rate.
        sync_every: T, in optimizer steps.
        total_steps: S, at which the replicas are converged even where T does not divide it.

        controller: *what moves.* The rule that moves the base values at each sync. None only fans out and
            converges, but with a probe it is a :class:`~hdet.tuning.regression.RegressionController`.
        probe: judges replicas by held-out batches instead of the training loss, regularisers off.
        control_after: S_w, the first step at which the controller acts.
        design: how values are dealt to replicas: ``"permutation"`` (the paper), ``"orthogonal"``, or by
            default whichever serves the controller best.

        gradients: *the replicas.* Who shares gradients: ``"all"`` (the paper), ``"none"``, or the ranks of
            each arm. Where they are not shared by all, the optimizer's state is averaged with the weights.
        model: makes its buffers known, which are then averaged too.
        process_group: the replicas; the default group if None, and this process alone without one. May be
            :class:`hdet.replicas.Replicas` of one's own.

        seed: of the reassignments. No global random state is read or written.
        history: a JSONL file to which rank 0 appends every :class:`~hdet.history.SyncRecord`; or a
            callable that is told each line (:class:`hdet.integrations.trackers.Tracker`); or a list of both.
        on_event: called with every :class:`~hdet.loop.announce.Event` at the end of its step, on every rank.

    What the forward pass reads (dropout, label smoothing, temperature) holds this replica's own value while
    training goes on. :meth:`at_base` shows the base values, for an evaluation or a checkpoint;
    :meth:`detach`, or leaving a ``with`` block for whatever reason, puts them back for good.

    Example::

        with hdet.Ensemble(optimizer, [hdet.WeightDecay(), hdet.Dropout(model)], gradients="none",
                           probe=hdet.Probe(loss_fn, held_out, model=model),
                           schedule=cosine, sync_every=500, model=model) as ensemble:
            for batch in loader:
                loss = loss_fn(batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                ensemble.step(loss)
    """

    @explains_calls
    def __init__(
        self,
        optimizer: Optimizer,
        explore: Sequence[Explorable] = (LearningRate(),),
        *,
        schedule: Schedule | None = None,
        sync_every: int = 1000,
        total_steps: int | None = None,
        controller: SoftmaxController | RegressionController | None = None,
        probe: Probe | None = None,
        control_after: int = 0,
        design: Design | None = None,
        gradients: Gradients = "all",
        model: nn.Module | None = None,
        process_group: ProcessGroup | Replicas | None = None,
        seed: int = 0,
        history: History | None = None,
        on_event: Callable[[Event], object] | None = None,
    ) -> None:
        optimizer = unwrapped("Ensemble", optimizer)
        check_explore("Ensemble", explore)
        replicas = replicas_of("Ensemble", optimizer, model=model, process_group=process_group)
        facts = {"sync_every": repr(sync_every), "control_after": repr(control_after)}
        check_together(
            "Ensemble", replicas, lambda: _check(sync_every, schedule, total_steps, controller), facts
        )
        super().__init__(
            optimizer,
            [_policy(explore, Every(sync_every), controller, probe, control_after)],
            replicas,
            schedule=schedule,
            total_steps=total_steps,
            gradients=gradients,
            design=design,
            model=model,
            seed=seed,
            history=history,
            on_event=on_event,
            caller="Ensemble",
        )

    def __enter__(self) -> Ensemble:
        return self


def _check(sync_every: int, schedule: object, total_steps: object, controller: object) -> None:
    """What would fail later, in the middle of something else."""
    if schedule is not None and not callable(getattr(schedule, "step", None)):
        raise TypeError(
            f"Ensemble: schedule must have a step(), as torch's schedulers do, got {schedule!r}; leave it "
            "out for a constant rate"
        )
    if total_steps is not None and not isinstance(total_steps, (int, float)):
        raise TypeError(f"Ensemble: total_steps must be an integer, or None, got {total_steps!r}")
    if controller is not None and not isinstance(controller, (SoftmaxController, RegressionController)):
        raise TypeError(
            "Ensemble: controller must be a hdet.published.softmax.SoftmaxController or a "
            f"hdet.tuning.regression.RegressionController, got {controller!r}"
        )
    check_sync_every("Ensemble", sync_every)


def _policy(
    explore: Sequence[Explorable],
    rounds: Every,
    controller: SoftmaxController | RegressionController | None,
    probe: Probe | None,
    act_from: int,
) -> Policy:
    if controller is None and probe is not None:
        controller = RegressionController()
    if controller is None:
        return Fixed(explore, rounds)
    if isinstance(controller, RegressionController):
        return Regression(explore, rounds, controller, probe=probe, act_from=act_from)
    return Vote(explore, rounds, controller, probe=probe, act_from=act_from)
