"""The small models of the zoo, and the losses that several tasks share.

A batch is what the model is given, and last what is to be predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.base import Batch
from benchmarks.workloads.charlm import Block, init_weights

__all__ = [
    "Columns",
    "Encoder",
    "Recurrent",
    "Words",
    "convolutions",
    "cross_entropy",
    "gaussian",
    "images_net",
    "likelihood",
    "mlp",
    "predicted",
    "signals_net",
    "squares",
    "yes_or_no",
]


def mlp(
    *sizes: int, norm: bool = False, dropout: float = 0.0, act: Callable[[], nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Linear layers of these sizes with ``act`` between them."""
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(inputs, outputs))
        if number < len(sizes) - 2:
            layers += [nn.BatchNorm1d(outputs)] if norm else []
            layers += [act()]
            layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)


class Columns(nn.Module):
    """A table: numbers as they are, categories by embeddings, then an MLP."""

    def __init__(self, numbers: int, kinds: Sequence[int], *sizes: int, width: int = 8) -> None:
        super().__init__()
        self.kinds = nn.ModuleList(nn.Embedding(size, width) for size in kinds)
        self.mlp = mlp(numbers + width * len(kinds), *sizes)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        embedded = [table(kinds[:, i]) for i, table in enumerate(self.kinds)]
        out: Tensor = self.mlp(torch.cat([numbers, *embedded], 1))
        return out


class Words(nn.Module):
    """The mean of the embeddings of all words but code 0, then an MLP."""

    def __init__(self, words: int, width: int, *sizes: int) -> None:
        super().__init__()
        self.word = nn.EmbeddingBag(words, width, padding_idx=0)
        self.mlp = mlp(width, *sizes)

    def forward(self, text: Tensor) -> Tensor:
        out: Tensor = self.mlp(self.word(text))
        return out


class Recurrent(nn.Module):
    """A GRU over vectors or embedded tokens; outputs from its mean over time, or at every place."""

    def __init__(
        self,
        inputs: int,
        width: int,
        outputs: int,
        *,
        tokens: int = 0,
        every: bool = False,
        both_ways: bool = False,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(tokens, inputs) if tokens else nn.Identity()
        self.every = every
        self.gru = nn.GRU(inputs, width, batch_first=True, bidirectional=both_ways)
        self.head = nn.Linear(width * (2 if both_ways else 1), outputs)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(self.token(x))
        out: Tensor = self.head(states if self.every else states.mean(1))
        return out


class Encoder(nn.Module):
    """Attention over all places, of tokens by embeddings or of vectors; code 0 is no token."""

    def __init__(
        self,
        width: int,
        outputs: int,
        length: int,
        *,
        tokens: int = 0,
        inputs: int = 0,
        layers: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(tokens, width) if tokens else nn.Linear(inputs, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        self.apply(init_weights)

    def features(self, x: Tensor) -> Tensor:
        """The mean over all places."""
        here = torch.ones_like(x[..., 0], dtype=torch.bool) if x.is_floating_point() else x != 0
        hidden = self.token(x) + self.position.weight[: x.shape[1]]
        for block in self.blocks:
            hidden = block(hidden, here[:, None, None, :])
        weights = here.to(hidden.dtype)[..., None]
        mean: Tensor = (self.norm(hidden) * weights).sum(1) / weights.sum(1).clamp_min(1)
        return mean

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


def convolutions(*channels: int, dimensions: int = 2, norm: bool = True) -> nn.Sequential:
    """Convolutions of width 3, each of which halves every side."""
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dimensions]
    batch_norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dimensions]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(channels):
        layers.append(conv(inputs, outputs, 3, stride=2, padding=1, bias=not norm))
        layers += [batch_norm(outputs)] if norm else []
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def images_net(*channels: int, outputs: int, norm: bool = True) -> nn.Sequential:
    """Convolutions, the mean over the picture, a linear head."""
    body = convolutions(*channels, norm=norm)
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], outputs))


def signals_net(*channels: int, outputs: int, norm: bool = True) -> nn.Sequential:
    """The same along a line."""
    body = convolutions(*channels, dimensions=1, norm=norm)
    return nn.Sequential(*body, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels[-1], outputs))


def predicted(model: nn.Module, batch: Batch) -> Tensor:
    """What the model makes of all but the last part."""
    out: Tensor = model(*batch[:-1])
    return out


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Of classes, one a row or one at every place; a target of −100 does not count."""
    logits = predicted(model, batch)
    return F.cross_entropy(logits.flatten(0, -2), batch[-1].flatten())


def yes_or_no(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of binary targets, one or several a row."""
    logits = predicted(model, batch)
    return F.binary_cross_entropy_with_logits(logits, batch[-1].reshape(logits.shape).to(logits.dtype))


def squares(model: nn.Module, batch: Batch) -> Tensor:
    """The mean squared error."""
    guess = predicted(model, batch)
    return F.mse_loss(guess, batch[-1].reshape(guess.shape))


def gaussian(model: nn.Module, batch: Batch) -> Tensor:
    """Minus the log-likelihood of a Gaussian whose mean and log-deviation the model gives."""
    mean, log_deviation = predicted(model, batch).unbind(-1)
    return likelihood(batch[-1], mean, log_deviation).mean().neg()


def likelihood(y: Tensor, mean: Tensor, log_deviation: Tensor) -> Tensor:
    """The log-density of ``y``; the deviation is at least 1e-3."""
    log_deviation = log_deviation.clamp(-7.0, 7.0)
    z = (y - mean) * torch.exp(-log_deviation)
    return -0.5 * z.square() - log_deviation - 0.5 * math.log(2 * math.pi)
