"""A model and its loss as one module, whose parameters and buffers a pass replaces by one replica's."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hdet.replicas.stacked.base import LossFn

__all__ = ["Loss", "aliases_of"]


class Loss(nn.Module):
    """Makes of a model and a loss one module, whose parameters can be stood in for."""

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        self.model = model
        # A loss may be a module that holds the model: as a submodule it would be a second way to it.
        self._loss_fn = (loss_fn,)

    def forward(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        # No public name tells a buffer that is None from none, in torch 2.13 neither.
        held = [(name, module, dict(module._buffers)) for name, module in self.model.named_modules()]
        new: list[str] = []
        try:
            loss = self._loss_fn[0](self.model, batch)
        finally:
            for name, module, before in held:
                after = module._buffers
                odd = [key for key in {**before, **after} if before.get(key) is not after.get(key)]
                new += [f"{name}.{key}".lstrip(".") for key in odd]
                if odd:  # what stayed would be a slice of a pass that is over
                    after.clear()
                    after.update(before)
        if new:
            raise TypeError(
                f"StackedReplicas.losses: the forward pass must write buffers in place, got a new tensor in "
                f"{new[0]}, which would be lost; write self.{new[0].split('.')[-1]}.copy_(...)"
            )
        return loss


def aliases_of(model: nn.Module) -> dict[str, str]:
    """Every place of a parameter or buffer in the model's modules, and the first name of what is there."""
    names = {id(t): name for name, t in (*model.named_parameters(), *model.named_buffers())}
    places: dict[str, str] = {}
    for prefix, module in model.named_modules():  # each once, whatever names it has
        own = (
            *module.named_parameters(prefix, recurse=False, remove_duplicate=False),
            *module.named_buffers(prefix, recurse=False, remove_duplicate=False),
        )
        places |= {place: names[id(tensor)] for place, tensor in own}
    return places
