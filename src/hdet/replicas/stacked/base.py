"""What the optimizer of the rows and the recording of a pass ask of the replicas they belong to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from hdet.replicas.base import Replicas
from hdet.replicas.norms import row_norms
from hdet.replicas.stacked.stand_ins import StandIn

__all__ = ["LossFn", "Rows"]

#: From (model, batch) to a scalar.
LossFn = Callable[[nn.Module, Any], Tensor]


class Rows(Replicas):
    """Replicas that are rows of matrices in this process."""

    def norm_of(self, tensors: Sequence[Tensor]) -> float | Tensor:
        return row_norms(tensors, self.local_count)

    @property
    @abstractmethod
    def matrices(self) -> list[nn.Parameter]:
        """The trained parameters of all replicas, a matrix or more for each group."""

    @property
    @abstractmethod
    def modes(self) -> tuple[int, ...]:
        """The training flags of all modules, and how many numbers the replicas may differ in."""

    @abstractmethod
    def stand_in(self, owner: Any, attribute: str) -> StandIn:
        """A number that the forward pass reads as an attribute, one for each replica from now on."""

    @abstractmethod
    def keep_up_(self) -> None:
        """Follow numbers that somebody has written since the last pass; :meth:`losses` begins with it."""

    @abstractmethod
    def clip_grad_norm_(self, max_norm: float | Tensor) -> Tensor:
        """Clip the norm of every replica's gradient, at one norm or each at its own; the norms before."""

    @abstractmethod
    def losses(self, loss_fn: LossFn, batch: Any) -> Tensor:
        """The loss of every replica on its own part of a batch, one tensor of N with its graph."""

    @abstractmethod
    def backward(self, losses: Tensor) -> None:
        """The gradient of each replica's own loss, shared where gradients are."""

    @abstractmethod
    def gradients_of(self, losses: Tensor) -> list[Tensor]:
        """What :meth:`backward` would add to the gradient of each matrix."""

    @abstractmethod
    def share_gradients_(self) -> None:
        """Share what backward passes have added since the last call."""
