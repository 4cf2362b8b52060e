"""Poisons at random places: nothing that is not finite is ever in a mean, and no explosion either."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import hdet
from hdet.replicas.launch import LocalProcesses

SIZE, SYNC_EVERY, LIMIT = 4, 3, 1100
VALUES = (math.nan, math.inf, -math.inf, 1e30)
PLACES = ("gradient", "loss", "weight", "buffer", "state")


def poisons(count: int, seed: int = 0, pool: LocalProcesses | None = None) -> Iterator[dict[str, Any]]:
    """One line for each run: with a probe and without one, half of the poisons each."""
    if pool is None:
        with LocalProcesses(SIZE) as own:
            yield from poisons(count, seed, own)
        return
    for probes, times in ((False, count - count // 2), (True, count // 2)):
        results = pool.run(poisoned, probes, times, seed, size=SIZE, timeout=LIMIT)
        line = {key: results[0][key] for key in ("poisons", "places", "left_out", "means")}
        line |= {"seed": seed, "probe": probes}
        line["not_finite"] = sum(result["not_finite"] for result in results)
        line["largest"] = max(result["largest"] for result in results)
        line["differ"] = sum(not _equal(result["held"], results[0]["held"]) for result in results)
        yield {**line, "broken": broken(line)}


def broken(line: dict[str, Any]) -> str:
    """What a line breaks of what is promised, in words; empty if nothing."""
    found = {
        f"{line['not_finite']} means not finite": line["not_finite"] > 0,
        f"{line['largest']} in a mean: an explosion": not line["largest"] < 1e6,
        f"{line['differ']} ranks ended elsewhere": line["differ"] > 0,
        "hardly anybody was left out": line["left_out"] < line["poisons"] // 2,
    }
    return "; ".join(words for words, is_so in found.items() if is_so)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 12), nn.BatchNorm1d(12), nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.norm(self.first(x))))
        return out


def poisoned(rank: int, probes: bool, times: int, seed: int) -> dict[str, Any]:
    """In every other round some replicas, never all, are poisoned in one place, at one of its steps."""
    chance = random.Random(f"{seed} {probes}")  # the same on all ranks
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss_of(x: Tensor) -> Tensor:
        return (model(x) - x.sum(1, keepdim=True)).square().mean()

    judge = {"probe": hdet.Probe(loss_of, list(torch.randn(4, 16, 5)), model=model)} if probes else {}
    ensemble = hdet.Ensemble(
        optimizer, [hdet.WeightDecay()], gradients="none", sync_every=SYNC_EVERY, model=model, **judge
    )
    torch.manual_seed(rank + 1)
    left_out = not_finite = 0
    largest = 0.0
    places = dict.fromkeys(PLACES, 0)
    for round in range(2 * times):
        sick = chance.sample(range(SIZE), chance.randrange(1, SIZE)) if round % 2 else []
        at, value, place = chance.randrange(SYNC_EVERY), chance.choice(VALUES), chance.choice(PLACES)
        which, element = chance.random(), chance.random()
        places[place] += round % 2
        for step in range(SYNC_EVERY):
            now = rank in sick and step == at
            loss = loss_of(torch.randn(8, 5))
            optimizer.zero_grad()
            (loss * value if now and place == "loss" else loss).backward()
            if now and place == "gradient":
                _put([p.grad for p in model.parameters() if p.grad is not None], which, element, value)
            optimizer.step()
            if now:
                _put(_held(model, optimizer)[place], which, element, value) if place in PLACES[2:] else None
            if step == SYNC_EVERY - 1 and chance.random() < 0.2:
                ensemble.converge()  # a mean on demand comes first
            reported = loss.detach() * value if now and place == "loss" else loss.detach()
            record = ensemble.step(reported)
        assert record is not None
        left_out += any("left out of the mean" in event for event in record.events)
        held = [tensor for some in _held(model, optimizer).values() for tensor in some]
        not_finite += not all(bool(torch.isfinite(tensor).all()) for tensor in held)
        largest = max(largest, *(float(tensor.abs().max()) for tensor in held))
    return {
        "poisons": times,
        "means": 2 * times,
        "places": places,
        "left_out": left_out,
        "not_finite": not_finite,
        "largest": largest,
        "held": [tensor.clone() for tensor in held],
    }


def _held(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[Tensor]]:
    """Everything that a mean takes."""
    return {
        "weight": [p.detach() for p in model.parameters()],
        "buffer": [buffer for buffer in model.buffers() if buffer.is_floating_point()],
        "state": [
            value for kept in optimizer.state.values() for name, value in kept.items() if name != "step"
        ],
    }


def _put(tensors: list[Tensor], which: float, element: float, value: float) -> None:
    tensor = tensors[int(which * len(tensors))].view(-1)
    tensor[int(element * tensor.numel())] = value


def _equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(mine, other) for mine, other in zip(some, others, strict=True))
