"""What a search is given: refused where it cannot work, and doubted where it hardly can."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hdet.autolr.rule import HorizonController
from hdet.autolr.shapes import SHAPES
from hdet.loop.optimizers import JointOptimizer, parts_of, unwrapped
from hdet.probes import Probe
from hdet.replicas.stacked.optimizer import StackedOptimizer

__all__ = [
    "LEAST_STEPS",
    "check",
    "check_offload",
    "doubt",
    "shortest_window",
    "take_optimizers",
]

logger = logging.getLogger("hdet")

#: Fewer steps than this hold too few windows for any decision.
LEAST_STEPS = 40
#: The shortest window; momentum that remembers more steps than twice as many makes it longer.
_FIRST = 10


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
    if memory <= 2 * _FIRST:
        return _FIRST
    longest = math.inf if total_steps is None else max(total_steps // 8, _FIRST)
    return round(min(memory, longest))


def check(
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
    if not isinstance(probe, Probe):
        raise TypeError(
            f"{caller}: probe must be a hdet.Probe, got {type(probe).__name__}; hdet.Probe(loss_fn, batches, "
            "model=model) makes one"
        )
    _check_optimizer(caller, optimizer)
    if total_steps is not None and (not isinstance(total_steps, int) or total_steps < LEAST_STEPS):
        raise ValueError(
            f"{caller}: total_steps must be an integer of at least {LEAST_STEPS}, or None to run open-ended, "
            f"got {total_steps!r}"
        )
    _check_schedule(caller, optimizer, schedule, total_steps)
    if rule is not None and not isinstance(rule, HorizonController):
        raise TypeError(
            f"{caller}: rule must be a hdet.autolr.rule.HorizonController, got {type(rule).__name__}"
        )
    if patience is not None and (not isinstance(patience, int) or patience < 1):
        raise ValueError(f"{caller}: patience must be an integer of at least 1, or None, got {patience!r}")
    check_offload(caller, offload)


def check_offload(caller: str, offload: object) -> None:
    """Raise TypeError for anything but True and False."""
    if not isinstance(offload, bool):
        raise TypeError(f"{caller}: offload must be True or False, got {offload!r}")


def _refuse_closures(caller: str, optimizer: Optimizer) -> None:
    """Raise TypeError for an optimizer that takes no step of which a rate could be judged."""
    for part in parts_of(optimizer):
        if any(kind.__name__ == "LBFGS" for kind in type(part).__mro__):
            raise TypeError(
                f"{caller}: optimizer must take one step on one gradient, got LBFGS, whose step evaluates a "
                f"closure many times, on one batch, and has no rate to judge; use it without {caller}, "
                "with line_search_fn='strong_wolfe', or another optimizer, such as AdamW"
            )


def _check_optimizer(caller: str, optimizer: Optimizer) -> None:
    _refuse_closures(caller, optimizer)
    for i, group in enumerate(optimizer.param_groups):
        lr = float(group["lr"])
        if not (math.isfinite(lr) and lr > 0):
            raise ValueError(
                f"{caller}: the groups' lr must be finite and > 0, for their ratios are kept, got {lr} in "
                f"group {i}; give another (a schedule may not begin at zero; after a run that has come down "
                "to zero, make the optimizer anew), or freeze it"
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


def doubt(caller: str, optimizer: Optimizer, probe: Probe) -> list[str]:
    """What a user should know before training begins."""
    said = [
        f"optimizer {type(part).__name__} brings a learning rate of its own ({sign}): {caller} moves a "
        "factor on it while it moves itself, and neither knows of the other; use a plain optimizer, such as "
        f"AdamW, or leave {caller} away"
        for part in parts_of(optimizer)
        if (sign := _own_rate(part))
    ]
    if probe.choosing == 1:
        only = probe.holds == 1
        said.append(
            f"the probe has {'one batch' if only else 'one batch to choose by'}: decisions have no standard "
            f"error{', and there is no honest estimate of what finish_ hands over' if only else ''}; give "
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
