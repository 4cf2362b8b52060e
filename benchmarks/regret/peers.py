"""What else asks for no learning rate, each with the settings that its own documentation recommends.

Weight decay is that of torch's own AdamW also where a peer's default is another. A package that is not there
makes a run fail, with what to install, and nothing else. Each is built from the optimizer's name, the model,
the number of steps, and a function that gives the loss of a training batch.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # no public name covers all of its kinds
from torch.optim.lr_scheduler import CosineAnnealingLR

from benchmarks.regret.optimizers import MOMENTUM, WEIGHT_DECAY, build, rate
from benchmarks.regret.plan import DEFAULT_RATES
from benchmarks.regret.trainer import WARM_UP, Trainer, stepping

__all__ = ["PEERS", "greedy"]

TrainingLoss = Callable[[], Tensor]

# As many as schedule-free's README refreshes BatchNorm with.
_REFRESHED = 50


def _prodigy(name: str, model: nn.Module, steps: int, _: TrainingLoss) -> Trainer:
    """With the cosine schedule that its README recommends."""
    # Its constructor announces the weight decay on standard output.
    with redirect_stdout(io.StringIO()):
        optimizer = _peer("prodigyopt").Prodigy(
            model.parameters(), lr=1.0, weight_decay=WEIGHT_DECAY, safeguard_warmup=True
        )
    scheduler = CosineAnnealingLR(optimizer, T_max=steps)
    return Trainer([optimizer], stepping([scheduler]), lambda: rate([optimizer], "d", "lr"))


def _schedule_free(name: str, model: nn.Module, steps: int, training_loss: TrainingLoss) -> Trainer:
    """At the package's default learning rate, with the warm-up that its README recommends."""
    package = _peer("schedulefree")
    warm_up = max(1, int(WARM_UP * steps))
    if name == "adamw":
        optimizer = package.AdamWScheduleFree(
            model.parameters(), weight_decay=WEIGHT_DECAY, warmup_steps=warm_up
        )
    else:
        optimizer = package.SGDScheduleFree(model.parameters(), momentum=MOMENTUM, warmup_steps=warm_up)
    return _averaging(model, optimizer, training_loss, "scheduled_lr")


def _prodigy_schedule_free(name: str, model: nn.Module, steps: int, training_loss: TrainingLoss) -> Trainer:
    """With its defaults, which its README says should just work: lr 1, no warm-up, no schedule."""
    package = _peer("prodigyplus.prodigy_plus_schedulefree")
    with redirect_stdout(io.StringIO()):
        optimizer = package.ProdigyPlusScheduleFree(model.parameters(), lr=1.0, weight_decay=WEIGHT_DECAY)
    return _averaging(model, optimizer, training_loss, "d", "lr")


def _averaging(model: nn.Module, optimizer: Any, training_loss: TrainingLoss, *lr: str) -> Trainer:
    """An optimizer without a schedule whose result is an average that it holds."""
    optimizer.train()

    def finish() -> None:
        # The weights become the average x; running statistics are still those of y, where it took gradients.
        optimizer.eval()
        if any(isinstance(module, _NormBase) for module in model.modules()):
            model.train()
            with torch.no_grad():
                for _ in range(_REFRESHED):
                    training_loss()

    return Trainer([optimizer], lambda loss: None, lambda: rate([optimizer], *lr), finish)


def greedy(
    name: str,
    model: nn.Module,
    steps: int,
    _: TrainingLoss,
    *,
    min_lr: float = 1e-5,
    max_lr: float = 1.0,
) -> Trainer:
    """GreedyLR from torch's default rate, told the loss of every step, with the settings of its README.

    Those of its constructor hold the rate between 1e-3 and 1 and take every batch's luck for progress or
    none; where its README uses it without a Trainer it smooths over 50 losses and moves by a hundredth. It
    never goes below an upper bound that it began above, so that then it begins at the bound.
    """
    package = _peer("transformers.optimization", "'transformers>=5.4'")
    if not hasattr(package, "GreedyLR"):
        raise ModuleNotFoundError("this arm needs GreedyLR: pip install 'transformers>=5.4'")
    optimizers = build(name, model, min(DEFAULT_RATES[name], max_lr))
    settings = {"mode": "min", "factor": 0.99, "patience": 10, "smooth": True, "window_size": 50}
    schedulers = [
        package.GreedyLR(optimizer, min_lr=min_lr, max_lr=max_lr, **settings) for optimizer in optimizers
    ]

    def after_step(loss: Tensor) -> None:
        for scheduler in schedulers:
            scheduler.step(float(loss))

    return Trainer(optimizers, after_step, lambda: rate(optimizers, "lr"))


#: By arm.
PEERS: dict[str, Callable[[str, nn.Module, int, TrainingLoss], Trainer]] = {
    "prodigy": _prodigy,
    "prodigy-schedulefree": _prodigy_schedule_free,
    "schedule-free": _schedule_free,
    "greedy": greedy,
}


def _peer(name: str, what: str = "-r benchmarks/requirements.txt") -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = name.partition(".")[0]
        raise ModuleNotFoundError(f"this arm needs {missing}: pip install {what}") from error
