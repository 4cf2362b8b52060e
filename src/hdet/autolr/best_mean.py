"""``BestMean``: the best weights of a run, chosen by a probe, beside any optimizer and any schedule."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn

from hdet.autolr.arguments import check_offload
from hdet.autolr.choice import Candidate
from hdet.autolr.keeper import Handed, Keeper
from hdet.autolr.window_mean import WindowMean, wide_copy
from hdet.loop.state import Owner, check_fits, pieces_of
from hdet.loop.windows import Windows
from hdet.probes import Probe
from hdet.probes.overlap import Overlap
from hdet.removed import refuse_removed
from hdet.replicas import ProcessGroup, find_replicas, is_flat, local

__all__ = ["BestMean"]

logger = logging.getLogger("hdet")


class BestMean:
    """Keeps the best of the means of the weights over windows, and of the iterates that end them.

    The mean of the weights over a window is a model one could deploy, often a better one than the last
    iterate, and where data are few a better one than the end of the run. Windows grow with the run. At the
    end of each, a probe measures its mean and its last iterate on batches that are not trained on; the best
    is kept, with the error of the comparison in mind, and :meth:`finish_` writes it into the model. Where a
    layer is freed in mid-run, the choice begins anew from there.

    Memory: two copies of the trained weights, one of them with the host. Time: two forward passes for each of
    the probe's batches, some 25 times in 2,000 steps.

    Args:
        model: what is trained.
        probe: one half of its batches chooses, the other half says what was chosen is worth.
        offload: keep the copy in the host's (pinned) memory; False keeps it on the device.
        process_group: the ranks that train together; the default group if None, this process alone without
            one. Their weights must be equal, as data parallelism keeps them.

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Linear(8, 1)
    >>> data = torch.randn(200, 32, 8)
    >>> loss_of = lambda x: (model(x) - x.sum(1, keepdim=True)).square().mean()
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    >>> best = BestMean(model, Probe(loss_of, data[160:], model=model))
    >>> for x in data[:160]:
    ...     loss_of(x).backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    ...     best.step()
    >>> handed = best.finish_()
    >>> handed.step > 100, handed.estimate < 1e-3
    (True, True)
    """

    @refuse_removed
    def __init__(
        self,
        model: nn.Module,
        probe: Probe,
        *,
        offload: bool = True,
        process_group: ProcessGroup | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"BestMean: model must be a torch nn.Module, got {type(model).__name__}")
        if not isinstance(probe, Probe):
            raise TypeError(
                f"BestMean: probe must be a hdet.Probe, got {type(probe).__name__}; hdet.Probe(loss_fn, "
                "batches, model=model) makes one"
            )
        check_offload("BestMean", offload)
        self._parameters: list[Tensor] = list(model.parameters())
        self._replicas = find_replicas("BestMean", self._parameters, model=model, process_group=process_group)
        self._replicas.agree("BestMean", {"probe": repr((probe.per_sync, probe.choosing))})
        self._keeper = Keeper(probe, model, self._parameters, self._replicas, offload=offload)
        self._overlap = Overlap(probe)
        self._windows = Windows()
        self._numbers: list[int] = []
        self._mean: WindowMean | None = None
        self._handed: Handed | None = None
        self._finished_at = -1
        self.steps = 0
        self._window_end = self._next_end()

    def step(self) -> None:
        """Call once after every ``optimizer.step()``. Between windows nothing waits for the device."""
        self._replicas.before_first_step("BestMean.step")
        if self._mean is None or self._mean_is_new:
            self._begin()
        assert self._mean is not None
        self._overlap.watch()
        self.steps += 1
        self._mean.add()
        if self.steps == self._window_end:
            self._judge()
            self._window_end = self._next_end()
            self._mean_is_new = True

    def _next_end(self) -> int:
        end = self._windows.end_after(self.steps)
        assert end is not None  # the run is not known to end
        return end

    @property
    def best(self) -> Handed | None:
        """The best weights seen so far; with an honest estimate once they were handed over."""
        return self._handed or self._keeper.best

    def finish_(self) -> Handed | None:
        """Let the model hold the best weights that were seen, and say what they are worth.

        The weights as they stand are a candidate. Every rank calls it, when training is over.
        """
        if self._handed is not None and self._finished_at == self.steps:
            return self._handed
        self._finished_at = self.steps
        self._follow()
        self._offer("end", self._keeper.measure_deployed(refresh=False))
        best = self._keeper.best
        standing = best is not None and best.kind == "end" and best.step == self.steps
        self._handed = self._keeper.hand_over_(standing=standing)
        return self._handed

    def _begin(self) -> None:
        """A window begins; what is trained in it is what is not frozen now."""
        if self._follow() or self._mean is None:
            self._mean = WindowMean([local(self._parameters[i]) for i in self._numbers])
        self._mean.begin(self._window_end - self.steps)
        self._mean_is_new = False

    def _follow(self) -> bool:
        """Whether what is trained has changed. Where a layer was freed, which has moved by now, the choice
        begins anew: earlier weights of it are not known."""
        numbers = [i for i, p in enumerate(self._parameters) if p.requires_grad]
        if not numbers:
            raise ValueError("BestMean.step: model must train something, and all its parameters are frozen")
        if numbers == self._numbers:
            return False
        if self._numbers and not set(numbers) <= set(self._numbers):
            self._keeper.forget()
        self._numbers = numbers
        return True

    def _judge(self) -> None:
        assert self._mean is not None
        if self._follow():  # within the window: its mean is of other weights
            self._mean = None
            return
        self._overlap.prepare()
        self._offer("iterate", self._keeper.measure_deployed(refresh=False))
        self._look_for_overlap()
        self._mean.swap_()
        try:
            self._offer("mean", self._keeper.measure_deployed(refresh=True))
        finally:
            self._mean.swap_()

    def _look_for_overlap(self) -> None:
        if self._overlap.settled:
            return
        said = self._overlap.found(self._replicas.gather(self._overlap.row()))
        if said and self._replicas.world_rank == 0:
            logger.warning("BestMean: step %d: %s", self.steps, said)

    def _offer(self, kind: Literal["mean", "iterate", "end"], own: Sequence[float | Tensor]) -> None:
        losses = tuple(loss for row in self._replicas.gather(own) for loss in row)
        weights = {i: local(self._parameters[i]) for i in self._numbers}
        self._keeper.offer(Candidate(self.steps, kind, losses), weights)

    _mean_is_new = True

    def state_dict(self) -> dict[str, Any]:
        """Save it beside model and optimizer. Holds tensors: the window in progress and the best weights."""
        return self._owner.pack(self._saved())

    @property
    def _owner(self) -> Owner:
        shapes = [[] if is_flat(p) else list(p.shape) for p in self._parameters]
        return Owner("BestMean", {"shapes": shapes}, self._replicas, self._parameters)

    def _saved(self) -> dict[str, Any]:
        window, trained = None, {i: local(p) for i, p in enumerate(self._parameters) if p.requires_grad}
        mean = pieces_of({i: partial(wide_copy, p) for i, p in trained.items()}, self._parameters)
        if self._mean is not None:
            window = {**self._mean.state_dict(), "mean": None}
            mean = pieces_of(dict(zip(self._numbers, self._mean.tensors, strict=True)), self._parameters)
        return {
            "steps": self.steps,
            "window_end": self._window_end,
            "new": self._mean_is_new,
            "numbers": list(self._numbers),
            "window": window,
            "mean": mean,
            "keeper": self._keeper.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off, after model and optimizer have been loaded. Raises for
        what cannot be loaded, and changes nothing then."""
        saved, _ = self._owner.unpack(state_dict)
        check_fits("BestMean", self._saved(), saved)
        self.steps, self._window_end = saved["steps"], saved["window_end"]
        self._keeper.load_state_dict(saved["keeper"])
        self._numbers = list(saved["numbers"])
        if saved["window"] is not None:
            self._mean = WindowMean([local(self._parameters[i]) for i in self._numbers])
            self._mean.load_state_dict({**saved["window"], "mean": [saved["mean"][i] for i in self._numbers]})
        self._mean_is_new = saved["new"]
