"""Keeps the best of what is offered, and hands it over at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hdet.autolr.choice import Candidate, Choice
from hdet.autolr.kept import Kept
from hdet.probes import Probe
from hdet.probes.isolation import trained_norms
from hdet.replicas import Replicas

__all__ = ["Handed", "Keeper"]


@dataclass(frozen=True, slots=True)
class Handed:
    """What was handed over.

    Args:
        step: steps taken when these weights stood.
        kind: a window's ``"mean"``, the ``"iterate"`` that ended it, the ``"start"`` or the ``"end"`` of
            training.
        loss: on the half of the probe that chose them, and so a little too low.
        estimate: on the half that no choice has seen; NaN where there is none, or before it was measured.
        error: the standard error of ``estimate``.
    """

    step: int
    kind: str
    loss: float
    estimate: float = math.nan
    error: float = math.nan


class Keeper:
    """The choice, the copy that belongs to it, and the probe that decides.

    Args:
        probe: one half of its batches chooses, the other one judges what was chosen.
        model: whose weights they are.
        parameters: all that may ever be trained; they are known by their number.
        replicas: every rank brings batches of its own, and all choose alike.
        offload: whether the copy lies in the host's memory.
    """

    def __init__(
        self,
        probe: Probe,
        model: nn.Module,
        parameters: Sequence[Tensor],
        replicas: Replicas,
        *,
        offload: bool,
    ) -> None:
        self._probe = probe
        self._replicas = replicas
        self._kept = Kept(model, parameters, offload=offload)
        self.choice = Choice()
        #: Batch norms as training left them; a user may have frozen them before the weights are handed over.
        self._norms: list[nn.Module] = []

    def measure(self, count: int | None = None) -> list[float | Tensor]:
        """This rank's losses at the weights as they stand, on the first ``count`` of its batches; of several
        replicas in one process a tensor for each batch, which they have parts of."""
        return self._losses(self._probe.halves()[0][:count], "choice")

    def _losses(self, batches: Sequence[Any], of: str) -> list[float | Tensor]:
        here = self._replicas.local_count
        if here == 1:
            return [*self._probe.losses(batches, of=of)]
        rows = self._probe.losses_of_each(batches, here, of=of)
        return [torch.tensor(row, dtype=torch.float64) for row in rows]

    def measure_together(self) -> list[float]:
        """The losses of all ranks, as :meth:`measure` finds them on each. A collective."""
        return [loss for row in self._replicas.gather(self.measure()) for loss in row]

    def measure_deployed(self, *, refresh: bool) -> list[float | Tensor]:
        """As :meth:`measure`, as the weights would be deployed: with running statistics, if there are any;
        ``refresh`` makes those anew for weights that training has never run through."""
        batches = self._probe.halves()[0]
        if not self._probe.has_norms:
            return self.measure()
        self._norms = [*trained_norms(self._probe.model)]
        return [*self._probe.deployed_losses(batches, refresh=refresh, of="choice")]

    @property
    def batches(self) -> int:
        """On how many each of them measures."""
        return self._probe.choosing

    @property
    def replicas(self) -> int:
        """How many bring losses."""
        return self._replicas.size

    def follow(self, weights: Mapping[int, Tensor]) -> None:
        """What is trained from now on."""
        self._kept.join(weights)

    def offer(self, candidate: Candidate, weights: Mapping[int, Tensor]) -> bool:
        """Keep the weights, unless better ones were seen. The candidate's losses are those of all ranks."""
        self.choice, keep = self.choice.offered(candidate)
        if keep:
            self._kept.take(weights)
        return keep

    @property
    def best(self) -> Handed | None:
        """What would be handed over now."""
        kept = self.choice.kept
        return None if kept is None else Handed(kept.step, kept.kind, kept.loss)

    def hand_over_(self, *, standing: bool) -> Handed | None:
        """Write what was kept into the model; ``standing``: it stands there already. A collective."""
        best = self.best
        if best is None:
            return None
        if not standing:
            self.write_()
        self._replicas.deliver_()
        return Handed(best.step, best.kind, best.loss, *self._estimate())

    def _estimate(self) -> tuple[float, float]:
        """Mean and standard error over the batches of all ranks, who may hold unlike numbers of them."""
        other = self._probe.halves()[1]
        own: list[float | Tensor]
        if self._replicas.local_count > 1:  # no norms are among them
            own = self._losses(other, "estimate")
        else:
            own = [*self._probe.deployed_losses(other, refresh=False, of="estimate")]
        rows = self._replicas.gather([float(len(own)), sum(own), sum(x * x for x in own)])
        n, total, squares = (math.fsum(row[k] for row in rows) for k in range(3))
        if n == 0 or not math.isfinite(total):
            return math.nan, math.nan
        mean = total / n
        spread = max(squares / n - mean * mean, 0.0)
        return mean, math.sqrt(spread / (n - 1)) if n > 1 else math.nan

    def write_(self) -> None:
        """Write what was kept into the model.

        Batch norm's running statistics belong to the iterates; those of a mean are made anew from the batches
        that chose it.
        """
        if self.choice.kept is None:
            raise RuntimeError("nothing was kept, to be written into the model")
        self._kept.write_()
        if self.choice.kept.kind == "mean":
            self._probe.refresh_norms_(self._probe.halves()[0], self._norms or None)

    def forget(self) -> None:
        """Begin anew: what was kept is of other weights than those that are trained now."""
        self.choice = Choice()
        self._kept.clear()

    def bytes(self) -> int:
        """What the copy takes."""
        return self._kept.bytes()

    def state_dict(self) -> dict[str, Any]:
        """The choice and the copy."""
        kept = self._kept.state_dict()
        return {"choice": asdict(self.choice), "kept": kept, "replicas": self._replicas.size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off."""
        saved = Choice.from_dict(state["choice"])
        choice = saved.of_fewer(state["replicas"], self._replicas.size, self.batches)
        if choice is None:  # chosen by batches that cannot be compared
            self.forget()
            return
        self.choice = choice
        self._kept.load_state_dict(state["kept"])
