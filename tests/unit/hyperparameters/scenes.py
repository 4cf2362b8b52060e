"""What tests of hyperparameters train: ensembles of one weight, and a scene with all that can be explored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

import hdet
from hdet.history import SyncRecord
from tests.fakes import Alike, Attention

# ---------------------------------------------------------------------- ensembles of one weight


def weights(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(size, dtype=torch.float64)) for size in sizes]


def train(
    optimizer: Optimizer, ensemble: hdet.Ensemble, gradients: Sequence[float], seen: Callable[[], Any]
) -> tuple[SyncRecord, list[Any]]:
    """An interval, one step for each gradient; its record, and what was seen after every step."""
    observed, record = [seen()], None
    for gradient in gradients:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        observed.append(seen())
        record = ensemble.step(1.0)
    assert record is not None
    return record, observed


def explore(item: Any, rank: int = 1, size: int = 2, **options: Any) -> hdet.Ensemble:
    """An ensemble around a weight that matters to nobody."""
    optimizer = SGD(weights(1), lr=0.1)
    return hdet.Ensemble(optimizer, [item], process_group=Alike(rank, size), gradients="none", **options)


def values_of(ensemble: hdet.Ensemble) -> tuple[float, ...]:
    """The replicas' values of the one hyperparameter, as the next record has them."""
    optimizer = ensemble.optimizer
    record, _ = train(optimizer, ensemble, [0.0], lambda: None)
    return record.hyperparameters[0].values


def hold(place: dict[str, float]) -> hdet.Hyperparameter:
    return hdet.Hyperparameter(
        "x", lambda: place["x"], lambda v: place.update(x=v), scale="log", bounds=(0.0, 1.0)
    )


# ---------------------------------------------------------------------- all that can be explored


class Scene:
    """A model, a criterion, an optimizer and a scalar of the user's own: all that can be explored."""

    def __init__(self, kind: type[Optimizer] = SGD) -> None:
        torch.manual_seed(0)
        self.model = nn.ModuleDict(
            {
                "linear": nn.Linear(2, 2),
                **{name: nn.Dropout(0.1) for name in "abc"},
                "other": nn.Dropout(0.3),
                "number": Attention(0.1),
                "buffer": Attention(torch.tensor(0.1)),
            }
        )
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.own: dict[str, Any] = {"x": 0.1}
        self.linear: Any = self.model["linear"]
        groups = [
            {"params": [self.linear.weight], "weight_decay": 0.1},
            {"params": [self.linear.bias], "weight_decay": 0.2},
        ]
        options: Any = {"momentum": 0.9} if kind is SGD else {"betas": (0.9, 0.99)}
        self.optimizer: Optimizer = kind(groups, lr=0.1, **options)  # type: ignore[call-arg]

    def hyperparameter(self, name: str = "x", acts: Any = "forward", **options: Any) -> hdet.Hyperparameter:
        def read() -> Any:
            return self.own["x"]

        def write(value: float) -> None:
            self.own["x"] = value

        given = {"name": name, "read": read, "write": write, "bounds": (0.0, 1.0), "acts": acts, **options}
        return hdet.Hyperparameter(**given)

    def all(self) -> list[Any]:
        second = [] if isinstance(self.optimizer, SGD) else [hdet.Betas(2)]
        return [
            hdet.LearningRate(0.5),
            hdet.WeightDecay(each=True),
            hdet.Momentum(),
            *second,
            hdet.GradientClip(0.5),
            hdet.Dropout(self.model, layers=["a", "b", "c"]),
            hdet.Temperature(self.model, layers=["number"]),
            hdet.Temperature(self.model, layers=["buffer"], name="buffer"),
            hdet.LabelSmoothing(self.criterion),
            self.hyperparameter(),
        ]

    def explore(self, explored: Sequence[Any] | None = None, **options: Any) -> hdet.Ensemble:
        given = {"process_group": Alike(), "gradients": "none", **options}
        return hdet.Ensemble(self.optimizer, self.all() if explored is None else explored, **given)

    def read_in_forward(self) -> dict[str, Any]:
        """Bit for bit: repr tells all floats apart, and floats from integers."""
        model: Any = self.model
        dropout = [model[name].p for name in ("a", "b", "c", "other")]
        scales = [model["number"].scale, model["buffer"].scale.item()]
        smoothing = self.criterion.label_smoothing
        return {
            "dropout": repr(dropout),
            "scale": repr(scales),
            "loss": repr(smoothing),
            "own": repr(self.own),
        }

    def read_in_step(self) -> str:
        groups = self.optimizer.param_groups
        return repr([{k: v for k, v in group.items() if k != "params"} for group in groups])

    def hooks(self) -> tuple[int, int]:
        return len(self.optimizer._optimizer_step_pre_hooks), len(self.optimizer._optimizer_step_post_hooks)

    def values(self) -> tuple[dict[str, Any], str]:
        return self.read_in_forward(), self.read_in_step()

    def step(self, length: float = 1.0) -> None:
        for parameter in self.linear.parameters():
            parameter.grad = torch.full_like(parameter, length)
        self.optimizer.step()

    def raise_in_step(self) -> None:
        """Not before the replica's own values stand in the optimizer."""

        def closure() -> float:
            raise KeyError(self.read_in_step())

        self.optimizer.step(closure)
