"""``Guard``: the way back alone, beside any optimizer and any schedule. Weights that are no numbers any more,
or a loss that has risen far, take training back to where it was well."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from hdet.autolr.alarm import Alarm
from hdet.autolr.arguments import check_offload, take_optimizers
from hdet.autolr.choice import mean_of
from hdet.autolr.rise import has_risen
from hdet.autolr.snapshot import Snapshot
from hdet.loop.checks import check_sync_every
from hdet.loop.converge import FiniteBuffers
from hdet.loop.optimizers import parts_of
from hdet.loop.state import Owner, check_fits
from hdet.probes import Probe
from hdet.removed import refuse_removed
from hdet.replicas import ProcessGroup, local, replicas_of, state_of

__all__ = ["Guard"]

logger = logging.getLogger("hdet")

#: So often in a row training goes back to one place. What still rises then is taken for a change of the data,
#: and what is not finite for the end.
_IN_A_ROW = 3


class Guard:
    """Looks at training every so many steps, keeps a copy where it is well, and goes back there where not.

    The learning rate is yours, and so is the schedule, which goes on: the data that follow are others, and
    most explosions do not come again. One that comes three times in a row is told, and raises if the weights
    are not finite.

    A look judges the probe's losses, on the same batches each time; without a probe, the training losses
    given to :meth:`step`. Memory: weights, optimizer state and buffers once, by default with the host.

    Args:
        optimizer: one, or a list of those that step together.
        model: what is trained; its buffers are kept, too.
        probe: measures the loss on batches that are not trained on; None judges training losses.
        sync_every: steps between two looks, and at most so many are lost.
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

    @refuse_removed
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
        _check(model, probe, offload)
        check_sync_every("Guard", sync_every)
        self._optimizer, self._model, self._probe, self._every = every, model, probe, sync_every
        self._replicas = replicas_of("Guard", every, model=model, process_group=process_group)
        judged = "training losses" if probe is None else f"a probe of {probe.choosing} batches"
        self._replicas.agree("Guard", {"sync_every": repr(sync_every), "judged by": judged})
        self._weights = [local(p) for group in every.param_groups for p in group["params"]]
        self._snapshot = Snapshot(self._weights, every, model, offload=offload)
        #: Steps counted so far, and how often training was taken back.
        self.steps = self.backs = 0
        #: Of the copy, and where this interval began.
        self._kept_at: int | None = None
        self._since = 0
        self._in_a_row = 0
        self._first: float | None = None
        self._before: list[float] = []
        self._losses: list[Tensor | float] = []
        self._alarm: Alarm | None = None
        self._given = FiniteBuffers()
        # What the first step finds, whatever is loaded until then.
        self._handles = [part.register_step_pre_hook(lambda *_: self._begin()) for part in parts_of(every)]

    def _begin(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._given.judged([local(buffer) for buffer in self._model.buffers()])
        if self._kept_at is None:
            if self._probe is not None and self._first is None:
                self._before = self._together(self._probe.losses(self._probe.halves()[0], of="choice"))
                self._first = mean_of(self._before)
            self._keep()

    def step(self, loss: Tensor | SupportsFloat | None = None) -> str | None:
        """Call once after every ``optimizer.step()``, with its training loss where there is no probe. Says so
        where training was taken back. Between looks nothing waits for the device."""
        self.steps += 1
        if self._probe is None:
            if loss is None:
                raise ValueError(
                    "Guard.step: loss must be given where there is no probe, got None; call step(loss), or "
                    "give Guard a probe"
                )
            self._losses.append(loss.detach().clone() if isinstance(loss, Tensor) else float(loss))
        rings = self._alarm is not None and self._alarm.rings()
        return self._look() if rings or self.steps - self._since >= self._every else None

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
        return self._back(what, now)

    def _rose(self, now: Sequence[float]) -> bool:
        if self._first is None:  # the first interval of training losses: there is nothing to compare with
            return not all(map(math.isfinite, now))
        return has_risen(self._first, self._before, now, paired=self._probe is not None)

    def _back(self, what: str, now: list[float]) -> str | None:
        finite = bool(now) and all(map(math.isfinite, now))
        if self._in_a_row >= _IN_A_ROW:
            if not finite:
                raise RuntimeError(
                    f"Guard.step: step {self.steps}: {what}, {_IN_A_ROW} times after training was taken back "
                    f"to step {self._kept_at}; lower the learning rate, clip gradients, or look at the data"
                )
            logger.warning("Guard: step %d: %s once more: taken for a change of the data", self.steps, what)
            self._in_a_row = 0
            self._accept(now)
            return None
        self._in_a_row += 1
        self.backs += 1
        self._snapshot.restore()
        said = f"{what}: back to step {self._kept_at}"
        if self._replicas.world_rank == 0:
            logger.warning("Guard: step %d: %s", self.steps, said)
        self._watch()
        return said

    def _accept(self, now: list[float]) -> None:
        if self._first is None:
            self._first = mean_of(now)
        self._before = now
        self._keep()

    def _keep(self) -> None:
        self._snapshot.take()
        self._kept_at = self.steps
        self._watch()

    def _watch(self) -> None:
        """An interval begins. One process alone notices an explosion before its end; several would have to
        agree."""
        self._since = self.steps
        size = float(get_total_norm([weight.detach() for weight in self._weights]))
        alone = self._replicas.world_size == 1 and size > 0 and self._every > 1
        self._alarm = Alarm(self._weights, size, self._every) if alone else None

    def _now(self) -> list[float]:
        if self._probe is not None:
            return self._together(self._probe.losses(self._probe.halves()[0], of="choice"))
        on_device = [loss for loss in self._losses if isinstance(loss, Tensor)]
        read = iter(torch.stack([loss.reshape(()) for loss in on_device]).tolist() if on_device else ())
        return self._together([next(read) if isinstance(loss, Tensor) else loss for loss in self._losses])

    def _together(self, losses: Sequence[float]) -> list[float]:
        """The mean over all ranks of each: they decide alike."""
        rows = self._replicas.gather(list(losses))
        return [mean_of(column) for column in zip(*rows, strict=True)]

    def _is_finite(self) -> bool:
        """Weights, buffers and optimizer state, on all ranks; one wait for the device."""
        state = state_of(self._optimizer)
        every = [*self._weights, *self._given.judged([local(buffer) for buffer in self._model.buffers()])]
        every += [local(value) for of in state.values() for value in of.values() if isinstance(value, Tensor)]
        # Quantised state is made of codes, which are always finite.
        plain = [tensor.detach() for tensor in every if not hasattr(tensor, "__tensor_flatten__")]
        floating = [tensor for tensor in plain if tensor.is_floating_point() and tensor.numel()]
        norm = float(get_total_norm(floating, norm_type=math.inf))
        rows = self._replicas.gather([float(not math.isfinite(norm))])
        return not any(row[0] for row in rows)

    def state_dict(self) -> dict[str, Any]:
        """Numbers. The copy is not among them: a resumed run keeps one of the weights it begins with."""
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


def _check(model: object, probe: object, offload: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"Guard: model must be a torch nn.Module, got {type(model).__name__}")
    if probe is not None and not isinstance(probe, Probe):
        raise TypeError(
            f"Guard: probe must be a hdet.Probe or None, got {type(probe).__name__}; hdet.Probe(loss_fn, "
            "batches, model=model) makes one"
        )
    check_offload("Guard", offload)
