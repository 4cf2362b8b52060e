"""Algorithm 1 line by line as the paper prints it, serial and in float64; the numbers are its lines.

Nothing is shared with the package, and nothing is corrected. What the paper leaves open: line 6 holds until
the first decision, after which the rates are those of line 17; and the permutations come from outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.reference import Loss


@dataclass
class Printed:
    """Weights at the end; the rates η_r of each step, by group; L_r and w_r of each decision."""

    weights: list[Tensor]
    rates: list[list[list[float]]] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    votes: list[list[float]] = field(default_factory=list)


def algorithm_1(
    theta_0: Sequence[Tensor],
    loss: Loss,
    permutation: Callable[[int, int], Sequence[int]],
    direction: Callable[[list[Tensor], Tensor, int], Tensor],
    *,
    N: int,
    S: int,
    eta_max: Sequence[float],
    f_div: float,
    f_final: float,
    T: int,
    S_warm: int,
    auto_lr: bool = True,
    alpha: float = 1 / 9,
    beta: float = 0.9,
    sigma: float = 0.1,
    lam: float = 0.5,
) -> Printed:
    """``permutation(t, group)`` is π of line 17; ``direction(memory, gradient, t)`` is the optimizer's ḡ."""
    groups = range(len(theta_0))
    theta = [[w.clone().double() for w in theta_0] for _ in range(N)]
    memory = [[[torch.zeros_like(w), torch.zeros_like(w)] for w in theta_0] for _ in range(N)]
    v, L_acc = [0.0 for _ in groups], [0.0] * N  # 2
    rho = [1 + alpha * (r - (N - 1) / 2) / max((N - 1) / 2, 0.5) for r in range(N)]  # 3
    gamma = 1 - math.exp(-math.log(f_div / f_final) / ((S - S_warm) / T))  # Eq. 8
    eta = [[0.0] * N for _ in groups]
    printed = Printed(theta[0])
    for t in range(1, S + 1):  # 4
        losses = []
        gradients = []
        for r in range(N):  # 5
            here = [w.clone().requires_grad_(True) for w in theta[r]]
            losses.append(loss(here, r, t - 1))
            gradients.append(torch.autograd.grad(losses[r], here))
        if not printed.votes:  # 6
            eta = [[_one_cycle(t - 1, S, m, f_div, f_final) * rho[r] for r in range(N)] for m in eta_max]
        printed.rates.append([list(row) for row in eta])
        for j in groups:  # 7
            shared = sum(g[j] for g in gradients) / N
            for r in range(N):
                theta[r][j] = theta[r][j] - eta[j][r] * direction(memory[r][j], shared, t)
        L_acc = [a + float(b.detach()) for a, b in zip(L_acc, losses, strict=True)]  # 8
        if t % T:  # 9
            continue
        for j in groups:  # 10
            mean = sum(theta[r][j] for r in range(N)) / N
            for r in range(N):
                theta[r][j] = mean
        if not (auto_lr and t >= S_warm):  # 11, 18–19
            continue
        L, L_acc = [a / T for a in L_acc], [0.0] * N  # 12
        L_bar = sum(L) / N  # 13, Eq. 4
        e = [math.exp((L_bar - x) / sigma) for x in L]
        w = [x / sum(e) for x in e]
        for j in groups:
            eta_bar = sum(eta[j]) / N  # 14
            delta = sum(a * b for a, b in zip(w, eta[j], strict=True)) - eta_bar
            v[j] = beta * v[j] + (1 - beta) * delta  # 15
            eta_bar = eta_bar * (1 - gamma) + v[j] * lam  # 16
            eta[j] = [eta_bar * rho[i] for i in permutation(t, j)]  # 17
        printed.losses.append(L)
        printed.votes.append(w)
    printed.weights = theta[0]  # 23
    return printed


def _one_cycle(step: int, steps: int, peak: float, f_div: float, f_final: float) -> float:
    """torch's OneCycleLR with its defaults: a cosine up over 30 % of the run, and one down."""
    low, top = peak / f_div, 0.3 * steps - 1
    if step <= top:
        begin, end, x = low, peak, step / top
    else:
        begin, end, x = peak, low / f_final, (step - top) / (steps - 1 - top)
    return end + (begin - end) / 2 * (1 + math.cos(math.pi * x))
