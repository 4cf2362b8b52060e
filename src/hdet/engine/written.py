"""Whether what stands in ``group["lr"]`` is still what was written there.

Another scheduler, or a resume that has forgotten our state, trains at other rates than we believe, and nobody
would know. A float is compared at once. A tensor lies on the device: that somebody has written to it is seen
by its version, without a wait, and its value is read at the next sync.

A step at zero is nobody's schedule: ``torch.distributed.checkpoint`` takes one, to have an optimizer make the
state that it is about to load. A schedule that begins at zero is seen in its next step.
"""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["WrittenRates"]


class WrittenRates:
    """The learning rates as they were left after the last step.

    Args:
        optimizer: in whose groups they stand.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        #: For each group what was left there, and of a tensor where it lies and its version.
        self._left: list[tuple[float | Tensor, Tensor | None, int]] = []
        #: Of a tensor that was written to since: its group, what was left, and what was found.
        self._suspect: tuple[int, Tensor, Tensor] | None = None

    def note(self) -> None:
        """What stands there now is right. It is looked at once: our own fan-out writes there, too."""
        self._left = [_left(group["lr"]) for group in self._optimizer.param_groups]

    def forget(self) -> None:
        """Others may write what they like until the next :meth:`note`."""
        self._left, self._suspect = [], None

    def look(self) -> str:
        """The optimizer is about to step: what was written by somebody else, in words, as far as known."""
        left, self._left = self._left, []
        # Groups that were added since have nothing to be compared with; who loads a state replaces them all.
        for i, (value, place, version) in enumerate(left[: len(self._optimizer.param_groups)]):
            now = self._optimizer.param_groups[i]["lr"]
            if isinstance(value, Tensor) and isinstance(now, Tensor):
                if (now is not place or _version(now) != version) and self._suspect is None:
                    self._suspect = i, value, now.detach().clone()
            elif float(now) not in (float(value), 0.0):
                return _told(i, float(value), float(now))
        return ""

    def look_back(self) -> str:
        """At a sync, where waiting for the device costs nothing: the same of learning rates on it."""
        if self._suspect is None:
            return ""
        (i, left, found), self._suspect = self._suspect, None
        return "" if float(found) in (float(left), 0.0) else _told(i, float(left), float(found))


def _left(lr: float | Tensor) -> tuple[float | Tensor, Tensor | None, int]:
    if isinstance(lr, Tensor):
        return lr.detach().clone(), lr, _version(lr)
    return lr, None, 0


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _told(group: int, left: float, found: float) -> str:
    return (
        f"group {group} trains at a learning rate of {found:.6g}, and {left:.6g} was written there: another "
        "scheduler writes over it (step one of the two), or a run that was resumed has loaded the "
        "optimizer's state and not this one's (call load_state_dict after the optimizer's)"
    )
