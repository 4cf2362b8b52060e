"""A stream of impressions that drifts, and a model with a table of fifty million weights in bfloat16.

A user has a taste, an item a topic, and an answer's chance follows from the two. Topics turn with time, so
that what was learnt grows old. Items are as popular as words are (Zipf). No sample comes twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.paper.fleet import Course
from benchmarks.workloads.base import Batch, generator, seeded

__all__ = ["ITEMS", "WIDTH", "StreamModel", "make"]

ITEMS, WIDTH = 800_000, 64
_TOPICS, _HISTORY, _ANSWERS = 8, 8, 3
_BIAS = (-3.0, -1.7, -0.4)
#: Steps in which topics turn once.
_TURN = 40_000
_STRENGTH = 2.0


class StreamModel(nn.Module):
    """What a user saw and did, and the candidate, through two layers to a logit for each answer."""

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.item = nn.Embedding(items, width, dtype=torch.bfloat16)
        self.action = nn.Embedding(2, width)
        self.layers = nn.Sequential(
            nn.Linear(3 * width, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, _ANSWERS)
        )
        nn.init.normal_(self.item.weight, std=0.02)
        nn.init.normal_(self.action.weight, std=0.02)

    def forward(self, history: Tensor, actions: Tensor, candidate: Tensor) -> Tensor:
        # Looked up together, for each look-up has a gradient as large as the table.
        looked_up = self.item(torch.cat([history, candidate[..., None]], -1)).float()
        seen, shown = looked_up[..., :-1, :], looked_up[..., -1, :]
        liked = (seen * actions[..., None]).mean(-2)
        passed = (seen + self.action(actions)).mean(-2)
        logits: Tensor = self.layers(torch.cat([liked, passed, shown], -1))
        return logits


def outputs(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and targets."""
    *seen, targets = batch
    return model(*seen), targets


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """The sum over answers of the mean binary cross-entropy."""
    return F.binary_cross_entropy_with_logits(*outputs(model, batch)) * _ANSWERS


def groups(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Tables, biases, matrices."""
    found: dict[str, list[nn.Parameter]] = {"embedding": [], "no_decay": [], "non_embedding": []}
    for name, parameter in model.named_parameters():
        kind = "embedding" if name.startswith(("item", "action")) else "non_embedding"
        found["no_decay" if parameter.ndim < 2 else kind].append(parameter)
    return found


@cache
def _topics(items: int, device: str) -> Tensor:
    return torch.randn(items, _TOPICS, generator=generator(0, "stream topics")).to(device)


def _impressions(items: int, device: str, rows: int, step: int, draw: torch.Generator) -> Batch:
    """One batch as of a step: eight impressions of a user with their likes, a candidate, three answers."""
    uniform = torch.rand(rows, _HISTORY + 1, generator=draw, device=device)
    shown = (items**uniform).long() - 1  # P(item k) ~ 1/k
    taste = F.normalize(torch.randn(rows, _TOPICS, generator=draw, device=device), dim=-1)
    turned = _turned(_topics(items, device)[shown], step)
    interest = _STRENGTH * (turned * taste[:, None]).sum(-1)
    likes = torch.rand(rows, _HISTORY, generator=draw, device=device) < interest[:, :-1].sigmoid()
    bias = torch.tensor(_BIAS, device=device)
    chance = (bias + interest[:, -1:]).sigmoid()
    answers = torch.rand(rows, _ANSWERS, generator=draw, device=device) < chance
    return shown[:, :-1], likes.long(), shown[:, -1], answers.float()


def _turned(topics: Tensor, step: int) -> Tensor:
    """Pairs of coordinates go round: what an item is about changes with time."""
    angle = 2 * math.pi * step / _TURN
    first, second = topics.view(*topics.shape[:-1], -1, 2).unbind(-1)
    cosine, sine = math.cos(angle), math.sin(angle)
    return torch.stack([cosine * first - sine * second, sine * first + cosine * second], -1).flatten(-2)


def make(device: str, *, steps: int, rows: int, items: int = ITEMS, begin: int = 0) -> Course:
    """``steps`` of the stream from step ``begin`` on; held out is what comes at its end, unseen."""

    def batches(seed: int) -> Iterator[Batch]:
        draw = torch.Generator(device).manual_seed(1_000_003 * seed + begin + 1)
        step = begin
        while True:
            yield _impressions(items, device, rows, step, draw)
            step += 1

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            return StreamModel(items, WIDTH).to(device)

    last = torch.Generator(device).manual_seed(7)
    held_out = tuple(_impressions(items, device, 512, begin + steps, last) for _ in range(64))
    rates = torch.cat([answers for *_, answers in held_out]).mean(0)
    blind = float(-(torch.xlogy(rates, rates) + torch.xlogy(1 - rates, 1 - rates)).sum())
    return Course(
        name="stream",
        steps=steps,
        build=build,
        loss=loss,
        batches=batches,
        probe=batches,
        held_out=held_out,
        blind=blind,
        groups=groups,
        outputs=outputs,
    )
