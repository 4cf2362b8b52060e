"""The held-out loss: the loss at the current weights, on batches that are not trained on.

A controller compares the loss at several points in weight space on the *same* batches. So everything but the
weights (dropout, running statistics, random state, autocast's cache) is the same at every point, and training
afterwards is as if nothing had been measured.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from functools import partial
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # no public name covers all of its kinds

from hdet.probes.batch_contents import announced_size, count_samples, not_among
from hdet.probes.isolation import forked, random_state, refresh_norms_, trained_norms, weights_alone
from hdet.probes.set_aside import is_map_style, split_iterable, split_loader
from hdet.replicas import Replicas, SoloReplica

__all__ = ["Probe"]

logger = logging.getLogger("hdet")

_END = object()
_ALONE = SoloReplica()


class Probe:
    """Losses on held-out batches, comparable between points in weight space.

    :meth:`draw` takes the next batches, :meth:`losses` measures the current weights on them, once for each
    point to compare. While it measures

    - dropout is off, and every module gets its training flag back afterwards;
    - batch and instance norm that were training use the batch's own statistics, because running ones belong
      to the weights of the trajectory and not to the point compared; SyncBatchNorm does not communicate.
      A frozen one (in eval mode) stays frozen. All buffers are restored, in place;
    - the random state of the CPU and of the model's CUDA devices is forked and the same for every point.
      Python's ``random`` and NumPy are not handled: noise from there differs between points;
    - no gradient is recorded and no ``.grad`` touched.

    A model in DistributedDataParallel broadcasts its buffers in every forward: either all ranks measure the
    same number of batches, or ``loss_fn`` calls ``model.module``.

    Args:
        loss_fn: from a batch to its mean loss, a scalar. It calls the model, and autocast if there is one.
        batches: what the model does not train on. An iterable such as a DataLoader, begun again when it
            ends, or a callable from the number of the draw (0, 1, 2, ...) to a batch. Both run on a random
            state of their own, a function of ``torch.initial_seed()`` and that number: the global one stays
            as it is, and a resumed run draws what the unbroken one would have.
        model: the module whose weights are compared.
        per_sync: how many batches one sync looks at.
        repeats: how often it measures each batch, every time with other noise, the same noise at every point;
            the loss is their mean. For a loss that draws noise from torch (diffusion, a VAE): a few samples
            with eight draws each say more than one draw of them.
        choose_by: a metric, from a batch to a number of which higher is better (of one where lower is, return
            the negative). By it the best weights are chosen, as they would be deployed; the loss goes on
            judging the learning rate. It may have steps, as accuracy has, which a loss must not.

    >>> model = nn.Linear(3, 1)
    >>> def loss_fn(batch):
    ...     return (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    >>> probe, train_with = Probe.set_aside(loss_fn, list(torch.randn(100, 16, 3)), model=model)
    >>> probe.describe(), len(train_with)
    ('4 batches of 16 samples a sync; 128 set aside', 92)
    >>> batches = probe.draw()
    >>> before = probe.losses(batches)
    >>> with torch.no_grad():
    ...     _ = model.weight.fill_(1.0), model.bias.zero_()
    >>> after = probe.losses(batches)
    >>> all(b < a for a, b in zip(before, after)), max(after) < 1e-12
    (True, True)

    Weights chosen by a metric:

    >>> import hdet
    >>> def accuracy(batch):
    ...     return ((model(batch) > 0) == (batch.sum(1, keepdim=True) > 0)).float().mean()
    >>> probe = Probe(loss_fn, list(torch.randn(8, 16, 3)), model=model, choose_by=accuracy)
    >>> best = hdet.BestMean(model, probe).finish_()
    >>> best.metric, best.metric_estimate, best.loss < 1e-12
    (1.0, 1.0, True)
    """

    def __init__(
        self,
        loss_fn: Callable[[Any], Tensor | float],
        batches: Iterable[Any] | Callable[[int], Any],
        *,
        model: nn.Module,
        per_sync: int = 4,
        repeats: int = 1,
        choose_by: Callable[[Any], Tensor | float] | None = None,
    ) -> None:
        _check_arguments("Probe", loss_fn, model, per_sync, repeats, choose_by)
        if not isinstance(batches, Iterable) and not callable(batches):
            raise TypeError(
                "Probe: batches must be an iterable of batches or a callable from the draw's number to a "
                f"batch, got {type(batches).__name__}; wrap a dataset in a DataLoader"
            )
        #: From a batch to its loss. AutoTune looks in it for what it can explore.
        self.loss_fn = loss_fn
        self._batches = batches
        #: The module whose weights are compared.
        self.model = model
        #: How many batches one sync looks at, at most.
        self.per_sync = per_sync
        self._repeats = repeats
        #: From a batch to a metric, by which weights are chosen instead of by the loss; higher is better.
        self.choose_by = choose_by
        self._seed = torch.initial_seed()
        self._draws = 0
        # The draw at which the current pass over an iterable began: a resume starts there.
        self._pass_began = 0
        self._pass: Iterator[Any] | None = None
        self._batch_size = announced_size(batches)
        self._set_aside: int | None = None
        self._halves: tuple[list[Any], list[Any]] | None = None
        #: Whether it is measuring now, for what looks at the model's inputs.
        self.measuring = False

    @classmethod
    def set_aside(
        cls,
        loss_fn: Callable[[Any], Tensor | float] | Iterable[Any] | None = None,
        loader: Iterable[Any] | None = None,
        *,
        model: nn.Module,
        criterion: Callable[[Any, Any], Tensor] | None = None,
        batches: int = 8,
        per_sync: int = 4,
        repeats: int = 1,
        seed: int = 0,
        choose_by: Callable[..., Tensor | float] | None = None,
    ) -> tuple[Probe, Iterable[Any]]:
        """Take batches out of a training loader for good: the probe on them, and what is left to train with.

        Two forms: ``set_aside(loss_fn, loader, model=model)``, with a function from a batch to its loss, and
        for batches of inputs and targets ``set_aside(loader, model=model, criterion=F.cross_entropy)``, whose
        loss is ``criterion(model(inputs), targets)`` on the model's device. ``choose_by``, a metric of which
        higher is better, is called as the loss is: with a batch, or with the model's outputs and targets.

        From a DataLoader over a map-style dataset, samples are chosen by ``seed``, the same on all ranks, and
        the loader is rebuilt over the others; with a DistributedSampler every rank keeps ``batches`` batches
        of its own, and ``set_epoch`` works on either sampler. From any other iterable the first ``batches``
        are kept and skipped at the start of every later pass; one that shuffles between passes would yield
        them again, and hdet warns. The batches kept stay in memory, as the loader delivered them.

        At most a tenth of the samples is taken: of a small loader the batches are smaller, or fewer. Where a
        tenth is too little to decide by, it takes 32 samples (4 batches of an iterable), or a quarter if that
        is less, and warns; two batches are the least. Of a stream the share is known, and warned of, after
        its first pass.

        What was taken stays taken: called again with the same loader, or with the one it returned, it makes
        the same two parts. Of the one it returned ``batches`` and ``seed`` change nothing. (An iterator that
        cannot restart goes on behind what was taken.)
        """
        loss_of: Any = loss_fn
        if criterion is not None or loader is None:
            loss_of, loader = _with_criterion(loss_fn, loader, model, criterion)
        _check_arguments("Probe.set_aside", loss_of, model, per_sync, repeats, choose_by)
        if not isinstance(batches, int) or batches < per_sync:
            raise ValueError(
                f"Probe.set_aside: batches must be an integer of at least per_sync={per_sync}, "
                f"got {batches!r}"
            )
        kept: list[Any]
        rest: Iterable[Any]
        if is_map_style(loader):
            with random_state(model, "set aside", seed):
                kept, rest = split_loader(loader, batches, seed)
        else:
            kept, rest = split_iterable(loader, batches)
        if criterion is not None:
            _check_pairs(kept)
            choose_by = choose_by and partial(_of_pair, model, choose_by)
        if len(kept) < batches:  # half of them at a time, as of the eight
            per_sync = min(per_sync, (len(kept) + 1) // 2)
        probe = cls(loss_of, kept, model=model, per_sync=per_sync, repeats=repeats, choose_by=choose_by)
        probe._set_aside = sum(count_samples(batch) or 0 for batch in kept) or None
        return probe, rest

    def describe(self) -> str:
        """What one sync looks at, and what was set aside for it."""
        size = f" of {self._batch_size:,} samples" if self._batch_size else ""
        size += f", each with {self._repeats} draws of noise," if self._repeats > 1 else ""
        aside = f"; {self._set_aside:,} set aside" if self._set_aside else ""
        metric = "; a metric chooses the weights" if self.choose_by is not None else ""
        return f"{self.per_sync} batch{'es' if self.per_sync > 1 else ''}{size} a sync{aside}{metric}"

    def draw(self) -> list[Any]:
        """The batches of the next sync. The global random state is neither read nor moved."""
        drawn = [self._take() for _ in range(self.per_sync)]
        self._batch_size = self._batch_size or count_samples(drawn)
        return drawn

    @property
    def choosing(self) -> int:
        """How many batches choose between weights, half of a list and at most :attr:`per_sync`."""
        most, held = 2 * self.per_sync, self.holds
        return ((most if held is None else min(most, max(held, 1))) + 1) // 2

    @property
    def holds(self) -> int | None:
        """How many batches it was given; None if that is unknown, as for a stream."""
        if isinstance(self._batches, Sized):
            with suppress(TypeError):  # a DataLoader over a stream has a length that it cannot tell
                return len(self._batches)
        return None

    def halves(self) -> tuple[list[Any], list[Any]]:
        """The batches that weights are chosen by, and others that no choice sees, for an honest estimate.

        The same ones for the whole run and after a resume: the first :attr:`choosing` batches of the probe
        and at most as many again (of an iterator, the next ones), without those that repeat. One batch gives
        no estimate.
        """
        if self._halves is None:
            count = self.choosing
            first = self._first(2 * count)
            chosen, later = first[:count], first[count:]
            # An iterator that ended early: every rank must measure the same number of batches.
            chosen += [chosen[k % len(chosen)] for k in range(count - len(chosen))]
            others = not_among(later, chosen)
            if len(others) < len(later):
                logger.warning(
                    "Probe: %d of %d batches by which chosen weights are to be estimated are among those "
                    "that choose them, and are left out: batches gives some twice; give as many that differ",
                    len(later) - len(others),
                    len(later),
                )
            self._halves = chosen, others
            self._batch_size = self._batch_size or count_samples(first)
        return self._halves

    @property
    def decides(self) -> bool:
        """Whether more than one sample chooses between weights; where that is not known, yes."""
        return self.deciding != 1

    @property
    def deciding(self) -> int | None:
        """How many samples of this rank choose between weights; None where that is not known."""
        return self.choosing * self._batch_size if self._batch_size else None

    def _first(self, count: int) -> list[Any]:
        taken: list[Any] = []
        with random_state(self.model, "draw", self._seed, "begin"):
            source = iter(self._batches) if isinstance(self._batches, Iterable) else None
        for number in range(count):
            with random_state(self.model, "draw", self._seed, number):
                batch = self._batches(number) if source is None else next(source, _END)  # type: ignore[operator]
            if batch is _END:
                break
            taken.append(batch)
        if not taken:
            raise ValueError(
                f"Probe.halves: batches must hold one at least, got an empty {type(self._batches).__name__}"
            )
        return taken

    def losses(
        self, batches: Sequence[Any], *, of: str | None = None, refresh: bool | None = None
    ) -> list[float]:
        """The loss of each batch at the weights as they are now, with one wait for the device in all.

        Until the next draw the k-th batch has the same random state in every call. Batches that are kept
        (:meth:`halves`) get a name by ``of``, under which they have the same one for the whole run. A loss
        that is not finite is returned as it is.

        ``refresh`` measures with batch norm in evaluation mode, as the weights would be deployed: with
        statistics computed from these batches, for weights that training has never used, or if it is False
        with the model's own. They are restored afterwards.
        """
        return [loss for (loss,) in self.losses_of_each(batches, _ALONE, of=of, refresh=refresh)]

    def losses_of_each(
        self,
        batches: Sequence[Any],
        replicas: Replicas,
        *,
        of: str | None = None,
        refresh: bool | None = None,
        metric: bool = False,
    ) -> list[list[float]]:
        """As :meth:`losses`, of every replica in this process, each with statistics of its own; of several,
        ``loss_fn`` returns all. Or what ``choose_by`` gives, as the ``metric``."""
        several = replicas.local_count
        rows = replicas.buffers_of(self.model).values() if several > 1 else ()
        if refresh is not None and (norms := trained_norms(self.model)):
            with weights_alone(self.model, rows, deployed=True):
                if refresh:
                    self.refresh_norms_(batches, norms, replicas)
                return self.losses_of_each(batches, replicas, of=of, metric=metric)
        measured = self.choose_by if metric else self.loss_fn
        assert measured is not None
        values: list[Tensor | float] = []
        self.measuring = True
        try:
            with torch.no_grad(), weights_alone(self.model, rows), forked(self.model) as reseed:
                for k, batch in enumerate(batches):
                    key = "losses", self._seed, self._draws if of is None else of, k
                    for again in range(self._repeats):
                        reseed(*key, *([again] if again else []))
                        loss = measured(batch)
                        if isinstance(loss, Tensor) and loss.numel() == several and not loss.is_complex():
                            # A copy, because the next batch overwrites the static output of a CUDA graph.
                            values.append(loss.detach().reshape(several).clone())
                        else:
                            values.append(_as_number("choose_by" if metric else "loss_fn", loss, several))
                tensors = [value for value in values if isinstance(value, Tensor)]
                same_device = [tensor.to(tensors[0].device) for tensor in tensors]
                read = iter(torch.stack(same_device).tolist() if tensors else ())
        finally:
            self.measuring = False
        each = [next(read) if isinstance(value, Tensor) else [value] for value in values]
        return [
            [sum(own) / self._repeats for own in zip(*each[k : k + self._repeats], strict=True)]
            for k in range(0, len(each), self._repeats)
        ]

    @property
    def has_norms(self) -> bool:
        """Whether the model has batch norm whose running statistics training updates."""
        return bool(trained_norms(self.model))

    def refresh_norms_(
        self,
        batches: Iterable[Any],
        norms: Sequence[nn.Module] | None = None,
        replicas: Replicas | None = None,
    ) -> None:
        """Recompute the running statistics of batch norm from these batches at the current weights: of
        ``norms``, or of all that are training."""
        chosen = trained_norms(self.model) if norms is None else norms
        with random_state(self.model, "norms", self._seed):
            only = [norm for norm in chosen if isinstance(norm, _BatchNorm)]
            refresh_norms_(self.model, self.loss_fn, batches, only, replicas)

    def state_dict(self, rank: int = 0) -> dict[str, int]:
        """How many batches were drawn, at which of them the current pass over an iterable began, and the seed
        of this rank's draws."""
        return {"draws": self._draws, "pass_began": self._pass_began, "seed": self._seed, "rank": rank}

    def load_state_dict(self, state: Mapping[str, int], rank: int = 0) -> None:
        """Continue with the batch after the last one drawn. Another rank's seed is ignored: ranks that draw
        different batches continue to do so.

        An iterable is begun again and its batches of this pass are skipped, so the same ones follow if its
        order is fixed or comes from torch's global random state. An iterator cannot be begun again: it is
        assumed to be where it should be.
        """
        if state["rank"] == rank and state["seed"] != self._seed:
            self._halves = None
            self._seed = state["seed"]
        self._pass = None
        self._draws = state["draws"]
        self._pass_began = state["pass_began"]
        batches = self._batches
        if isinstance(batches, Iterable) and not isinstance(batches, Iterator):
            self._draws = self._pass_began
            while self._draws < state["draws"]:
                self._take()

    def _take(self) -> Any:
        with random_state(self.model, "draw", self._seed, self._draws):
            batches = self._batches
            batch = self._next_of(batches) if isinstance(batches, Iterable) else batches(self._draws)
        self._draws += 1
        return batch

    def _next_of(self, batches: Iterable[Any]) -> Any:
        if self._pass is None:
            self._pass = iter(batches)
        batch = next(self._pass, _END)
        if batch is _END:
            self._pass, self._pass_began = iter(batches), self._draws
            batch = next(self._pass, _END)
        if batch is _END:
            raise ValueError(
                f"Probe.draw: batches must not run out, got a {type(batches).__name__} that ended after "
                f"{self._draws} and cannot be begun again; give a DataLoader, a list, or a callable from the "
                "draw's number to a batch"
            )
        return batch


def _as_number(name: str, loss: object, replicas: int) -> float:
    """A loss, or a metric, that is no tensor of the right size: a number of one replica's, or an error."""
    if isinstance(loss, Tensor):
        wanted = "a real scalar" if replicas == 1 else f"the real losses of {replicas} replicas"
        fix = "reduce it first, e.g. loss.mean()" if replicas == 1 else "use StackedReplicas.losses"
        raise ValueError(
            f"Probe.losses: {name} must return {wanted}, got a tensor of shape {tuple(loss.shape)} "
            f"and type {loss.dtype}; {fix}"
        )
    if isinstance(loss, SupportsFloat) and replicas == 1:
        return float(loss)
    raise TypeError(
        f"Probe.losses: {name} must return a scalar tensor or a number, got {type(loss).__name__}; return "
        f"the mean {'loss' if name == 'loss_fn' else 'metric'} of the batch"
    )


def _with_criterion(first: object, loader: object, model: Any, criterion: object) -> tuple[Any, Any]:
    """The loss function and the loader of ``set_aside(loader, model=model, criterion=criterion)``."""
    if not callable(criterion) or (first is None) == (loader is None):
        raise TypeError(
            "Probe.set_aside: give either a loss function and a loader, set_aside(loss_fn, loader, "
            "model=model), or a loader and a criterion, set_aside(loader, model=model, criterion=criterion); "
            f"got loss_fn={first!r:.60}, loader={loader!r:.60} and criterion={criterion!r:.60}"
        )
    return partial(_of_pair, model, criterion), first if loader is None else loader


def _of_pair(model: nn.Module, criterion: Callable[[Any, Any], Any], batch: Any) -> Any:
    device = next(model.parameters()).device
    inputs, targets = (part.to(device) if isinstance(part, Tensor) else part for part in batch)
    return criterion(model(inputs), targets)


def _check_pairs(batches: Iterable[Any]) -> None:
    for batch in batches:
        if not isinstance(batch, (list, tuple)) or len(batch) != 2:
            raise TypeError(
                "Probe.set_aside: with criterion= a batch must be a pair of inputs and targets, got a "
                f"{type(batch).__name__}{f' of {len(batch)}' if isinstance(batch, (list, tuple)) else ''}; "
                "give a function of the batch instead: set_aside(loss_fn, loader, model=model)"
            )


def _check_arguments(
    caller: str, loss_fn: object, model: object, per_sync: object, repeats: object, choose_by: object
) -> None:
    if not callable(loss_fn):
        raise TypeError(
            f"{caller}: loss_fn must be a callable from a batch to its mean loss, "
            f"got {type(loss_fn).__name__}"
        )
    if choose_by is not None and not callable(choose_by):
        raise TypeError(
            f"{caller}: choose_by must be a callable from a batch to a number of which higher is better, got "
            f"{type(choose_by).__name__}"
        )
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: model must be a torch nn.Module, got {type(model).__name__}")
    for name, value in (("per_sync", per_sync), ("repeats", repeats)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{caller}: {name} must be an integer of at least 1, got {value!r}")
