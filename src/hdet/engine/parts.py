"""What a run is made of, put together once: who shares gradients, who explores what, what is averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from hdet.engine import doubts
from hdet.engine.agreement import bind_together
from hdet.engine.attendance import Attendance, refuse_elastic
from hdet.engine.converge import Converge
from hdet.engine.design import Design, choose_design, refit_design
from hdet.engine.doubts import Watch
from hdet.engine.drift import Drift
from hdet.engine.fan_out import FanOut, stack
from hdet.engine.gradients import Gradients, GradientSharing, refuse_outer
from hdet.engine.health import Health
from hdet.engine.lasting import Lasting
from hdet.engine.optimizers import parts_of
from hdet.engine.schedule import CoveredSchedule, Schedule
from hdet.engine.starts import Starts
from hdet.engine.sync import Sync
from hdet.engine.within_arm import WithinArm, within_arm
from hdet.hyperparameters import Axis, refuse_shared_places
from hdet.policies.base import Context, Policy
from hdet.replicas import Replicas, refuse_divergence, refuse_flat_gradients
from hdet.weights.outer import OuterStep

__all__ = ["Parts", "assemble"]


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a run.

    ``diverges``: the replicas' weights differ between two syncs. ``collinear``: they do so along one line,
    and their distance follows from their multipliers. ``doubts``: what a user should know before training
    begins. ``within``: means of an arm's own, between syncs."""

    sharing: GradientSharing
    fan_out: FanOut
    attendance: Attendance
    converge: Converge
    within: WithinArm | None
    sync: Sync
    schedule: CoveredSchedule
    starts: Starts
    watch: Watch
    diverges: bool
    collinear: bool
    doubts: list[str]


def assemble(
    caller: str,
    optimizer: Optimizer,
    policies: Sequence[Policy],
    replicas: Replicas,
    *,
    schedule: Schedule | None,
    gradients: Gradients,
    outer: OuterStep | None,
    design: Design | None,
    model: nn.Module | None,
    seed: int,
    total_steps: int | None,
) -> Parts:
    """Bind what is explored, and hand every policy what it moves. Every rank calls it."""
    refuse_elastic(caller, replicas, optimizer, policies, gradients, outer, model)
    sharing = GradientSharing(caller, gradients, replicas, model)
    bound = bind_together(caller, replicas, optimizer, policies)
    axes = [axis for own in bound for axis in own]
    try:
        jointly = any(policy.estimates_jointly for policy in policies)
        fan_out = _fan_out(caller, axes, replicas, sharing, design, seed, jointly=jointly)
        own_gradients = sharing.own_gradients
        within = within_arm(caller, gradients, optimizer, model, policies)
        outer_steps = outer is not None and outer.steps
        if outer is not None:
            if outer.steps:
                refuse_outer(caller, gradients)
            if outer.wire is not None:
                _refuse_wire(caller, policies, outer.wire)
            outer.bind(caller, optimizer, replicas, fan_out.values_of, sharing.arm)
        # One island alone has rounds, too: its outer optimizer steps.
        diverges = own_gradients or outer_steps or any(axis.spread > 0 for axis in axes)
        if replicas.parts > 1 and any(axis.name == "gradient_clip" for axis in axes):
            groups = optimizer.param_groups
            refuse_flat_gradients(caller, "gradient_clip", (p for group in groups for p in group["params"]))
        if diverges and design != "in turn":  # what one model tries in turn needs no other
            refuse_divergence(caller, parts_of(optimizer), replicas)
        with_state = own_gradients or any(axis.bends_state and axis.spread > 0 for axis in axes)
        converge = Converge(replicas, optimizer, model, with_state=with_state, outer=outer)
        health = Health(caller, replicas, converge)
        lasting = Lasting(caller, replicas, fan_out, policies)
        drift = Drift(caller, optimizer, replicas, diverges=diverges)
        attendance = Attendance(caller, replicas, sharing, fan_out, lasting, drift, health)
        context = Context(
            caller, optimizer, replicas, total_steps, diverges, sharing.by_arm, fan_out.silenced
        )
        starts = Starts(caller, optimizer, replicas, own_gradients=own_gradients)
        for policy, own in zip(policies, bound, strict=True):
            policy.bind(own, context)
        covered = CoveredSchedule(caller, schedule, fan_out.learning_rates)
        who = caller, replicas, sharing, fan_out, attendance
        sync = Sync(*who, converge, health, starts, within, diverges=diverges)
        if diverges:
            converge.plan()  # what cannot be averaged is refused now, not at the first sync
        return Parts(
            sharing,
            fan_out,
            attendance,
            converge,
            within,
            sync,
            covered,
            starts,
            Watch(caller, own_gradients=own_gradients, diverges=diverges),
            diverges=diverges,
            collinear=not own_gradients and not outer_steps and axes == fan_out.learning_rates,
            doubts=_doubts(starts, policies, replicas, sharing, fan_out, jointly)
            + _unseen_buffers(replicas, model, diverges),
        )
    except BaseException:
        for axis in axes:
            axis.close()
        raise


def _fan_out(
    caller: str,
    axes: Sequence[Axis],
    replicas: Replicas,
    sharing: GradientSharing,
    design: Design | None,
    seed: int,
    *,
    jointly: bool,
) -> FanOut:
    if replicas.here > 1:
        stack(caller, axes, replicas)
    spread_out = [axis.name for axis in axes if axis.spread > 0]
    chosen = choose_design(caller, design, spread_out, sharing.arms, jointly=jointly)
    refuse_shared_places(caller, axes)
    return FanOut(
        axes,
        arms=sharing.arms,
        arm=sharing.arm,
        here=replicas.here,
        design=chosen,
        seed=seed,
        # Round 0 of the paper deals everything alike, which a joint estimate could not take apart.
        first_round=1 if jointly else 0,
        refit=lambda arms: refit_design(caller, design, spread_out, arms, jointly=jointly),
    )


def _refuse_wire(caller: str, policies: Sequence[Policy], wire: str) -> None:
    """A horizon goes back to weights that all had, and its window's mean travels beside them."""
    if any(policy.follows_weights for policy in policies):
        raise ValueError(
            f"{caller}: wire={wire!r} rounds the weights' displacements alone, and a horizon's window mean, "
            "by which weights are judged and to which they go back, travels as it is; leave wire out, or "
            "probe"
        )


def _doubts(
    starts: Starts,
    policies: Sequence[Policy],
    replicas: Replicas,
    sharing: GradientSharing,
    fan_out: FanOut,
    jointly: bool,
) -> list[str]:
    """A collective where gradients are not shared."""
    said = [starts.doubt(), *(axis.doubt for axis in fan_out.axes)]
    said += [fan_out.doubt()] if jointly else []
    for policy in policies:
        said += policy.doubts()
        if replicas.several:
            said += doubts.blind_signals(
                policy.axes, own_gradients=sharing.own_gradients, by_training_loss=policy.needs_loss
            )
    return [doubt for doubt in said if doubt]


def _unseen_buffers(replicas: Replicas, model: nn.Module | None, diverges: bool) -> list[str]:
    if not replicas.several or replicas.here > 1 or model is not None or not diverges:
        return []
    said = "model= was not given: parameters are averaged, buffers (BatchNorm statistics) are not"
    if replicas.parts > 1:
        said += ", and weights that FSDP keeps gathered after a forward pass alone are not given up"
    return [said]
