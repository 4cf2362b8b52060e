"""What all ranks must agree on, in one place. They compare before one of them raises, so that all raise
together and none is left waiting.

When a run begins: arguments, layout, version, the values that are explored, and the weights. At every sync:
what they came for, one fingerprint of all that was decided alike and, where nothing is averaged, weights.
"""

from __future__ import annotations

import hashlib
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import hdet
from hdet.hyperparameters import Axis, Explorable, LearningRate
from hdet.loop.fan_out import FanOut
from hdet.loop.optimizers import checksum, describe, trained_parameters
from hdet.loop.policy import Context, Policy
from hdet.replicas import Replicas, local

__all__ = [
    "Agreement",
    "OneSearch",
    "agree_on_run",
    "bind_together",
    "check_explore",
    "check_sync_every",
    "check_together",
]

_PURPOSES = ("sync", "converge")
#: So many weights of every replica are compared where it begins.
_SAMPLED = 64
#: Replicas that begin so far apart, relative to their weights, were not meant to be one model.
_STRANGERS = 0.5
#: Ranks that should hold the same weights are so far apart, relative to their norm, so many times in a row.
#: Kernels that round differently stay far below it on one gradient.
_FAR, _IN_A_ROW = 1e-2, 3


# ---------------------------------------------------------------------- when a run begins


def check_together(
    caller: str, replicas: Replicas, check: Callable[[], object], facts: Mapping[str, str]
) -> None:
    """Let every rank check its own arguments; raise on all of them unless all have the same to say."""
    objection: Exception | None = None
    try:
        check()
    except (TypeError, ValueError) as error:
        objection = error
    replicas.agree(caller, {"arguments": str(objection or "usable"), **facts})
    if objection is not None:
        raise objection


def agree_on_run(
    caller: str,
    replicas: Replicas,
    optimizer: Optimizer,
    model: nn.Module | None,
    policies: Sequence[Policy],
    obstacle: Exception | None,
    settings: Mapping[str, object],
) -> dict[str, str]:
    """All ranks run the same thing, on the same layout; none trains where the history cannot be written. What
    they agree on, in words."""
    facts = {k: v for policy in policies for k, v in policy.facts().items()}
    facts |= {"explore": repr([policy.explore for policy in policies])}
    facts |= {name: repr(value) for name, value in settings.items()}
    facts |= {"history": "writable" if obstacle is None else f"{type(obstacle).__name__}: {obstacle}"}
    replicas.agree(caller, {**facts, "hdet's version": hdet.__version__, **describe(optimizer, model)})
    if obstacle is not None:
        raise type(obstacle)(
            f"{caller}: history must be a file that can be written, a callable that is told every line, or a "
            f"list of them, got {obstacle}"
        )
    return facts


def bind_together(
    caller: str,
    replicas: Replicas,
    optimizer: Optimizer,
    policies: Sequence[Policy],
    bound: list[list[Axis]],
) -> None:
    """Bind the hyperparameters of every policy into ``bound``, each under a name of its own.

    What one rank cannot bind raises on all; all begin at the same values. Where it raises, the caller
    closes what ``bound`` has.
    """

    def bind() -> list[float]:
        for policy in policies:
            bound.append([])
            for item in policy.explore:
                if isinstance(item, type) or not isinstance(item, Explorable):
                    got = f"the class {item.__name__}" if isinstance(item, type) else type(item).__name__
                    raise TypeError(
                        f"{caller}: explore must be a list of hyperparameters such as hdet.WeightDecay(), "
                        f"got {got}; wrap any other scalar in hdet.Hyperparameter"
                    )
                bound[-1] += item.bind(optimizer)
        names = [axis.name for axes in bound for axis in axes]
        if len(set(names)) < len(names):
            raise ValueError(
                f"{caller}: explore must name each hyperparameter once, got {', '.join(names)}; give those "
                "of one kind a name= each"
            )
        return []

    # Ranks have compared their groups already: learning rates are no news.
    if all(isinstance(item, LearningRate) for policy in policies for item in policy.explore):
        bind()
    else:
        replicas.together(f"{caller}: binding what is explored", bind)
        replicas.agree(caller, {f"{a.name} to begin with": repr(a.base) for own in bound for a in own})


def check_explore(caller: str, explore: object) -> None:
    """It is a list of hyperparameters, and not one of them."""
    if isinstance(explore, Explorable) or not isinstance(explore, Iterable):
        kind = type(explore).__name__
        raise TypeError(
            f"{caller}: explore must be a list of hyperparameters, got {kind}; write [{kind}(...)]"
        )


def check_sync_every(caller: str, sync_every: int) -> None:
    """T is a whole number of steps."""
    if not isinstance(sync_every, int) or sync_every < 1:
        raise ValueError(
            f"{caller}: sync_every (model_sync_interval, T) must be an integer of at least 1, "
            f"got {sync_every!r}"
        )


# ---------------------------------------------------------------------- at every sync


class Agreement:
    """What ranks compare at every sync, before anything of one is mixed with another's.

    Args:
        context: the run. Weights that are meant to differ are not compared at a sync.
    """

    def __init__(self, context: Context, fan_out: FanOut, policies: Sequence[Policy]) -> None:
        self._caller = context.caller
        self._replicas = context.replicas
        self._optimizer = context.optimizer
        self._own_gradients = context.own_gradients
        self._fan_out = fan_out
        self._policies = policies
        self._several = context.replicas.size > context.replicas.local_count
        self._compares_weights = self._several and not context.diverges
        self._far = 0
        self._warned = False
        self.forget()

    # what they came for, and what was decided alike

    def row(self, purpose: Literal["sync", "converge"], steps: int, round: int) -> list[float]:
        """This rank's: purpose, step, round, fingerprint, and a checksum of the weights."""
        weights = 0.0
        if self._compares_weights and purpose == "sync":
            weights = checksum([local(p) for group in trained_parameters(self._optimizer) for p in group])
        # One rank may resume from another state, run another version, or write a learning rate by itself, and
        # would decide differently from then on. Six bytes are exact as a float.
        fingerprint = int.from_bytes(hashlib.sha256(repr(self._facts()).encode()).digest()[:6], "big")
        return [float(_PURPOSES.index(purpose)), float(steps), float(round), float(fingerprint), weights]

    def judge(self, rows: Sequence[Sequence[float]]) -> tuple[str, ...]:
        """What to log of the rows of all ranks, once. Raises on all where they must not go on."""
        if any(row[:3] != rows[0][:3] for row in rows):
            seen = "; ".join(
                f"rank {r} is at the {_PURPOSES[int(row[0])]} after step {int(row[1])} (round {int(row[2])})"
                for r, row in enumerate(rows)
            )
            raise RuntimeError(
                f"{self._caller}.step: the ranks are at different steps {[int(row[1]) for row in rows]}: "
                f"{seen}; every rank must take the same optimizer steps, call step() after each, and "
                "converge() where the others do"
            )
        if any(row[3] != rows[0][3] for row in rows):
            try:
                self._replicas.agree(f"{self._caller}.step", self._facts())
            except RuntimeError as error:
                raise RuntimeError(
                    f"{error}. Load the same checkpoint everywhere, saved within at_base(), install the same "
                    "hdet, and write a value on all ranks or none"
                ) from None
        parts = self._replicas.ranks_per_replica
        if all(row[4] == rows[r % parts][4] for r, row in enumerate(rows)):
            self._far = 0
            return ()
        return self._judge_distance()

    def _facts(self) -> dict[str, str]:
        """By name. Numbers to nine digits: two machines may differ in the last bit of an exponential."""
        axes = self._fan_out.axes
        facts = {f"the base of {axis.name}": f"{axis.base:.9g}" for axis in axes}
        facts |= {f"the spread of {axis.name}": f"{axis.spread:.9g}" for axis in axes}
        facts |= {f"the factor of {a.name}": f"{a.factor:.9g}" for a in self._fan_out.learning_rates}
        facts |= {f"the end of window {i}": str(policy.window_end) for i, policy in enumerate(self._policies)}
        return {**facts, "the seed": str(self._fan_out.seed), "hdet's version": hdet.__version__}

    def _judge_distance(self) -> tuple[str, ...]:
        """Where nothing is averaged, only the gradient that they share keeps the ranks one model. If they do
        not share it, one decision is taken from models that have less and less to do with one another."""
        distance = _distance(self._replicas, _sample(self._optimizer))
        self._far = self._far + 1 if distance > _FAR else 0
        if not math.isfinite(distance):  # lost weights have a warning of their own
            return ()
        warning = (
            f"the ranks' weights differ, by {distance:.2g} of their norm, although nothing makes replicas "
            "diverge: gradients are not shared (DistributedDataParallel is missing), or the weights of one "
            "rank were written"
        )
        if self._far >= _IN_A_ROW:
            raise RuntimeError(f"{self._caller}.step: {warning}; so at {self._far} syncs in a row")
        warned, self._warned = self._warned, True
        return () if warned else (warning,)

    # the weights that the replicas begin with

    def forget(self) -> None:
        """Resets: the weights are about to be replaced."""
        self._first: Tensor | None = None
        self._checked = False

    def keep_first_weights(self) -> None:
        """A round begins: keep a few weights of the first one. No collective, no wait for the device."""
        if self._several and self._first is None:
            self._first = _sample(self._optimizer)

    def check_start(self) -> bool:
        """The first round on a shared gradient ends: whether it began with weights that differ. A collective,
        once; then False.

        A warm start's noise is well within what is allowed; another seed, or another partition of one model
        on every rank, raises RuntimeError on all ranks."""
        if self._checked or not self._several or self._own_gradients:
            return False
        self.keep_first_weights()
        assert self._first is not None
        distance = _distance(self._replicas, self._first)
        self._checked = True
        if distance > _STRANGERS:
            raise RuntimeError(
                f"{self._caller}.step: replicas that share their gradients must begin with the same weights, "
                f"and began {distance:.2g} of their norm apart: averaged, they are no model at all. Seed all "
                "ranks alike, or load one checkpoint on all (fully_shard broadcasts nothing). If every rank "
                "holds another partition of one model (DeepSpeed, Megatron), there are no replicas: use "
                "DistributedDataParallel or HSDP"
            )
        return distance > 0

    def warning(self) -> str:
        """A warning about the first weights, or nothing. A collective where gradients are not shared."""
        if not self._own_gradients or not self._several:
            return ""
        distance = _distance(self._replicas, _sample(self._optimizer))
        if distance <= _STRANGERS:
            return ""
        return (
            f"the replicas begin {distance:.2g} of their weights' norm apart: averaged, they are no "
            "model at all. Let them start alike: Arms.wrap(model) does it, or one seed on all ranks"
        )


def _distance(replicas: Replicas, sample: Tensor) -> float:
    """Between the first replica and any other, of the larger norm. A collective."""
    rows, parts = replicas.gather_ranks(sample.tolist()), replicas.ranks_per_replica
    every = [[x for row in rows[at : at + parts] for x in row] for at in range(0, len(rows), parts)]
    size = math.sqrt(max(math.fsum(x * x for x in row) for row in every))
    largest = max(math.dist(row, every[0]) for row in every)
    return largest / size if size else 0.0


@torch.no_grad()
def _sample(optimizer: Optimizer) -> Tensor:
    """A few weights of evenly spaced tensors, the same ones on every replica; zeros where there are fewer.
    They stay on the device, so that nobody waits for it."""
    every: list[Tensor] = [local(p).detach() for group in trained_parameters(optimizer) for p in group]
    # Scales and biases begin alike whatever the seed: matrices tell.
    weights = [weight for weight in every if weight.dim() > 1] or every
    chosen = [w.reshape(-1)[:4].float() for w in weights[:: max(1, len(weights) // 16)] if w.numel()]
    device = chosen[0].device if chosen else None
    filling = torch.zeros(_SAMPLED, device=device)
    return torch.cat([*(values.to(device, non_blocking=True) for values in chosen), filling])[:_SAMPLED]


# ---------------------------------------------------------------------- one search for a model

#: Who ended a window last on a model, and who before. Not kept at the model, which is pickled and copied.
_SEARCHES: weakref.WeakKeyDictionary[nn.Module, list[weakref.ref[OneSearch]]] = weakref.WeakKeyDictionary()


class OneSearch:
    """Notices two searches on one model: each would probe at weights that the other one moves, and go back
    alone. One that is left lying about, as a notebook's cell does when it is run again, is no obstacle.

    Args:
        model: what it probes.
        what: whose learning rate it moves.
    """

    def __init__(self, caller: str, model: nn.Module, what: str) -> None:
        self._caller = caller
        self._model = model
        while isinstance(inner := getattr(self._model, "module", None), nn.Module):  # wrapped in DDP
            self._model = inner
        self._what = what
        self._self = weakref.ref(self)

    def window_ended(self) -> None:
        """Raises RuntimeError where another one has ended a window since it did so itself."""
        last = _SEARCHES.get(self._model) or []
        if last and last[-1] is self._self:
            return
        others = [other for one in last if (other := one()) is not None and other is not self]
        if others and any(one is self._self for one in last):
            raise RuntimeError(
                f"{self._caller}.step: one search must move all learning rates of a model, and two step on "
                f"{type(self._model).__name__} in turn, of {self._what} and of {others[-1]._what}: each "
                f"probes at weights that the other one moves, and goes back alone; give all optimizers to "
                f"one: {self._caller}([first, second], …)"
            )
        _SEARCHES[self._model] = [*last[-1:], self._self]
