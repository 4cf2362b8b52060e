"""``BestMean``: the best weights of a run, chosen by a probe, beside any optimizer and any schedule."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from hdet.autolr.best import Best, BestWeights
from hdet.autolr.clock import Clock
from hdet.autolr.policy import split_rows
from hdet.autolr.search import check_model, check_offload, check_probe
from hdet.autolr.window import WindowLoop, as_mean
from hdet.loop.optimizers import names_of
from hdet.loop.state import Owner, check_fits, pieces_of
from hdet.loop.windows import Windows
from hdet.probes import Probe
from hdet.probes.overlap import Overlap
from hdet.removed import explains_calls
from hdet.replicas import ProcessGroup, find_replicas, is_flat, local

__all__ = ["BestMean"]

logger = logging.getLogger("hdet")


class BestMean:
    """Keeps the best of the means of the weights over windows, and of the iterates that end them.

    The mean of the weights over a window is a model one could deploy, often a better one than the last
    iterate, and with few data a better one than the end of the run. Windows grow with the run. At the end of
    each, a probe measures its mean and its last iterate on batches that are not trained on; the best is kept,
    with the error of the comparison in mind, and :meth:`finish_` loads it into the model. Where a layer is
    unfrozen during the run, the choice starts over from that window.

    Memory: two copies of the trained weights, one of them in the host's memory. Time: two forward passes for
    each of the probe's batches, some 25 times in 2,000 steps.

    Args:
        model: what is trained.
        probe: one half of its batches chooses, by the loss or its ``choose_by``; the other half estimates the
            loss of what was chosen.
        offload: keep the copy in the host's (pinned) memory; False keeps it on the device.
        process_group: the ranks that train together; the default group if None, this process alone without
            one. Their weights must be equal, as data parallelism keeps them.

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Linear(8, 1)
    >>> data = torch.randn(200, 32, 8)
    >>> loss_of = lambda x: (model(x) - x.sum(1, keepdim=True)).square().mean()
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    >>> best_mean = BestMean(model, Probe(loss_of, data[160:], model=model))
    >>> for x in data[:160]:
    ...     loss_of(x).backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    ...     best_mean.step()
    >>> best = best_mean.finish_()
    >>> best.step > 100, best.estimate < 1e-3
    (True, True)
    """

    @explains_calls
    def __init__(
        self,
        model: nn.Module,
        probe: Probe,
        *,
        offload: bool = True,
        process_group: ProcessGroup | None = None,
    ) -> None:
        check_model("BestMean", model)
        check_probe("BestMean", probe)
        check_offload("BestMean", offload)
        self._model = model
        self._parameters: list[Tensor] = list(model.parameters())
        self._replicas = find_replicas("BestMean", self._parameters, model=model, process_group=process_group)
        self._replicas.agree(
            "BestMean", {"probe": repr((probe.per_sync, probe.choosing, probe.choose_by is None))}
        )
        self._weights = BestWeights(probe, model, self._parameters, self._replicas, offload=offload)
        self._overlap = Overlap(probe)
        self._clock = Clock(Windows())
        self._clock.begin(0)
        self._window = WindowLoop(self._clock, "BestMean")
        self._opens = True
        self._finished: Best | None = None
        self._finished_at = -1
        self.steps = 0

    def step(self) -> None:
        """Call once after every ``optimizer.step()``. Between windows nothing waits for the device."""
        self._replicas.before_first_step("BestMean.step")
        if self._opens:
            self._follow()
            self._window.open()
            self._opens = False
        self._overlap.watch()
        self.steps += 1
        if self._window.add():
            self._judge()
            self._clock.begin(self.steps)
            self._opens = True

    @property
    def best(self) -> Best | None:
        """The best weights seen so far; with an honest estimate after :meth:`finish_`."""
        return self._finished or self._weights.best

    def finish_(self) -> Best | None:
        """Load the best weights seen into the model and estimate their loss.

        The present weights are a candidate. Every rank calls it, when training is over.
        """
        if self._finished is None or self._finished_at != self.steps:
            self._finished_at = self.steps
            self._replicas.about_to("finish_(), which every rank calls")
            self._follow()
            self._offer("end")
            self._finished = self._weights.finish_()
        return self._finished

    def _follow(self) -> bool:
        """Follow what is trained now; whether that has changed. Where a layer was unfrozen, which has moved
        by now, the choice starts over: what it was is not known."""
        if not any(parameter.requires_grad for parameter in self._parameters):
            raise ValueError("BestMean.step: model must train something, and all its parameters are frozen")
        before = set(self._window.numbers)
        if not self._window.follow(self._parameters):
            return False
        if before and not set(self._window.numbers) <= before:
            self._weights.forget()
        return True

    def _judge(self) -> None:
        if self._follow():  # within the window: its mean is of other weights
            return
        self._overlap.prepare()
        self._offer("iterate")
        if not self._overlap.settled:
            said = self._overlap.found(self._replicas.gather(self._overlap.row()))
            if said and self._replicas.world_rank == 0:
                logger.warning("BestMean: step %d: %s", self.steps, said)
        self._window.at_mean(lambda: self._offer("mean"))

    def _offer(self, kind: Literal["mean", "iterate", "end"]) -> None:
        weights = self._weights
        chosen = weights.measure_deployed(refresh=kind == "mean")
        losses = weights.measure() if weights.by_metric else []
        rows = self._replicas.gather([weights.mark(), *chosen, *losses])
        if weights.batches_changed([row[0] for row in rows]) and self._replicas.world_rank == 0:
            logger.warning(
                "BestMean: step %d: the probe has other batches than before the run was resumed: weights are "
                "chosen from here on",
                self.steps,
            )
        parts = split_rows([row[1:] for row in rows], {"chosen": len(chosen), "losses": len(losses)})
        decides = len(rows) > 1 or weights.probe.decides
        candidate = weights.candidate(self.steps, kind, **parts, decides=decides)
        weights.offer(candidate, self._window.by_number(self._window.weights))

    def state_dict(self) -> dict[str, Any]:
        """Save it beside model and optimizer. Holds tensors: the window in progress and the best weights."""
        return self._owner.pack(self._saved())

    @property
    def _owner(self) -> Owner:
        shapes = [[] if is_flat(p) else list(p.shape) for p in self._parameters]
        names = names_of(self._parameters, self._model)
        configuration = {"shapes": shapes, "parameter names": names, **self._weights.configuration}
        return Owner("BestMean", configuration, self._replicas, self._parameters)

    def _saved(self) -> dict[str, Any]:
        window = self._window.state_dict(self._parameters)
        mean = window["mean"]
        if not mean:  # no window has begun: memory for one
            trained = {i: local(p) for i, p in enumerate(self._parameters) if p.requires_grad}
            mean = pieces_of({i: partial(as_mean, p) for i, p in trained.items()}, self._parameters)
        return {
            "steps": self.steps,
            "window_end": self._clock.end,
            "new": self._opens,
            "numbers": list(self._window.numbers),
            "window": {**window, "mean": None} if self._window.numbers else None,
            "mean": mean,
            "keeper": self._weights.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`, after model and optimizer have been loaded. Raises for what
        cannot be loaded, and changes nothing then."""
        saved, _ = self._owner.unpack(state_dict)
        check_fits("BestMean", self._saved(), saved)
        self.steps, self._opens = saved["steps"], saved["new"]
        self._clock.began, self._clock.end = saved["steps"], saved["window_end"]
        self._weights.load_state_dict(saved["keeper"])
        if saved["numbers"]:
            self._window.follow(self._parameters, saved["numbers"])
        if saved["window"] is not None:
            self._window.load_state_dict({**saved["window"], "mean": saved["mean"]})
