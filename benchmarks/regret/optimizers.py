"""The optimizers whose learning rate is swept, or not given: each as a list, since Muon comes with AdamW.

Momentum is 0.9 and weight decay that of torch's own AdamW; Lion's decay is ten times that, since its rate is
about a tenth, as its paper advises, and Muon has its own momentum of 0.95.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from benchmarks.regret.lion import Lion

__all__ = ["MOMENTUM", "WEIGHT_DECAY", "build", "hidden_matrices", "rate"]

MOMENTUM, WEIGHT_DECAY = 0.9, 0.01
_LION_DECAY = 0.1


def build(
    name: str, model: nn.Module, lr: float, wrap: Callable[[Any], Any] = lambda kind: kind
) -> list[Any]:
    """All at one rate; ``wrap`` is called with each class before it is made."""
    if name == "adamw":
        return [_adamw(model.parameters(), lr, wrap)]
    if name == "sgd":
        return [wrap(SGD)(model.parameters(), lr=lr, momentum=MOMENTUM, fused=True)]
    if name == "lion":
        return [wrap(Lion)(model.parameters(), lr=lr, weight_decay=_LION_DECAY)]
    if name == "muon":
        return _muon(model, lr, wrap)
    raise ValueError(f"optimizer must be adamw, sgd, lion or muon, got {name!r}")


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """The trained weights of linear layers but for the head: what Muon is for.

    The head is whichever layer with a matrix, a table or a kernel was made last. Everything else is not
    Muon's: embeddings, convolutions, vectors.
    """
    layers = [module for module in model.modules() if _dimensions(module) >= 2]
    return [
        layer.weight for layer in layers[:-1] if isinstance(layer, nn.Linear) and layer.weight.requires_grad
    ]


def rate(optimizers: Sequence[Any], *names: str) -> float:
    """The learning rate in use, a product of some values of a group; the highest of all groups."""
    products = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            product = 1.0
            for name in names:
                product *= float(group[name])
            products.append(product)
    return max(products)


def _adamw(parameters: Any, lr: float, wrap: Callable[[Any], Any]) -> Any:
    return wrap(AdamW)(parameters, lr=lr, weight_decay=WEIGHT_DECAY, fused=True)


def _muon(model: nn.Module, lr: float, wrap: Callable[[Any], Any]) -> list[Any]:
    """One rate for both, since the update of a matrix is scaled to the size of AdamW's."""
    if not hasattr(torch.optim, "Muon"):
        raise ValueError(f"muon needs torch 2.9 or later, got {torch.__version__}")
    matrices = hidden_matrices(model)
    if not matrices:
        raise ValueError("muon needs a linear layer before the last one, and the model has none")
    mine = {id(matrix) for matrix in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in mine and weight.requires_grad]
    muon = wrap(torch.optim.Muon)(matrices, lr=lr, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw")
    return [muon, _adamw(others, lr, wrap)] if others else [muon]


def _dimensions(module: nn.Module) -> int:
    weight = getattr(module, "weight", None)
    return weight.ndim if isinstance(weight, nn.Parameter) else 0
