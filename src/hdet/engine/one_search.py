"""Two searches on one model: each would probe at weights that the other one moves, and go back alone.

What is refused is that both step in turn. One that is left lying about, as a notebook's cell does when it is
run again, is no obstacle.
"""

from __future__ import annotations

import weakref

from torch import nn

__all__ = ["OneSearch"]

#: Who stepped last on a model, and who before. Not kept at the model, which is pickled and copied.
_STEPPED: weakref.WeakKeyDictionary[nn.Module, list[weakref.ref[OneSearch]]] = weakref.WeakKeyDictionary()


class OneSearch:
    """One search's place among those that step on a model.

    Args:
        caller: begins the error.
        model: what it probes.
        what: whose learning rate it moves.
    """

    def __init__(self, caller: str, model: nn.Module, what: str) -> None:
        self._caller = caller
        self._model = model
        while isinstance(inner := getattr(self._model, "module", None), nn.Module):  # wrapped in DDP
            self._model = inner
        self._what = what
        self._here = weakref.ref(self)

    def step(self) -> None:
        """It steps. Raises RuntimeError where another one has stepped since it did so itself."""
        last = _STEPPED.get(self._model)
        if last and last[-1] is self._here:
            return
        others = [other for one in last or () if (other := one()) is not None and other is not self]
        if others and any(one is self._here for one in last or ()):
            raise RuntimeError(
                f"{self._caller}.step: one search must move all learning rates of a model, and two step on "
                f"{type(self._model).__name__} in turn, of {self._what} and of {others[-1]._what}: each "
                f"probes at weights that the other one moves, and goes back alone; give all optimizers to "
                f"one: {self._caller}([first, second], …)"
            )
        _STEPPED[self._model] = [*(last or [])[-1:], self._here]
