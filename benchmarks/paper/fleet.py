"""Many runs of HDET at once: R runs of N replicas, as R·N rows of one tensor for each parameter.

This is Algorithm 1 on a shared gradient and nothing else, written for speed: tests hold it against
:class:`hdet.OneCycleAutoLR` on stacked replicas. A plain run is one with a spread of 0: its rows are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import SGD
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks.workloads.base import Batch
from hdet.loop.levels import levels, permuted
from hdet.published.softmax import literal_decay

__all__ = ["Course", "Run", "Trained", "train"]

#: OneCycleLR's f_div, and the paper's β.
DIV, MOMENTUM = 25.0, 0.9
_EPSILON, _BETA2 = 1e-8, 0.999


@dataclass(frozen=True)
class Course:
    """What is trained, on one device; ``batches`` are of all replicas together."""

    name: str
    steps: int
    build: Callable[[int], nn.Module]
    loss: Callable[[nn.Module, Batch], Tensor]
    batches: Callable[[int], Iterator[Batch]]
    #: What the weights of window means are chosen by, and what all are measured on.
    probe: Callable[[int], Iterator[Batch]]
    held_out: tuple[Batch, ...]
    #: The loss of who knows the base rates and nothing else.
    blind: float
    optimizer: Literal["adam", "sgd"] = "adam"
    #: A model's parameters by group; one group of all if None.
    groups: Callable[[nn.Module], Mapping[str, Sequence[nn.Parameter]]] | None = None
    #: A model's logits and targets, of answers that are yes or no.
    outputs: Callable[[nn.Module, Batch], tuple[Tensor, Tensor]] | None = None
    #: Seeds → the weights of each one's warm start.
    checkpoints: Callable[[tuple[int, ...]], Mapping[int, Mapping[str, Tensor]]] | None = None

    @property
    def control_from(self) -> int:
        """S_w, a third of the run, as in the paper."""
        return self.steps // 3


@dataclass(frozen=True, slots=True)
class Run:
    """One run: all that its result depends on beside the course. ``sigma`` of None: auto-LR is off."""

    lr: float
    seed: int
    replicas: int = 8
    #: α and T.
    spread: float = 0.0
    sync_every: int = 10
    sigma: float | None = None
    decay: Literal["schedule", "literal"] = "schedule"
    #: λ; 0 leaves Eq. 8 alone.
    step_size: float = 0.5
    final_div: float = 1e4
    reassign: Literal["always", "from S_w", "never"] = "always"
    #: ν; the noise is on top of the checkpoint.
    noise: float = 0.0
    warm: bool = False


@dataclass
class Trained:
    """What is left of a fleet, a row for each run: losses of every step, mean weights, final rates over the
    peak for each group, and, where windows were averaged, the weights of the best window mean."""

    losses: Tensor
    weights: dict[str, Tensor]
    rates: Tensor
    best: dict[str, Tensor] | None


def train(
    course: Course, runs: Sequence[Run], *, windows: int = 0, rows_at_once: int | None = None
) -> Trained:
    """Train all runs, which have N in common.

    Args:
        windows: into so many the run is cut for the best window mean; 0 leaves that out.
        rows_at_once: of the R·N rows, to bound the memory of activations.
    """
    (replicas,) = {run.replicas for run in runs}
    fleet = _Fleet(course, runs, replicas)
    batches = _batches(course, runs, replicas)
    compute = vmap(grad_and_value(partial(_loss, fleet.model, course.loss)), chunk_size=rows_at_once)
    control = _Control(course, runs, replicas, fleet.device)
    means = _WindowMeans(course, runs, windows, fleet) if windows else None
    losses = torch.empty(course.steps, len(runs), device=fleet.device)
    for step in range(course.steps):
        with sdpa_kernel(SDPBackend.MATH):  # the others have no rule for a mask that all rows share
            gradients, loss = compute(fleet.rows(), next(batches))
        loss = loss.view(len(runs), replicas)
        fleet.step(gradients, control.rates(step), control.multipliers, _beta1(step, course.steps))
        losses[step] = loss.mean(1)
        control.losses += loss
        due = [(step + 1) % run.sync_every == 0 or step + 1 == course.steps for run in runs]
        if any(due):
            fleet.converge(due)
            control.sync(step + 1, due)
        if means is not None:
            means.take(step + 1)
    rates = control.rates(course.steps - 1) / control.peaks[:, None]
    return Trained(losses.T.double(), fleet.mean(), rates, None if means is None else means.best)


def _loss(
    model: nn.Module, loss: Callable[..., Tensor], weights: Mapping[str, Tensor], batch: Batch
) -> Tensor:
    # The loss function calls the model; functional_call gives it these weights meanwhile.
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return loss(self.model, batch)

    called: Tensor = functional_call(
        Called(), {f"model.{name}": weight for name, weight in weights.items()}, ()
    )
    return called


def mean_losses(course: Course, weights: Mapping[str, Tensor], batches: Sequence[Batch]) -> Tensor:
    """The loss of each run's weights over all samples of the batches."""
    model, total, count = course.build(0), None, 0
    for batch in batches:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            found = vmap(partial(_loss, model, course.loss), in_dims=(0, None), chunk_size=64)(weights, batch)
        total = found.double() * len(batch[0]) + (0 if total is None else total)
        count += len(batch[0])
    assert total is not None
    return total / count


def _batches(course: Course, runs: Sequence[Run], replicas: int) -> Iterator[Batch]:
    """For every step the rows' batches: replica r has the r-th part of its seed's."""
    seeds = sorted({run.seed for run in runs})
    streams = [course.batches(seed) for seed in seeds]
    place = torch.tensor([seeds.index(run.seed) for run in runs])
    while True:
        parts = zip(*(next(stream) for stream in streams), strict=True)
        yield tuple(_cut(torch.stack(same), place, replicas) for same in parts)


def _cut(batch: Tensor, place: Tensor, replicas: int) -> Tensor:
    of_runs = batch[place.to(batch.device)]
    return of_runs.view(len(place) * replicas, batch.shape[1] // replicas, *batch.shape[2:])


class _Fleet:
    """The weights of all rows, and the optimizer's state, which replicas on one gradient share."""

    def __init__(self, course: Course, runs: Sequence[Run], replicas: int) -> None:
        self._course, self._size = course, (len(runs), replicas)
        self.model = course.build(runs[0].seed)
        starts: dict[tuple[int, bool], Mapping[str, Tensor]] = {
            (seed, False): dict(course.build(seed).named_parameters()) for seed in {r.seed for r in runs}
        }
        warm = tuple(sorted({run.seed for run in runs if run.warm}))
        if warm and course.checkpoints:
            starts |= {(seed, True): kept for seed, kept in course.checkpoints(warm).items()}
        names = [name for name, _ in self.model.named_parameters()]
        self.weights = {
            name: torch.stack([starts[run.seed, run.warm][name].detach() for run in runs])[:, None]
            .expand(-1, replicas, *starts[runs[0].seed, runs[0].warm][name].shape)
            .clone()
            for name in names
        }
        self.device = next(iter(self.weights.values())).device
        self._perturb(runs)
        groups = course.groups(self.model) if course.groups else {"all": list(self.model.parameters())}
        index = {id(p): i for i, members in enumerate(groups.values()) for p in members}
        self._group = {name: index[id(p)] for name, p in self.model.named_parameters()}
        # Adam's moments of bfloat16 weights are float32: β₂ = 0.999 is 1 in eight bits.
        self._first = {name: _zeros(rows) for name, rows in self.weights.items()}
        adam = course.optimizer == "adam"
        self._second = {name: _zeros(rows) for name, rows in self.weights.items()} if adam else {}
        self._steps = 0

    def _perturb(self, runs: Sequence[Run]) -> None:
        """Eq. 10: ε ~ N(0, ν²‖θ‖²/d), ‖θ‖ and d of all weights together."""
        noise = torch.tensor([run.noise for run in runs], device=self.device)
        if not noise.any():
            return
        count = sum(rows[0, 0].numel() for rows in self.weights.values())
        squares = sum(rows[:, 0].double().square().flatten(1).sum(1) for rows in self.weights.values())
        assert isinstance(squares, Tensor)
        scale = noise * (squares / count).sqrt().float()
        draw = torch.Generator(self.device).manual_seed(0)
        for rows in self.weights.values():
            epsilon = torch.randn(rows.shape, generator=draw, device=self.device, dtype=rows.dtype)
            rows.add_(epsilon * _like(scale, rows))

    def rows(self) -> dict[str, Tensor]:
        return {name: rows.flatten(0, 1) for name, rows in self.weights.items()}

    def step(self, gradients: Mapping[str, Tensor], rates: Tensor, multipliers: Tensor, beta1: float) -> None:
        """Eq. 2: every replica steps along the shared gradient at its own rate, ``[runs, groups, N]``."""
        self._steps += 1
        own = rates[:, :, None] * multipliers
        corrections = 1 - beta1**self._steps, math.sqrt(1 - _BETA2**self._steps)
        scalars = torch.tensor([beta1, *corrections], dtype=torch.float64).to(self.device)
        for name, rows in self.weights.items():
            first = self._first[name]
            of_replicas = gradients[name].view(*self._size, *rows.shape[2:])
            rate = _like(own[:, self._group[name]], rows).to(first.dtype)
            if self._second:
                update = _fused_adam() if rows.is_cuda and rows.numel() >= _LARGE else _adam
                update(rows, of_replicas, first, self._second[name], rate, scalars.to(first.dtype))
            else:
                gradient = of_replicas.mean(1, dtype=first.dtype)
                first.mul_(beta1 if self._steps > 1 else 0.0).add_(gradient)
                rows.addcmul_(rate, first[:, None], value=-1)

    def mean(self) -> dict[str, Tensor]:
        """Of the replicas of each run."""
        return {name: rows.mean(1) for name, rows in self.weights.items()}

    def converge(self, due: Sequence[bool]) -> None:
        """Eq. 3, for the runs whose round is over."""
        chosen = slice(None) if all(due) else torch.tensor(due, device=self.device).nonzero()[:, 0]
        for rows in self.weights.values():
            rows[chosen] = rows[chosen].mean(1, keepdim=True).expand_as(rows[chosen])


class _Control:
    """The rate of every run and group, and the multipliers of its replicas: Eq. 1 and 4–9."""

    def __init__(self, course: Course, runs: Sequence[Run], replicas: int, device: torch.device) -> None:
        self._course, self._runs, self._replicas = course, runs, replicas
        groups = course.groups(course.build(0)) if course.groups else {"all": []}
        self._names = tuple(f"lr/{i}" for i in range(len(groups)))
        wide = partial(torch.tensor, device=device, dtype=torch.float64)
        self.peaks = wide([run.lr for run in runs])
        self._step_size = wide([run.step_size for run in runs])[:, None]
        self._sigma = wide([math.inf if run.sigma is None else run.sigma for run in runs])[:, None]
        self._acts = torch.tensor([run.sigma is not None for run in runs], device=device)[:, None]
        literal = [run.sigma is not None and run.decay == "literal" for run in runs]
        self._holds = torch.tensor(literal, device=device)[:, None]
        gamma = [_gamma(course, run) if held else 0.0 for run, held in zip(runs, literal, strict=True)]
        self._gamma = wide(gamma)[:, None]
        curves = [_curve(course.steps, run.final_div) for run in runs]
        self._curves = wide(curves) * self.peaks[:, None]
        self._held = torch.zeros(len(runs), 1, device=device, dtype=torch.float64)
        self._factor = torch.ones(len(runs), len(groups), device=device, dtype=torch.float64)
        self._velocity = torch.zeros_like(self._factor)
        self._rounds = [0] * len(runs)
        self.losses = torch.zeros(len(runs), replicas, device=device)
        self._since = torch.zeros(len(runs), 1, device=device, dtype=torch.float64)
        self.multipliers = torch.stack([self._dealt(place, 0) for place in range(len(runs))])

    def rates(self, step: int) -> Tensor:
        """The base rate of every run and group in a step, from 0."""
        curve = self._curves[:, step, None]
        return torch.where(self._held > 0, self._held, curve) * self._factor

    def sync(self, step: int, due: Sequence[bool]) -> None:
        """After so many steps, for the runs whose round is over: vote, and deal the next multipliers."""
        here = torch.tensor(due, device=self.losses.device)[:, None]
        if step >= self._course.control_from:
            first = here & self._holds & (self._held == 0)
            self._held = torch.where(first, self._curves[:, step - 1, None], self._held)
            self._vote(self.losses.double() / (step - self._since), here)
        self.losses.masked_fill_(here, 0.0)
        self._since.masked_fill_(here, float(step))
        places = [place for place, over in enumerate(due) if over]
        for place in places:
            self._rounds[place] += 1
        dealt = torch.stack([self._dealt(place, step) for place in places])
        self.multipliers[torch.tensor(places, device=dealt.device)] = dealt

    def _vote(self, losses: Tensor, due: Tensor) -> None:
        finite = losses.isfinite()
        gaps = losses - losses.masked_fill(~finite, math.inf).amin(1, keepdim=True)
        weights = (-gaps / self._sigma).exp().masked_fill(~finite, 0.0)
        weights = weights / weights.sum(1, keepdim=True)
        voters = finite.double()
        weighted = (weights[:, None] * self.multipliers).sum(2)
        mean = (voters[:, None] * self.multipliers).sum(2) / voters.sum(1, keepdim=True)
        delta = self._factor * (weighted - mean)
        decayed = self._factor * (1 - self._gamma)
        velocity = MOMENTUM * self._velocity + (1 - MOMENTUM) * delta
        moved = torch.maximum(decayed + self._step_size * velocity, decayed * self.multipliers.amin(2))
        acts = self._acts & due
        tells = acts & (finite.sum(1, keepdim=True) > 1)
        self._velocity = torch.where(tells, velocity, self._velocity)
        self._factor = torch.where(tells, moved, torch.where(acts, decayed, self._factor))

    def _dealt(self, place: int, step: int) -> Tensor:
        """ρ = 1 + α·z for every group and replica of a run; Eq. 9 where it reassigns."""
        run = self._runs[place]
        late = run.sigma is not None and step >= self._course.control_from
        deals = run.reassign == "always" or (run.reassign == "from S_w" and late)
        round = self._rounds[place] if deals and run.spread else 0
        return 1 + run.spread * _levels(self._replicas, self._names, run.seed, round, self.losses.device)


class _WindowMeans:
    """The mean of each window's iterates, and the best of them by the probe: what ``BestMean`` keeps."""

    def __init__(self, course: Course, runs: Sequence[Run], windows: int, fleet: _Fleet) -> None:
        self._course, self._fleet = course, fleet
        self._length = max(1, course.steps // windows)
        self._probe = list(islice(course.probe(0), 4))
        self._sums = {name: torch.zeros_like(mean) for name, mean in fleet.mean().items()}
        self._lowest = torch.full((len(runs),), math.inf, device=fleet.device, dtype=torch.float64)
        self.best = fleet.mean()

    def take(self, step: int) -> None:
        for name, mean in self._fleet.mean().items():
            self._sums[name] += mean
        if step % self._length:
            return
        means = {name: total / self._length for name, total in self._sums.items()}
        losses = mean_losses(self._course, means, self._probe)
        better = losses < self._lowest
        self._lowest = torch.where(better, losses, self._lowest)
        for name, mean in means.items():
            self.best[name] = torch.where(_like(better, mean), mean, self.best[name])
            self._sums[name].zero_()


def _adam(
    rows: Tensor, gradients: Tensor, first: Tensor, second: Tensor, rates: Tensor, scalars: Tensor
) -> None:
    """Adam's step of all rows along the mean of their replicas' gradients, with β₁ and two corrections."""
    beta1, correction1, correction2 = scalars.unbind()
    gradient = gradients.mean(1, dtype=first.dtype)
    first.lerp_(gradient, 1 - beta1)
    second.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
    update = first / (second.sqrt() / correction2 + _EPSILON) / correction1
    rows.addcmul_(rates, update[:, None], value=-1)


@cache
def _fused_adam() -> Callable[..., None]:
    """One pass over many million weights instead of a dozen."""
    return torch.compile(_adam, dynamic=False)


_LARGE = 1 << 24


def _zeros(rows: Tensor) -> Tensor:
    """For the state of each run, which its replicas share."""
    dtype = torch.promote_types(rows.dtype, torch.float32)
    return torch.zeros_like(rows[:, 0], dtype=dtype)


def _like(rows: Tensor, other: Tensor) -> Tensor:
    """With as many dimensions as the other, those that it lacks at the end."""
    return rows.view(*rows.shape, *[1] * (other.dim() - rows.dim()))


def _gamma(course: Course, run: Run) -> float:
    syncs = (course.steps - course.control_from) / run.sync_every
    return literal_decay(div_factor=DIV, final_div_factor=run.final_div, syncs=syncs)


@cache
def _levels(replicas: int, names: tuple[str, ...], seed: int, round: int, device: torch.device) -> Tensor:
    ladders = [levels(replicas) for _ in names]
    dealt = permuted(replicas, names, seed=seed, round=round) if round else ladders
    return torch.tensor(dealt, device=device, dtype=torch.float64)


@cache
def _curve(steps: int, final_div: float) -> tuple[float, ...]:
    """OneCycleLR's rate in each step, for a peak of 1."""
    return tuple(lr for lr, _ in _one_cycle(steps, final_div))


@cache
def _betas(steps: int) -> tuple[float, ...]:
    return tuple(momentum for _, momentum in _one_cycle(steps, 1e4))


def _beta1(step: int, steps: int) -> float:
    """OneCycleLR's momentum, which is Adam's β₁."""
    return _betas(steps)[step]


def _one_cycle(steps: int, final_div: float) -> list[tuple[float, float]]:
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=1.0, momentum=0.9)
    schedule = OneCycleLR(optimizer, 1.0, steps, final_div_factor=final_div)
    found = []
    for _ in range(steps):
        found.append((float(optimizer.param_groups[0]["lr"]), float(optimizer.param_groups[0]["momentum"])))
        optimizer.step()
        schedule.step()
    return found
