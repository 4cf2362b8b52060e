"""Fields in space and time: a network that knows the equation, a network of sines, the next step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.base import generator
from benchmarks.zoo.data import arrays, split, tensor, three_parts
from benchmarks.zoo.models import mlp, squares
from benchmarks.zoo.task import Batch, Parts, Task, task

__all__ = ["TASKS"]

_FILE = "phys_pde_fields.npz"
#: Of Burgers' equation u_t + u·u_x = ν·u_xx.
_VISCOSITY = 0.01 / math.pi


def _points(name: str) -> tuple[Tensor, Tensor]:
    """Places (x, t), each from −1 to 1, in a random order, and the field there."""
    found = arrays(_FILE)
    axes = [tensor(found[f"{name}_{axis}"]) for axis in "xt"]
    x, t = (2 * (axis - axis.min()) / (axis.max() - axis.min()) - 1 for axis in axes)
    places, field = torch.cartesian_prod(x, t), tensor(found[f"{name}_u"]).flatten()
    order = torch.randperm(len(field), generator=generator(0, f"zoo {name}"))
    return places[order], field[order]


def _burgers() -> Parts:
    """Places inside, to hold the equation at; places at the beginning and at the walls, with the field there.

    All parts hold the same kinds of losses, each at places of its own.
    """
    places, field = _points("burgers")
    edge = (places[:, 1] == -1) | (places[:, 0].abs() == 1)
    inside, known, value = places[~edge], places[edge], field[edge]

    def part(first: int, rows: int, known_first: int) -> tuple[Tensor, Tensor, Tensor]:
        here = slice(known_first, known_first + 128)
        few, values = (one[here].repeat(rows // 128, *[1] * (one.ndim - 1)) for one in (known, value))
        return inside[first : first + rows], few, values

    return three_parts(part(0, 1024, 0), part(1024, 1024, 128), part(2048, 4096, 256))


def _equation(model: nn.Module, batch: Batch) -> Tensor:
    """The mean square of what the equation leaves over, and of what the known values do."""
    places, known, value = batch
    with torch.enable_grad():
        places = places.detach().requires_grad_()
        u = model(places)
        slope = torch.autograd.grad(u.sum(), places, create_graph=True)[0]
        bend = torch.autograd.grad(slope[:, 0].sum(), places, create_graph=True)[0][:, 0]
        # Time runs from 0 to 0.99 while t runs from −1 to 1.
        left_over = slope[:, 1] * (2 / 0.99) + u[:, 0] * slope[:, 0] - _VISCOSITY * bend
        loss: Tensor = left_over.square().mean() + F.mse_loss(model(known)[:, 0], value)
        return loss


def _waves() -> Parts:
    places, field = _points("ks")
    return split(places, field, probe=0.1, test=0.1)


def _next_field() -> Parts:
    """The field at every time, and by how much it changes until the next one."""
    field = tensor(arrays(_FILE)["ks_u"])[::4, :].T.contiguous()
    now, change = field[:-1, None], (field[1:] - field[:-1])[:, None]
    order = torch.randperm(len(now), generator=generator(0, "zoo next field"))
    return split(now[order], change[order], probe=0.2, test=0.2)


class _Sine(nn.Module):
    """Linear, then a sine (Sitzmann et al. 2020)."""

    def __init__(self, inputs: int, outputs: int, frequency: float, first: bool) -> None:
        super().__init__()
        self.linear, self.frequency = nn.Linear(inputs, outputs), frequency
        bound = 1 / inputs if first else math.sqrt(6 / inputs) / frequency
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.frequency * self.linear(x))


def _sines(width: int) -> nn.Sequential:
    layers = [_Sine(2, width, 30.0, True), _Sine(width, width, 30.0, False), _Sine(width, width, 30.0, False)]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def _step_net() -> nn.Sequential:
    def conv(inputs: int, outputs: int) -> nn.Conv1d:
        return nn.Conv1d(inputs, outputs, 5, padding=2, padding_mode="circular")

    return nn.Sequential(
        conv(1, 32), nn.GELU(), conv(32, 32), nn.GELU(), conv(32, 32), nn.GELU(), conv(32, 1)
    )


TASKS: tuple[Task, ...] = (
    task(
        "burgers-knows-the-equation",
        "burgers-equation",
        800,
        data=_burgers,
        model=lambda: mlp(2, 32, 32, 32, 1, act=nn.Tanh),
        loss=_equation,
        batch=None,
        floor=0.005,
    ),
    task(
        "waves-sines",
        "chaotic-waves",
        1000,
        data=_waves,
        model=lambda: _sines(128),
        loss=squares,
        batch=2048,
        also=("muon",),
        floor=0.002,
    ),
    task(
        "waves-next-step",
        "chaotic-waves",
        600,
        data=_next_field,
        model=_step_net,
        loss=squares,
        batch=8,
        floor=3e-5,
    ),
)
