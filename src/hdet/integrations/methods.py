"""``method=``, the one argument that every framework has: what finds the learning rate, by name, or a
callable that builds it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hdet.autolr.auto_lr import AutoLR
from hdet.autolr.search import Search
from hdet.history import History
from hdet.published.one_cycle import OneCycleAutoLR
from hdet.tuning.auto_tune import AutoTune

__all__ = [
    "Method",
    "begin_own_gradients",
    "build",
    "builder_of",
    "cools_down",
    "ddp_of",
    "in_ddp",
    "needs",
    "own_gradients",
    "sharing_of",
    "wants",
]

logger = logging.getLogger("hdet")

Method = Literal["autolr", "autotune", "published"] | Callable[..., Any]


def published(
    optimizer: Optimizer | list[Optimizer],
    total_steps: int | None,
    model: nn.Module,
    history: History | None = None,
    **changed: Any,
) -> OneCycleAutoLR:
    """The paper's method around the optimizer's own learning rates: its α and σ, auto-LR after a third of the
    run, T = 1000 or a hundredth of a shorter run. The rules are the corrected ones; what is given wins."""
    if isinstance(optimizer, (list, tuple)):
        raise ValueError(
            f"method='published' takes one optimizer, got {len(optimizer)}; 'autolr' takes several"
        )
    if total_steps is None:
        raise ValueError(
            "method='published' needs a number of steps, got none: its curve has an end; limit training by "
            "steps or epochs"
        )
    # A run before this one has left its peak there, and a lr that has come down to nothing.
    peaks = [float(group.get("max_lr", group["lr"])) for group in optimizer.param_groups]
    fitting: dict[str, Any] = {
        "ensemble_lr_spread_ratio": 1 / 9,
        "model_sync_interval": max(1, min(1000, total_steps // 100)),
        "enable_auto_lr": True,
        "auto_lr_warmup_steps": total_steps // 3,
        "loss_scale": 0.1,
    }
    return OneCycleAutoLR(
        optimizer, peaks, total_steps, model=model, history=history, **{**fitting, **changed}
    )


_METHODS: dict[str, Callable[..., Any]] = {"autolr": AutoLR, "autotune": AutoTune, "published": published}


def builder_of(caller: str, method: object) -> Callable[..., Any]:
    """What builds the door."""
    if callable(method):
        return method
    if not isinstance(method, str) or method not in _METHODS:
        raise ValueError(
            f"{caller}: method must be {', '.join(map(repr, _METHODS))} or a callable that builds a door, "
            f"got {method!r}; for other settings write functools.partial(hdet.AutoLR, schedule='cosine')"
        )
    return _METHODS[method]


def wants(make: Callable[..., Any], name: str) -> bool:
    """Whether it takes an argument of this name that a partial has not bound."""
    return name in inspect.signature(make).parameters and name not in getattr(make, "keywords", {})


def needs(make: Callable[..., Any], name: str) -> bool:
    """Whether it cannot do without."""
    return wants(make, name) and inspect.signature(make).parameters[name].default is inspect.Parameter.empty


def build(make: Callable[..., Any], optimizer: Any, **given: Any) -> Any:
    """The door, from the optimizer and whatever of ``given`` it takes by name."""
    return make(optimizer, **{name: value for name, value in given.items() if wants(make, name)})


def sharing_of(make: Callable[..., Any]) -> dict[str, Any]:
    """What AutoTune must be told where a framework's DDP is out of its sight: gradients are shared first."""
    tunes = getattr(make, "func", make) is AutoTune and wants(make, "gradients")
    return {"gradients": "switch"} if tunes else {}


def cools_down(caller: str, door: Any, who: str) -> bool:
    """Whether training goes on to decay where ``who`` asks for an early stop: before the decay, weights are
    far from where they end. Every rank calls it at the same step."""
    if not isinstance(door, Search):
        return False
    if door.end_early(f"{who} asks to stop"):
        return True
    if not door.finished and door.replicas.world_rank == 0:
        logger.warning(
            "%s: %s asks to stop at step %d, before the learning rate has decayed, and it cannot decay now: "
            "that takes the schedule 'wsd' and a first window that has ended",
            *(caller, who, door.steps),
        )
    return False


# ---------------------------------------------------------------------- gradients of their own


def in_ddp(accelerator: Any) -> bool:
    """Whether an Accelerator wraps models in DDP: on several devices of any kind, and not where it shards."""
    return str(accelerator.distributed_type.value).startswith("MULTI_")


def own_gradients(model: nn.Module, door: Any) -> AbstractContextManager[None]:
    """Within, a model in DDP shares no gradients, if the door has each process train on its own. DDP has made
    the start weights equal, and hdet averages weights at every sync."""
    ddp = ddp_of(model) if getattr(door, "trains_alone", False) else None
    return nullcontext() if ddp is None else ddp.no_sync()


def ddp_of(model: nn.Module) -> DistributedDataParallel | None:
    """The model in DDP, also beneath torch.compile; None where it is in none."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, DistributedDataParallel) else None


def begin_own_gradients(caller: str, door: Any, rank: int, processes: int, scaler: object = None) -> None:
    """What rank 0 says before training, in one line, if the door will have each process train on its own
    gradients; raises for what cannot work."""
    later = getattr(door, "switches", False)
    if not (later or getattr(door, "trains_alone", False)):
        return
    if scaler is not None:
        raise ValueError(
            f"{caller}: gradients of their own need steps that all processes take, got a GradScaler, which "
            "lets one process skip a step alone; use bf16 or full precision"
        )
    if rank == 0:
        logger.info(
            "%s: %seach of %d processes trains on gradients of its own, which DDP does not average; hdet "
            "averages the weights at every sync",
            caller,
            "from the first window on that does not improve " if later else "",
            processes,
        )
