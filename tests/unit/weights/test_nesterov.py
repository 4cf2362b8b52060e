"""The outer step against a slow twin of its equations, and against torch's own Nesterov."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hdet.weights.nesterov import apart, nesterov_, outer_gradient

LRS = st.floats(0.01, 2.0)
MOMENTA = st.floats(0.0, 0.99)
POINTS = st.lists(st.floats(-10, 10, width=32), min_size=3, max_size=3)


def twin(theta: list[float], v: list[float], mean: list[float], lr: float, mu: float) -> None:
    """g = θ − θ̄; v ← μ v + g; θ ← θ − η (g + μ v); number by number."""
    for i in range(len(theta)):
        g = theta[i] - mean[i]
        v[i] = mu * v[i] + g
        theta[i] = theta[i] - lr * (g + mu * v[i])


@given(start=POINTS, means=st.lists(POINTS, min_size=1, max_size=5), lr=LRS, mu=MOMENTA)
def test_it_is_what_the_equations_say(
    start: list[float], means: list[list[float]], lr: float, mu: float
) -> None:
    theta, v = list(start), [0.0] * 3
    point, velocity = torch.tensor(start, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for moved in means:
        mean = [a + 0.1 * b for a, b in zip(theta, moved, strict=True)]
        twin(theta, v, mean, lr, mu)
        there = torch.tensor(mean, dtype=torch.float64)
        point = nesterov_(there, outer_gradient(point, there), velocity, lr, mu)
        torch.testing.assert_close(point, torch.tensor(theta, dtype=torch.float64), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(velocity, torch.tensor(v, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("lr", "mu"), [(0.7, 0.9), (1.3, 0.5), (0.4, 0.0)])
def test_it_is_what_torch_does_with_the_outer_gradient(lr: float, mu: float) -> None:
    torch.manual_seed(0)
    theta = torch.nn.Parameter(torch.randn(50, dtype=torch.float64))
    sgd = torch.optim.SGD([theta], lr=lr, momentum=mu, nesterov=mu > 0)
    point, velocity = theta.detach().clone(), torch.zeros(50, dtype=torch.float64)
    for _ in range(20):
        mean = theta.detach() + torch.randn(50, dtype=torch.float64)
        theta.grad = theta.detach() - mean
        there = mean.clone()
        point = nesterov_(there, outer_gradient(point, there), velocity, lr, mu)
        sgd.step()
        torch.testing.assert_close(point, theta.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_at_a_rate_of_one_without_momentum_it_is_the_mean_bit_for_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    start, mean = torch.randn(1000).to(dtype), torch.randn(1000).to(dtype)
    for velocity in (None, torch.zeros(1000, dtype=torch.promote_types(dtype, torch.float32))):
        assert torch.equal(nesterov_(mean, outer_gradient(start, mean), velocity, 1.0, 0.0).to(dtype), mean)


@given(lrs=st.lists(LRS, min_size=1, max_size=6), mu=st.lists(MOMENTA, min_size=6, max_size=6))
def test_the_mean_of_the_starts_is_the_base_point(lrs: list[float], mu: list[float]) -> None:
    every = [apart(lrs, mu[: len(lrs)], arm) for arm in range(len(lrs))]
    assert sum(a for a, _ in every) == pytest.approx(0.0, abs=1e-12)
    assert sum(b for _, b in every) == pytest.approx(0.0, abs=1e-12)
    for r, (a, b) in enumerate(every):
        assert a - every[0][0] == pytest.approx(lrs[r] - lrs[0], abs=1e-12)
        assert b - every[0][1] == pytest.approx(lrs[r] * mu[r] - lrs[0] * mu[0], abs=1e-12)


def test_arms_that_are_alike_do_not_part_at_all() -> None:
    assert all(apart([0.7] * n, [0.9] * n, 0) == (0.0, 0.0) for n in range(1, 9))
