"""The best weights seen: a copy of them, what they are compared with, and when training returns to them.

Which of two candidates is better is decided in :mod:`hdet.autolr.choice`, which is pure.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from hdet.autolr.choice import Candidate, Choice, Kind, mean_of, regrouped, standard_error
from hdet.autolr.prior import likely_rates
from hdet.autolr.snapshot import Copies, uninterrupted, wait_for_copies
from hdet.loop.state import pieces_of
from hdet.probes import Probe
from hdet.probes.batch_contents import count_samples, fingerprint, tensors_of
from hdet.probes.isolation import trained_norms
from hdet.replicas import Replicas, drop_gathered, local

__all__ = ["Best", "BestWeights", "Incumbent"]

logger = logging.getLogger("hdet")

#: So many windows in a row clearly worse than the best return training to it.
_BEHIND = 2
#: Where so many times the steps that led to the best are left, there is time to restart instead.
_RESTART = 1.5
#: A search is young for this share of its steps; where their number is not known, for so many.
_YOUTH, _YOUNG_STEPS = 0.15, 200
#: A third of a third of the learning rate is slow enough.
_MAX_RESTARTS = 2
#: Loaded weights are not those that were measured, where on the same batches their loss is higher by this
#: share of itself and of what was gained. Rounding and noise of the loss function stay far below it.
_HIGHER, _GAIN_LOST = 0.25, 0.05
#: Half of the batches will do where they tell what was gained to this share of it, as a standard error.
_AGREE = 0.02
#: A sum over the same batch differs by less, whatever the machine.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Best:
    """The weights that ``finish_()`` loads into the model.

    Args:
        step: steps taken when the model had these weights.
        kind: a window's ``"mean"``, the ``"iterate"`` that ended it, the ``"start"`` or the ``"end"`` of
            training.
        loss: on the half of the probe that chose them, and so a little too low.
        estimate: on the half that no choice has seen; NaN where there is none, or before it was measured.
        error: the standard error of ``estimate``.
        rate: the learning rate of the window that these weights are of, before the schedule's decay; NaN
            where none was searched for, and of the start.
        metric: what ``choose_by`` gave on the half that chose, and so a little too high; None without one.
        metric_estimate, metric_error: of the metric, as ``estimate`` and ``error`` are of the loss.
    """

    step: int
    kind: str
    loss: float
    estimate: float = math.nan
    error: float = math.nan
    rate: float = math.nan
    metric: float | None = None
    metric_estimate: float | None = None
    metric_error: float | None = None

    @property
    def rates(self) -> tuple[float, float]:
        """Between these the best rate is to be expected, in four runs of five."""
        return likely_rates(self.rate)


class BestWeights:
    """Measures candidates, keeps a copy of the best weights and buffers, and loads it.

    Args:
        probe: one half of its batches chooses, by the loss or by ``choose_by``; the other half estimates the
            loss of what was chosen, and the metric.
        model: whose buffers are copied, too.
        parameters: all that may ever be trained, known by their number. What is never trained is not copied.
        replicas: every rank brings batches of its own, and all choose alike.
        offload: whether the copy lies in the host's memory; None: where the device has no room.
    """

    def __init__(
        self,
        probe: Probe,
        model: nn.Module,
        parameters: Sequence[Tensor],
        replicas: Replicas,
        *,
        offload: bool | None,
    ) -> None:
        self.probe = probe
        #: How many of the probe's batches choose; :meth:`Incumbent.halve` makes them fewer.
        self.count = probe.choosing
        self.replicas = replicas
        self.choice = Choice()
        self._model = model
        self._whole = list(parameters)
        self._parameters = {i: local(p) for i, p in enumerate(parameters)}
        self._weights, self._buffers = Copies(offload=offload), Copies(offload=offload)
        #: The batch norms that trained when the copy was made, whose statistics a mean is loaded with; None
        #: where that is not known. A user may freeze some later, or all before the weights are loaded.
        self._norms: list[nn.Module] | None = None
        #: By which batches every replica has chosen so far, and this rank's own, once that is known.
        self._marks: list[float] | None = None
        self._mark: float | None = None

    def measure(self, count: int | None = None) -> list[float | Tensor]:
        """This rank's losses at the present weights, on the first ``count`` of the batches that choose; of
        several replicas in one process a tensor for each batch."""
        return self._losses(self._batches[:count], "choice")

    @property
    def _batches(self) -> list[Any]:
        """Those that choose."""
        return self.probe.halves()[0][: self.count]

    def _losses(
        self, batches: Sequence[Any], of: str, *, refresh: bool | None = None, metric: bool = False
    ) -> list[float | Tensor]:
        """With the batches' own statistics; or, if ``refresh`` is given, as weights are deployed."""
        rows = self.probe.losses_of_each(batches, self.replicas, of=of, refresh=refresh, metric=metric)
        if self.replicas.local_count == 1:
            return [loss for (loss,) in rows]
        return [torch.tensor(row, dtype=torch.float64) for row in rows]

    @property
    def by_metric(self) -> bool:
        """Whether a metric chooses, and not the loss."""
        return self.probe.choose_by is not None

    @property
    def configuration(self) -> dict[str, str]:
        """What must be as it was when a state was saved."""
        return {"weights are chosen by": "choose_by" if self.by_metric else "the loss"}

    def measure_deployed(self, *, refresh: bool) -> list[float | Tensor]:
        """What weights are chosen by: the metric; or, as :meth:`measure`, the loss. With the running
        statistics that the weights would be deployed with, if there are any; ``refresh`` recomputes those,
        for weights that training has never used."""
        return self._losses(self._batches, "choice", refresh=refresh, metric=self.by_metric)

    def candidate(
        self, step: int, kind: Kind, losses: Sequence[float], chosen: Sequence[float], *, decides: bool
    ) -> Candidate:
        """From all ranks' losses, and what :meth:`measure_deployed` found where that differs."""
        if not self.by_metric:
            return Candidate(step, kind, tuple(chosen or losses), decides)
        if self.choice.first is None and not all(map(math.isfinite, chosen)):
            raise ValueError(
                "Probe: choose_by must return a finite number at the weights that training begins with, got "
                f"{list(chosen)}, one for each batch; a metric that some batches do not define (AUC of one "
                "class alone) needs larger ones"
            )
        return Candidate(step, kind, tuple(losses), decides, tuple(chosen))

    def mark(self) -> float:
        """A number by which the batches that choose are known from others."""
        if self._mark is None:
            self._mark = _mark_of(self.probe.halves()[0])
        return self._mark

    def batches_changed(self, marks: Sequence[float]) -> bool:
        """Whether others chose so far than those of these ``marks``, the replicas' in turn, as where a run is
        resumed with another probe: their losses cannot be compared, so the choice starts over."""
        before, self._marks = self._marks, list(marks)
        if before is None or len(before) != len(marks):  # other replicas than before
            return False
        if not any(abs(a - b) > _ROUNDING * abs(a) for a, b in zip(before, marks, strict=True)):
            return False
        self.forget()
        return True

    def follow(self, parameters: Mapping[int, Tensor]) -> None:
        """These are trained from now on: until now they have not changed."""
        self._parameters |= parameters
        if self._weights.tensors:
            self._weights.write({i: p for i, p in parameters.items() if i not in self._weights.tensors})

    def offer(self, candidate: Candidate, weights: Mapping[int, Tensor]) -> None:
        """Copy the weights, unless better ones were seen. The candidate's losses are those of all ranks. A
        parameter that was copied and is not given (it was frozen meanwhile) is copied as it is now."""
        self.choice, keep = self.choice.offered(candidate)
        if keep:
            given = {i: self._parameters[i] for i in self._weights.tensors} | dict(weights)
            self._weights.write(given, self._parameters)
            self._buffers.write_all(self.replicas.buffers_of(self._model))
            self._norms = [*trained_norms(self.probe.model)]

    @property
    def best(self) -> Best | None:
        """What would be loaded now."""
        kept = self.choice.kept
        if kept is None:
            return None
        metric = mean_of(kept.scores) if kept.scores else None
        return Best(kept.step, kept.kind, mean_of(kept.losses), metric=metric)

    def finish_(self) -> Best | None:
        """Load the best weights into the model and estimate their loss. A collective."""
        best = self.best
        if best is None:
            return None
        self.replicas.about_to("finish_(), which every rank calls")
        self.load_()
        self.replicas.deliver_()
        self._compare_with_choice()
        return replace(best, **self._estimate())

    def _compare_with_choice(self) -> None:
        """Warn where the loaded weights are clearly worse than they were when they were chosen, on the same
        batches. Whatever the cause, the model is not what was measured."""
        first, kept = self.choice.first, self.choice.kept
        assert first is not None
        assert kept is not None
        rows = self.replicas.gather(self.measure_deployed(refresh=False))
        sign = -1 if self.by_metric else 1
        now = sign * mean_of([loss for row in rows for loss in row])
        higher = max(_HIGHER * abs(kept.cost), _GAIN_LOST * (first.cost - kept.cost))
        if not now <= kept.cost + higher and self.replicas.world_rank == 0:
            logger.warning(
                "finish_: %s of the weights that it loads is %.4g, and was %.4g when they were "
                "chosen, on the same batches: something else has changed since. Does the probe have the loss "
                "it had before a resume, does anything but the optimizer write weights, and is every layer "
                "in the mode it was trained in?",
                *("the metric" if self.by_metric else "the probe's loss", sign * now, sign * kept.cost),
            )
        if self.by_metric and kept == first and self.replicas.world_rank == 0:
            logger.warning(
                "finish_: choose_by has never been higher than at the first weights it measured, of step %d, "
                "%.4g: those are loaded. Higher counts as better: of a metric where lower is, such as an "
                "error rate, return the negative",
                *(kept.step, -kept.cost),
            )

    def _estimate(self) -> dict[str, Any]:
        """Means and standard errors over the batches of all ranks, which may hold different numbers."""
        batches = [batch for batch in self.probe.halves()[1] if count_samples(batch) != 0]
        both = (False, True) if self.by_metric else (False,)
        each = [self._losses(batches, "estimate", refresh=False, metric=metric) for metric in both]
        rows = self.replicas.gather(
            [number for own in each for number in (float(len(own)), sum(own), sum(x * x for x in own))]
        )
        self.replicas.about_to("")
        names = ("estimate", "error", "metric_estimate", "metric_error")[: 2 * len(each)]
        found = [self._mean_and_error([row[3 * k : 3 * k + 3] for row in rows]) for k in range(len(each))]
        return dict(zip(names, chain.from_iterable(found), strict=True))

    def _mean_and_error(self, rows: Sequence[Sequence[float]]) -> tuple[float, float]:
        """Of the counts, sums and sums of squares of all ranks."""
        n, total, squares = (math.fsum(row[k] for row in rows) for k in range(3))
        if n and not math.isfinite(total) and self.replicas.world_rank == 0:
            logger.warning(
                "finish_: there is no estimate: the loss of the loaded weights is not finite on a batch that "
                "did not choose them; look at the probe's batches, from number %d on",
                len(self.probe.halves()[0]),
            )
        if n == 0 or not math.isfinite(total):
            return math.nan, math.nan
        mean = total / n
        spread = max(squares / n - mean * mean, 0.0)
        return mean, math.sqrt(spread / (n - 1)) if n > 1 else math.nan

    @torch.no_grad()
    def load_(self) -> None:
        """Write the copy into the model, in place. Batch norm's running statistics belong to the iterates;
        for a mean they are recomputed from the batches that chose it."""
        assert self.choice.kept is not None
        buffers = self.replicas.buffers_of(self._model)
        with uninterrupted():
            for i, copy in self._weights.tensors.items():
                self._parameters[i].detach().copy_(copy)
            for name, copy in self._buffers.tensors.items():
                if name in buffers and buffers[name].shape == copy.shape:
                    buffers[name].copy_(copy)
        drop_gathered(self._model)
        if self.choice.kept.kind == "mean":
            self.probe.refresh_norms_(self.probe.halves()[0], self._norms, self.replicas)

    def forget(self) -> None:
        """Start over: the copy is of other weights than those that are trained now."""
        self.choice = Choice()
        self._weights.tensors, self._buffers.tensors = {}, {}

    def bytes(self) -> int:
        """What the copy takes."""
        return self._weights.bytes() + self._buffers.bytes()

    def state_dict(self) -> dict[str, Any]:
        """The choice and the copy itself, with memory for what may be copied one day."""
        wait_for_copies()
        copied = self._weights.tensors
        later = [i for i, p in enumerate(self._whole) if p.requires_grad and i not in copied]
        empty = {i: partial(self._weights.empty, self._parameters[i].detach()) for i in later}
        weights = pieces_of(copied, self._whole) | pieces_of(empty, self._whole)
        kept = {"weights": weights, "buffers": [[name, copy] for name, copy in self._buffers.tensors.items()]}
        norms = self._norms
        return {
            "choice": asdict(self.choice),
            "kept": kept,
            "norms": None if norms is None else [name for name, m in self._modules.items() if m in norms],
            "replicas": self.replicas.size,
            "marks": self._marks,
        }

    @property
    def _modules(self) -> dict[str, nn.Module]:
        return dict(self.probe.model.named_modules())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.forget()
        saved = Choice.from_dict(state["choice"])
        choice = saved.of_fewer(state["replicas"], self.replicas.size, self.count)
        if choice is None:  # chosen by batches that cannot be compared
            return
        self.choice, self._marks, self._mark = choice, state["marks"], None
        modules, norms = self._modules, state["norms"]
        known = norms is not None and all(name in modules for name in norms)  # else it is wrapped otherwise
        self._norms = [modules[name] for name in norms] if known else None
        self._weights.load(state["kept"]["weights"], self._parameters)
        self._buffers.load(dict(state["kept"]["buffers"]))


class Incumbent:
    """What a search remembers of the windows before: the best weights, and when it has fallen behind them.

    Args:
        weights: keeps the best weights.
        patience: so often training returns to them without an improvement; None never returns.
        lost: the share of what was gained that must be lost before it does.
    """

    def __init__(self, weights: BestWeights, patience: int | None, lost: float) -> None:
        self.weights = weights
        self._patience, self._lost = patience, lost
        self._returns = self._restarts = 0
        #: Whether nothing has improved since the learning rate last rose; and the loss of the last window.
        self._stands, self._last = False, math.nan
        #: Whether others have moved anything since the best was found.
        self.others_moved = False
        #: What this search has found since it began or restarted; ``weights`` knows all of them.
        self._search = weights.choice
        #: The factors that led to its best.
        self.factors: list[float] = []
        #: The losses at p, of the batches of every rank in turn; None before anything was measured.
        self.previous: list[float] | None = None
        #: The lowest losses at any m so far, likewise.
        self.best: list[float] | None = None

    def forget(self) -> None:
        """Drop the losses that windows are compared with: they are of other weights."""
        self.previous = self.best = None

    def start_over(self) -> None:
        """As :meth:`forget`, and what this search has found: it was measured on other batches."""
        self.forget()
        self._search, self._stands = Choice(), False

    def offer(self, candidate: Candidate, losses: list[float], weights: Mapping[int, Tensor]) -> None:
        """What training began with, which a window that has hardly moved the weights shows; or the mean of a
        window. ``losses`` are those that windows are compared by, the candidate's those that choose."""
        start = candidate.kind == "start"
        keeps = not start or self.weights.choice.kept is None
        only = keeps and self._search is self.weights.choice  # there was no other search
        if keeps:
            self.weights.offer(candidate, weights)
        self._search = self.weights.choice if only else self._search.offered(candidate)[0]
        self.previous, self._last = losses, candidate.cost
        if start or self.best is None or mean_of(losses) < mean_of(self.best):
            self.best = losses

    def agree(self) -> bool:
        """Whether half of the batches, two of each replica at least, tell what was gained since the start."""
        first, last = self._search.first, self.previous
        if self.weights.count < 4 or first is None or last is None or first.losses == tuple(last):
            return False
        gains = [before - now for before, now in zip(first.losses, last, strict=True)]
        return math.sqrt(2) * standard_error(gains) <= _AGREE * mean_of(gains)

    def halve(self) -> float:
        """Measure half of the batches from now on. Of all that was measured before the same ones count; by
        how much the last loss changes for it."""
        assert self.previous is not None
        self.weights.count //= 2
        sizes = self.weights.replicas.size, self.weights.replicas.size, self.weights.count
        before = mean_of(self.previous)
        only = self._search is self.weights.choice
        self.weights.choice = self.weights.choice.of_fewer(*sizes) or Choice()
        self._search = self.weights.choice if only else self._search.of_fewer(*sizes) or Choice()
        self.previous, self.best = (
            None if losses is None else list(regrouped(losses, *sizes) or ())
            for losses in (self.previous, self.best)
        )
        assert self.previous is not None
        return mean_of(self.previous) - before

    @property
    def best_at(self) -> int:
        """The step of the best weights that this search has seen."""
        return 0 if self._search.kept is None else self._search.kept.step

    def count(self, step: int, factors: Sequence[float], *, rises: bool, moved: bool = False) -> None:
        """One more window, which ran with these ``factors``; where the learning rate still rises, or
        something else was ``moved`` for it, an improvement may yet come."""
        search = self._search
        if search.kept is not None and search.kept.step == step:
            self.factors = list(factors)
        if self.weights.choice.improved_at == step:
            self._returns = 0
        # Before anything was learnt, a plateau is no standstill: a smaller rate would not lead off it.
        improved = search.improved_at == step
        if improved or not search.learnt:
            self._stands = False
        elif not rises:
            self._stands = True
        self.others_moved = not improved and (self.others_moved or moved)

    @property
    def improves(self) -> bool:
        """Whether the last window was better than all before, or nothing has been learnt yet."""
        return not self._stands and self._search.behind == 0

    @property
    def behind(self) -> bool:
        """Whether training, if it is patient at all, has fallen behind its best weights, by more than a share
        of what it had clearly gained. A loss that stands still, or has risen from the first step on, is none
        that older weights or a smaller rate would mend."""
        search = self._search
        if self._patience is None or search.behind < _BEHIND or not search.learnt:
            return False
        assert search.first is not None  # something was learnt
        assert search.lowest is not None
        return self._last - search.lowest.cost > self._lost * (search.first.cost - search.lowest.cost)

    @property
    def exhausted(self) -> bool:
        """Whether training has returned to the best weights as often as patience allows."""
        return self._patience is not None and self._returns >= self._patience

    def may_restart(self, step: int, began: int, total_steps: int | None) -> bool:
        """Whether a slower search from the beginning, instead of from the best weights, may find better ones.

        Not in the youth of a search, whose troubles are others; only where this one, which ``began`` then,
        has found the best of all, so that slower still is worth trying; if there is time for it; and twice at
        most.
        """
        best = self._search.kept
        if best is None or best.kind == "start" or best != self.weights.choice.kept:
            return False
        if self._restarts == _MAX_RESTARTS:
            return False
        if total_steps is None:
            return step - began > _YOUNG_STEPS
        young = step - began <= _YOUTH * (total_steps - began)
        return not young and total_steps - step >= _RESTART * (best.step - began)

    def restart(self) -> None:
        """The best weights stay copied; windows are compared with those of the new search alone."""
        self.forget()
        self._search = Choice()
        self._restarts += 1
        self._stands, self._returns, self.others_moved = False, self._returns + 1, False

    def return_to_best_(self) -> int:
        """Load the best weights into the model; the step they are of. A collective."""
        weights = self.weights
        kept = weights.choice.kept
        assert kept is not None
        weights.load_()
        self._search = weights.choice = replace(weights.choice, behind=0)
        self.previous = list(kept.losses)
        if weights.probe.has_norms:  # those are not the losses that windows are compared by
            self.previous = [loss for row in weights.replicas.gather(weights.measure()) for loss in row]
        self._stands, self._returns, self.others_moved = False, self._returns + 1, False
        return kept.step

    def state_dict(self) -> dict[str, Any]:
        """Numbers, and the best weights."""
        return {
            "counts": [self._returns, self._restarts, self.weights.count],
            "stands": self._stands,
            "last": self._last,
            "others_moved": self.others_moved,
            "losses": [self.previous, self.best],
            "keeper": self.weights.state_dict(),
            "search": {"choice": asdict(self._search), "factors": list(self.factors)},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`. The losses of as many replicas as there were become those of as
        many as there are, if they can be compared."""
        self._returns, self._restarts, *count = state["counts"]
        self.weights.count = min([self.weights.probe.choosing, *count])
        self._stands, self._last = state["stands"], state["last"]
        self.others_moved = state["others_moved"]
        self.weights.load_state_dict(state["keeper"])
        self.factors = list(state["search"]["factors"])
        sizes = state["keeper"]["replicas"], self.weights.replicas.size, self.weights.count
        search = Choice.from_dict(state["search"]["choice"]).of_fewer(*sizes)
        previous, best = (None if x is None else regrouped(x, *sizes) for x in state["losses"])
        if search is None or (previous is None and state["losses"][0] is not None):
            self.start_over()
            logger.warning(
                "load_state_dict: the state is of %d replicas, this run has %d, each with %d batches to "
                "choose by: their losses cannot be compared batch by batch. Windows are compared, and "
                "weights chosen, from now on",
                *sizes,
            )
            return
        self._search = search
        self.previous, self.best = (None if x is None else list(x) for x in (previous, best))


def _mark_of(batches: Sequence[object]) -> float:
    """The weighted mean of their tensors. As of losses, the mean over batches that several ranks share is
    that of the whole batch, however a run is laid out."""
    tensors = [tensor for batch in batches for tensor in tensors_of(batch)]
    seen = [fingerprint(t) for t in tensors if t.layout is torch.strided and not t.is_quantized]
    means = [float.fromhex(one[1]) / max(math.prod(one[0]), 1) for one in seen if one is not None]
    return sum((i + 1) * mean for i, mean in enumerate(means))
