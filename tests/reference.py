"""A slow, serial twin of Algorithm 1, written from the paper's equations alone.

N replicas live side by side in one process as lists of float64 tensors. Nothing is shared with the
package: the OneCycle curve, Eq. 1–9 and the optimizers are spelled out below. Only the permutations come
from outside, for they are the method's one random ingredient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

#: (weights of one replica, one tensor per group; replica; step) → loss
Loss = Callable[[Sequence[Tensor], int, int], Tensor]


@dataclass
class Settings:
    replicas: int
    steps: int
    max_lr: Sequence[float]
    spread: float = 1 / 9
    sync_every: int = 1000
    warmup: int = 0
    auto_lr: bool = True
    temperature: float | str = 0.1
    momentum_of_lr: float = 0.9
    lr_of_lr: float = 0.5
    decay: str = "schedule"
    optimizer: str = "sgd"
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    pct_start: float = 0.3


@dataclass
class Trace:
    """Per step: base LR and momentum of each group. Per sync: losses, Δ and v of each group."""

    base_lrs: list[list[float]] = field(default_factory=list)
    momenta: list[float] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    deltas: list[list[float]] = field(default_factory=list)
    velocities: list[list[float]] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)


def one_cycle(step: int, s: Settings, low: float, high: float, end: float) -> float:
    """Cosine up from ``low`` to ``high`` over the first pct_start of the run, then down to ``end``."""
    peak = s.pct_start * s.steps - 1
    if step <= peak:
        a, b, x = low, high, step / peak
    else:
        a, b, x = high, end, (step - peak) / (s.steps - 1 - peak)
    return b + (a - b) / 2 * (1 + math.cos(math.pi * x))


def run(
    start: Sequence[Tensor],
    loss: Loss,
    s: Settings,
    permutation: Callable[[int, int], Sequence[int]],
) -> Trace:
    """``permutation(round, group)`` says which rung of the ladder each replica gets."""
    n, groups = s.replicas, len(start)
    theta = [[w.clone().double() for w in start] for _ in range(n)]
    memory = [[[torch.zeros_like(w), torch.zeros_like(w)] for w in start] for _ in range(n)]
    delta = max((n - 1) / 2, 0.5)
    ladder = [1 + s.spread * (r - (n - 1) / 2) / delta for r in range(n)]  # Eq. 1
    rho = [[ladder[r] for r in range(n)] for _ in range(groups)]

    curve = [lambda t, m=m: one_cycle(t, s, m / s.div_factor, m, m / s.div_factor / s.final_div_factor)
             for m in s.max_lr]  # fmt: skip
    eta = [curve[g](0) for g in range(groups)]
    v = [0.0] * groups
    frozen = False
    syncs = max(s.steps - s.warmup, 1) / s.sync_every
    gamma = {
        "schedule": 0.0,
        "geometric": 1 - math.exp(-math.log(s.div_factor * s.final_div_factor) / syncs),
        "literal": 1 - math.exp(-math.log(s.div_factor / s.final_div_factor) / syncs),  # Eq. 8
    }[s.decay]

    trace = Trace()
    total, rounds, since = [0.0] * n, 0, 0
    for t in range(s.steps):
        beta1 = one_cycle(t, s, 0.95, 0.85, 0.95)
        trace.base_lrs.append(list(eta))
        trace.momenta.append(beta1)
        gradients = []
        for r in range(n):
            here = [w.clone().requires_grad_(True) for w in theta[r]]
            value = loss(here, r, t)
            gradients.append(torch.autograd.grad(value, here))
            total[r] += float(value.detach())
        shared = [sum(g[j] for g in gradients) / n for j in range(groups)]
        for r in range(n):
            for j in range(groups):  # Eq. 2
                move = _direction(s.optimizer, memory[r][j], shared[j], beta1, t + 1)
                theta[r][j] -= eta[j] * rho[j][r] * move
        since += 1

        if (t + 1) % s.sync_every == 0 or t + 1 == s.steps:
            for j in range(groups):  # Eq. 3
                mean = sum(theta[r][j] for r in range(n)) / n
                for r in range(n):
                    theta[r][j] = mean.clone()
            mean_losses = [x / since for x in total]
            trace.losses.append(mean_losses)
            if s.auto_lr and t + 1 >= s.warmup:
                frozen = frozen or s.decay != "schedule"
                w = _softmax(mean_losses, s.temperature)  # Eq. 4
                moves = []
                for j in range(groups):
                    etas = [eta[j] * rho[j][r] for r in range(n)]
                    tilde, bar = sum(a * b for a, b in zip(w, etas, strict=True)), sum(etas) / n  # Eq. 5
                    d = tilde - bar  # Eq. 6
                    if len(set(mean_losses)) > 1:
                        v[j] = s.momentum_of_lr * v[j] + (1 - s.momentum_of_lr) * d
                        kept = eta[j] * (1 - gamma)
                        # Eq. 7, and our one addition: never below the slowest replica, so never ≤ 0.
                        eta[j] = max(kept + s.lr_of_lr * v[j], kept * ladder[0])
                    else:
                        eta[j] *= 1 - gamma
                    moves.append(d)
                trace.deltas.append(moves)
                trace.velocities.append(list(v))
            rounds += 1
            rho = [[ladder[i] for i in permutation(rounds, j)] for j in range(groups)]  # Eq. 9
            total, since = [0.0] * n, 0
        if not frozen:  # between syncs η̄ and v, both in units of the curve, follow the curve
            for j in range(groups):
                ratio = curve[j](t + 1) / curve[j](t)
                eta[j] *= ratio
                v[j] *= ratio
    trace.weights = theta[0]
    return trace


def _softmax(losses: Sequence[float], temperature: float | str) -> list[float]:
    mean = sum(losses) / len(losses)
    if temperature == "auto":
        temperature = math.sqrt(sum((x - mean) ** 2 for x in losses) / len(losses)) or 1.0
    e = [math.exp((mean - x) / float(temperature)) for x in losses]
    return [x / sum(e) for x in e]


def _direction(kind: str, memory: list[Tensor], g: Tensor, beta1: float, step: int) -> Tensor:
    """What an optimizer multiplies by the learning rate."""
    if kind == "sgd":
        memory[0] = beta1 * memory[0] + g if step > 1 else g
        return memory[0]
    beta2, epsilon = 0.999, 1e-8
    memory[0] = beta1 * memory[0] + (1 - beta1) * g
    memory[1] = beta2 * memory[1] + (1 - beta2) * g * g
    return memory[0] / (1 - beta1**step) / ((memory[1] / (1 - beta2**step)).sqrt() + epsilon)


# ---------------------------------------------------------------------- the joint regression


@dataclass
class LeastSquares:
    slopes: list[float]
    variances: list[float]
    residual: float
    freedom: int


def least_squares(columns: Sequence[Sequence[float]], losses: Sequence[float]) -> LeastSquares | None:
    """L = c + Σ g·x by ``torch.linalg.lstsq``; None unless ones and columns are linearly independent."""
    n, k = len(losses), len(columns)
    if k == 0 or n < k + 1:
        return None
    y = torch.tensor(losses, dtype=torch.float64)
    x = torch.tensor(columns, dtype=torch.float64).T
    deviations = x - x.mean(0)
    lengths = deviations.norm(dim=0)
    if (lengths <= 1e-12 * x.abs().amax(0)).any():
        return None
    if int(torch.linalg.matrix_rank(deviations / lengths, tol=1e-5)) < k:
        return None
    a = torch.cat([torch.ones(n, 1, dtype=torch.float64), x], 1)
    # The estimates are linear in the losses, g = P·L, so their variances are row sums of P².
    p = torch.linalg.lstsq(a, torch.eye(n, dtype=torch.float64), driver="gelsd").solution
    solution = torch.linalg.lstsq(a, y[:, None], driver="gelsd").solution[:, 0]
    left = y - a @ solution
    return LeastSquares(
        slopes=solution[1:].tolist(),
        variances=p.square().sum(1)[1:].tolist(),
        residual=float(left.square().sum()),
        freedom=n - k - 1,
    )


@dataclass
class JointSettings:
    memory: float
    significance: float
    full_step: float
    noise_memory: float = 0.9
    contradiction: float = 3.0


def heard(losses: Sequence[float], fits: Sequence[LeastSquares], s: JointSettings) -> list[float]:
    """No loss counts for more than five times what is usual above the middle; one that is none, for that."""
    there = sorted(loss for loss in losses if math.isfinite(loss))
    middle = _middle(there)
    usual = _middle(sorted(abs(loss - middle) for loss in there))
    noise = _noise(fits, s.noise_memory) if fits else math.nan
    least = abs(middle) if math.isnan(noise) else math.sqrt(noise)
    top = middle + (5 * max(usual, least) or 1.0)
    return [min(loss, top) if math.isfinite(loss) else top for loss in losses]


def _middle(ordered: Sequence[float]) -> float:
    n = len(ordered)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def joint(fits: Sequence[LeastSquares], s: JointSettings) -> list[tuple[float, float, float]]:
    """What is known after the last of the rounds: slope, error, and the move in units of the spread."""
    known = []
    for h in range(len(fits[0].slopes)):
        slopes, variances = [f.slopes[h] for f in fits], [f.variances[h] for f in fits]
        first = 0
        for j in range(
            1, len(fits)
        ):  # a round that contradicts those before beyond doubt: they are forgotten
            before = _pooled(slopes[first:j], variances[first:j], s.memory)[0]
            doubt = s.contradiction * math.sqrt(_noise(fits[: j + 1], s.noise_memory) * variances[j])
            if slopes[j] * before < 0 and abs(slopes[j]) >= doubt:
                first = j
        slope, variance = _pooled(slopes[first:], variances[first:], s.memory)
        error = math.sqrt(_noise(fits, s.noise_memory) * variance)
        move = 0.0
        if error > 0 and abs(slope) / error >= s.significance:
            move = -math.copysign(min(1.0, abs(slope) / error / s.full_step), slope)
        known.append((slope, error, move))
    return known


def leashed(wanted: Sequence[float], fits: Sequence[LeastSquares], h: int, limit: float) -> float:
    """The last of the moves, each as long as wanted, but for those that lead further than ``limit`` from
    where the value was last certain: by three errors of the mean of all slopes since."""
    position = anchor = 0.0
    since, made = 0, 0.0
    for j, move in enumerate(wanted):
        before = position
        position += move
        if abs(position - anchor) > limit:
            seen = fits[since : j + 1]
            mean = sum(f.slopes[h] / f.variances[h] for f in seen) / sum(1 / f.variances[h] for f in seen)
            error = math.sqrt(_noise(fits[: j + 1], 0.9) / sum(1 / f.variances[h] for f in seen))
            enough = 3 * (1 + 4 / _freedom(fits[: j + 1], 0.9)) * error
            if mean * (position - anchor) < 0 and abs(mean) >= enough:
                anchor, since = position, j + 1
            else:
                position = anchor + math.copysign(limit, position - anchor)
        made = position - before
    return made


def _pooled(slopes: Sequence[float], variances: Sequence[float], memory: float) -> tuple[float, float]:
    """The mean by precision and age, and its variance in units of the noise."""
    k = len(slopes) - 1
    w = [memory ** (k - j) / v for j, v in enumerate(variances)]
    slope = sum(a * g for a, g in zip(w, slopes, strict=True)) / sum(w)
    return slope, sum(a * a * v for a, v in zip(w, variances, strict=True)) / sum(w) ** 2


def _noise(fits: Sequence[LeastSquares], memory: float) -> float:
    """Its variance, by age; without residuals, from slopes that differ from round to round."""
    squares = 0.0
    for j, f in enumerate(fits):
        found = f.residual
        if f.freedom == 0:
            pairs = zip(f.slopes, f.variances, fits[j - 1].slopes, fits[j - 1].variances, strict=True)
            found = sum((g - h) ** 2 / (v + u) for g, v, h, u in pairs) if j else 0.0
        squares += memory ** (len(fits) - 1 - j) * found
    freedom = _freedom(fits, memory)
    return squares / freedom if freedom else math.nan


def _freedom(fits: Sequence[LeastSquares], memory: float) -> float:
    """How many residuals the noise is known by."""
    own = [f.freedom or (len(f.slopes) if j else 0) for j, f in enumerate(fits)]
    return sum(memory ** (len(fits) - 1 - j) * degrees for j, degrees in enumerate(own))
