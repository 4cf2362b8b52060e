"""What a horizon says: records, errors, and what is logged."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from hdet.controllers import HorizonDecision, Window
from hdet.history import HorizonRecord
from hdet.hyperparameters import Axis, GroupLearningRate
from hdet.policies.base import Context
from hdet.policies.useless_probe import average
from hdet.probes import Probe
from hdet.schedules import Windows
from hdet.weights.parameters import every_parameter

__all__ = [
    "described",
    "never_moved",
    "record_of",
    "refuse",
    "refuse_frozen",
    "refuse_lost",
    "refuse_other_scope",
    "say_early_descent",
    "told_retreat",
    "what_rose",
]

logger = logging.getLogger("hdet")


def refuse(context: Context, axes: Sequence[Axis], probe: Probe, *, averaged: bool) -> None:
    """Raise TypeError for what a horizon cannot judge, ValueError for weights that are not there yet."""
    if any(weight.is_meta for weight in every_parameter(context.optimizer)):
        raise ValueError(
            f"{context.caller}: the weights must be there, and some are on the meta device; call "
            "model.to_empty(device=...) and load or initialise them first"
        )
    others = [axis.name for axis in axes if not isinstance(axis, GroupLearningRate)]
    if others:
        raise TypeError(
            f"{context.caller}: a horizon judges the learning rate alone, got {', '.join(others)}"
        )
    if context.replicas.here == 1:
        return
    if not averaged:
        raise TypeError(
            f"{context.caller}: a horizon judges the path of stacked replicas' mean, and with a spread each "
            f"at its own points, got {context.replicas.size} replicas in one process and a spread; leave it "
            "out, or use one process per replica"
        )
    if probe.has_norms:
        raise TypeError(
            f"{context.caller}: stacked replicas must have no running statistics to be chosen with, got a "
            "model with batch norm; use another norm, or one process per replica"
        )


def described(probe: Probe, windows: Windows, trained: int, snapshot: str, keep: str, copies: int) -> str:
    """Windows, probe and memory in one sentence; ``trained`` is the size of the trained weights."""
    grow = " and more" if windows.share else ""
    until = "" if windows.last is None else f", the search until step {windows.last}"
    # A window's start is kept with the optimizer's state, and so is the beginning, always with the host.
    device = copies + (keep == "device") + (snapshot == "device")
    host = (keep == "host") + (snapshot == "host") + (snapshot != "off")
    state = ", and the optimizer's state as often as it is kept" if snapshot != "off" else ""
    lengths = f"windows of {windows.first} steps{grow}{until}"
    memory = f"{_size(device * trained)} on the device, {_size(host * trained)} with the host{state}"
    return f"{lengths}; the probe looks at {probe.describe()}; memory beyond training: {memory}"


def _size(count: int) -> str:
    """
    >>> _size(999), _size(1_234_567), _size(2_000_000_000_000)
    ('999 bytes', '1.2 MB', '2000 GB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.{1 if count < 100 * unit else 0}f} {name}"
    return f"{count} bytes"


def refuse_frozen(caller: str, trained: Sequence[object]) -> None:
    """Raise ValueError where there is nothing to train."""
    if not trained:
        raise ValueError(
            f"{caller}: the optimizer must train something, and all its parameters are frozen; call "
            "requires_grad_() on some first"
        )


def refuse_other_scope(caller: str, saved: int, here: int) -> None:
    """Raise ValueError for a state that was saved with another scope."""
    if saved != here:
        raise ValueError(
            f"{caller}.load_state_dict: scope must be the one it was saved with: the state has {saved} "
            f"factors, this run {here}"
        )


def record_of(name: str, decision: HorizonDecision, window: Window) -> HorizonRecord:
    """A decision and the window it rests on, as the history keeps them."""
    return HorizonRecord(
        name=name,
        action=decision.action,
        speed=decision.speed,
        lag=decision.lag,
        tolerated=decision.tolerated,
        gap=decision.gap,
        progress=decision.progress,
        loss_previous=average(window.previous),
        loss_mean=average(window.mean),
        loss_end=average(window.end),
        why=decision.why,
    )


def what_rose(window: Window, *, first: bool) -> str:
    """Why training goes back."""
    if first:
        return f"the weights moved by {window.displacement:.3g} of their norm"
    return f"the probe's loss rose from {average(window.previous):.4g} to {average(window.mean):.4g}"


def refuse_lost(window: Window, where: str, tried: str) -> None:
    """Raise RuntimeError for weights that are lost, where going back has not helped, or is not possible."""
    if all(map(math.isfinite, (window.speed, *window.end))):
        return
    raise RuntimeError(
        f"{where} over the window, and going back is no way out ({tried}). Check the loss for NaN, the data "
        "from here on, and that the probe's batches are of the kind that is trained on; finish_() writes the "
        "best weights seen into the model"
    )


def told_retreat(step: int, *, anew: bool, slower: bool) -> str:
    """That training went back, and where to."""
    where = "from the beginning" if anew else "back to those weights"
    rate = ", below a third of the learning rate" if anew else ", learning rate times 0.33"
    return f"nothing better since step {step}: {where}{rate if slower else ', at what was moved since'}"


def never_moved(where: str, times: int) -> RuntimeError:
    """The optimizer steps and the weights stay."""
    return RuntimeError(
        f"{where}: the weights must move, and did not, although the learning rate was raised {times} times a "
        "hundredfold; does loss.backward() reach what the optimizer trains? If it does, scale the loss: of a "
        "gradient above 1e19 or below 1e-22 the square, which Adam divides by, is infinite or zero in float32"
    )


def say_early_descent(caller: str, step: int, share: float) -> None:
    """A schedule that falls from the first step leaves no time to find its size."""
    logger.warning(
        "%s: the schedule is below %d %% of its peak after %d steps: the search for its size ends here",
        caller,
        100 * share,
        step,
    )
