"""``Guard``: rollbacks alone, beside any optimizer and any schedule. Weights that are not finite, or a loss
that has risen far, take training back to the last copy that was well."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from hdet.autolr.choice import mean_of
from hdet.autolr.clock import Clock
from hdet.autolr.search import check_model, check_offload, check_probe, take_optimizers
from hdet.autolr.snapshot import Snapshot
from hdet.autolr.window import WindowLoop
from hdet.loop.checks import check_sync_every
from hdet.loop.converge import FiniteBuffers
from hdet.loop.optimizers import check_trains, every_parameter, parts_of
from hdet.loop.state import Owner, check_fits
from hdet.loop.windows import Windows
from hdet.probes import Probe
from hdet.removed import explains_calls
from hdet.replicas import ProcessGroup, local, replicas_of, state_of

__all__ = ["Guard", "has_risen"]

logger = logging.getLogger("hdet")

#: So many rollbacks in a row to one copy. A loss that still rises then is taken for a change of the data, and
#: weights that are not finite raise.
_IN_A_ROW = 3
#: A loss has risen far beyond so many deviations of what is compared, and beyond this share of all that was
#: gained: a smaller rise may be the price of exploring, or harder data.
_DEVIATIONS, _SHARE_OF_GAIN = 3.0, 0.5


class Guard:
    """Looks at training every so many steps, copies it where it is well, and returns to the copy where not.

    The learning rate is yours, and so is the schedule, which goes on: the data that follow are others, and
    most explosions do not come again. One that comes three times in a row is logged, and raises if the
    weights are not finite.

    A look judges the probe's losses, on the same batches each time; without a probe, the training losses
    given to :meth:`step`. Memory: weights, optimizer state and buffers once, by default in the host's memory.

    Args:
        optimizer: one, or a list of those that step together.
        model: what is trained; its buffers are copied, too.
        probe: measures the loss on batches that are not trained on; None judges training losses.
        sync_every: steps between two looks; at most so many are lost.
        offload: keep the copy in the host's (pinned) memory; False keeps it on the device.
        process_group: the ranks that train together, by shared gradients; the default group if None.

    >>> import torch
    >>> model = torch.nn.Linear(4, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    >>> guard = Guard(optimizer, model=model, sync_every=10)
    >>> for step in range(60):
    ...     x = torch.randn(32, 4)
    ...     loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    ...     (loss * (float("nan") if step == 34 else 1)).backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    ...     went_back = guard.step(loss)
    ...     if went_back:
    ...         print(step, went_back)
    35 the weights are not finite: back to step 30
    >>> bool(torch.isfinite(model.weight).all()), guard.backs
    (True, 1)
    """

    @explains_calls
    def __init__(
        self,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        model: nn.Module,
        probe: Probe | None = None,
        sync_every: int = 100,
        offload: bool = True,
        process_group: ProcessGroup | None = None,
    ) -> None:
        every = take_optimizers("Guard", optimizer)
        check_model("Guard", model)
        check_probe("Guard", probe, required=False)
        check_offload("Guard", offload)
        check_sync_every("Guard", sync_every)
        self._optimizer, self._model, self._probe = every, model, probe
        self._replicas = replicas_of("Guard", every, model=model, process_group=process_group)
        if self._replicas.local_count == 1:
            check_trains("Guard", every, model)
        judged = "training losses" if probe is None else f"a probe of {probe.choosing} batches"
        self._replicas.agree("Guard", {"sync_every": repr(sync_every), "judged by": judged})
        self._window = WindowLoop(Clock(Windows(first=sync_every, share=0.0)), "Guard")
        self._window.weights = [local(parameter) for parameter in every_parameter(every)]
        self._window.clock.begin(0)
        self._window.open()
        self._snapshot = Snapshot(every, model, offload=offload, replicas=self._replicas)
        #: Steps counted so far, and how often training was taken back.
        self.steps = self.backs = 0
        self._copied_at: int | None = None
        self._in_a_row = 0
        self._first: float | None = None
        self._before: list[float] = []
        self._losses: list[Tensor | float] = []
        self._given = FiniteBuffers()
        # What the first step finds, whatever is loaded until then.
        self._handles = [part.register_step_pre_hook(lambda *_: self._begin()) for part in parts_of(every)]

    def _begin(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._given.judged([local(buffer) for buffer in self._model.buffers()])
        if self._probe is not None and self._first is None:
            self._before = self._now()
            self._first = mean_of(self._before)
        self._copy()

    def step(self, loss: Tensor | SupportsFloat | None = None) -> str | None:
        """Call once after every ``optimizer.step()``, with its training loss where there is no probe. Returns
        a sentence where training was taken back. Between looks nothing waits for the device."""
        self.steps += 1
        if self._probe is None:
            if loss is None:
                raise ValueError(
                    "Guard.step: loss must be given where there is no probe, got None; call step(loss), or "
                    "give Guard a probe"
                )
            self._losses.append(loss.detach().clone() if isinstance(loss, Tensor) else float(loss))
        return self._look() if self._window.add() else None

    def _look(self) -> str | None:
        finite = self._is_finite()
        now = self._now() if finite else []
        self._losses = []
        if finite and not self._rose(now):
            self._in_a_row = 0
            self._accept(now)
            return None
        what = (
            f"the loss rose from {mean_of(self._before):.4g} to {mean_of(now):.4g}"
            if finite
            else "the weights are not finite"
        )
        if self._in_a_row < _IN_A_ROW:
            return self._back(what)
        if not now or not all(map(math.isfinite, now)):
            raise RuntimeError(
                f"Guard.step: step {self.steps}: {what}, {_IN_A_ROW} times after training was taken back "
                f"to step {self._copied_at}; lower the learning rate, clip gradients, or look at the data"
            )
        logger.warning("Guard: step %d: %s once more: taken for a change of the data", self.steps, what)
        self._in_a_row = 0
        self._accept(now)
        return None

    def _rose(self, now: Sequence[float]) -> bool:
        if self._first is None:  # the first interval of training losses: there is nothing to compare with
            return not all(map(math.isfinite, now))
        return has_risen(self._first, self._before, now, paired=self._probe is not None)

    def _back(self, what: str) -> str:
        self._in_a_row += 1
        self.backs += 1
        self._snapshot.restore()
        said = f"{what}: back to step {self._copied_at}"
        if self._replicas.world_rank == 0:
            logger.warning("Guard: step %d: %s", self.steps, said)
        self._open()
        return said

    def _accept(self, now: list[float]) -> None:
        if self._first is None:
            self._first = mean_of(now)
        self._before = now
        self._copy()

    def _copy(self) -> None:
        self._snapshot.take()
        self._copied_at = self.steps
        self._open()

    def _open(self) -> None:
        """The next interval. One process alone notices an explosion before its end; several would have to
        agree."""
        size = float(get_total_norm([weight.detach() for weight in self._window.weights]))
        self._window.clock.begin(self.steps)
        self._window.open(size if self._replicas.world_size == 1 else 0.0)

    def _now(self) -> list[float]:
        """The losses of the probe, or of training since the last look; the mean over all ranks of each, so
        that they decide alike."""
        if self._probe is not None:
            own = self._probe.losses(self._probe.halves()[0], of="choice")
        else:
            on_device = [loss.reshape(()) for loss in self._losses if isinstance(loss, Tensor)]
            read = iter(torch.stack(on_device).tolist() if on_device else ())
            own = [next(read) if isinstance(loss, Tensor) else loss for loss in self._losses]
        return [mean_of(column) for column in zip(*self._replicas.gather(own), strict=True)]

    def _is_finite(self) -> bool:
        """Weights, buffers and optimizer state, on all ranks; one wait for the device."""
        state = state_of(self._optimizer)
        every = [*self._window.weights, *self._given.judged([local(b) for b in self._model.buffers()])]
        every += [local(value) for of in state.values() for value in of.values() if isinstance(value, Tensor)]
        # Quantised state is made of codes, which are always finite.
        plain = [tensor.detach() for tensor in every if not hasattr(tensor, "__tensor_flatten__")]
        floating = [tensor for tensor in plain if tensor.is_floating_point() and tensor.numel()]
        norm = float(get_total_norm(floating, norm_type=math.inf))
        rows = self._replicas.gather([float(not math.isfinite(norm))])
        return not any(row[0] for row in rows)

    def state_dict(self) -> dict[str, Any]:
        """Numbers. The copy is not among them: a resumed run copies the weights it begins with."""
        return self._owner.pack(self._saved())

    @property
    def _owner(self) -> Owner:
        judged = {"judged by": "training losses" if self._probe is None else "a probe"}
        return Owner("Guard", judged, self._replicas, ())

    def _saved(self) -> dict[str, Any]:
        losses = {"first": self._first, "before": list(self._before)}
        return {"steps": self.steps, "backs": self.backs, **losses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting; call it before the first step. Raises for what cannot be loaded, and then changes
        nothing."""
        saved, _ = self._owner.unpack(state)
        check_fits("Guard", self._saved(), saved)
        self.steps, self.backs = saved["steps"], saved["backs"]
        self._first, self._before = saved["first"], list(saved["before"])


def has_risen(first: float, before: Sequence[float], now: Sequence[float], *, paired: bool) -> bool:
    """Whether ``now`` lies far above ``before``, where ``first`` is the mean that the run began with.

    ``paired``: the k-th of each are of the same samples; else both are losses of training, each on its own.

    >>> has_risen(4.0, [1.0, 1.2, 1.1], [1.3, 1.5, 1.4], paired=True)  # of 2.9 gained, 0.3 was lost
    False
    >>> has_risen(4.0, [1.0, 1.2, 1.1], [3.0, 3.3, 3.0], paired=True)
    True
    >>> has_risen(4.0, [1.0, 1.2, 1.1], [1.0, float("nan"), 1.1], paired=True)
    True
    """
    if not all(map(math.isfinite, now)):
        return True
    if paired:
        rises = [b - a for a, b in zip(before, now, strict=True)]
        rise, noise = mean_of(rises), _deviation(rises)
    else:
        rise, noise = mean_of(now) - mean_of(before), _deviation(before)
    gained = max(first - mean_of(before), 0.0)
    return rise > _SHARE_OF_GAIN * gained + _DEVIATIONS * noise and rise > 0


def _deviation(values: Sequence[float]) -> float:
    mean = mean_of(values)
    return math.hypot(*(value - mean for value in values)) / math.sqrt(max(len(values) - 1, 1))
