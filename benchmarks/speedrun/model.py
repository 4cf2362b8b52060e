"""The model of airbench94_muon (KellerJordan/cifar10-airbench), in our own words.

Its filters are the rows of matrices, since torch's Muon takes nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.cifar import CLASSES

__all__ = ["Filters", "Network", "rescale_", "whitening"]

#: Where the eigenvalues of patches are smaller, they are not blown up.
_LEAST_VARIANCE = 5e-4
_PATCH = 2


class Filters(nn.Module):
    """A 3×3 convolution without a bias; the first filters begin as the identity, others at random."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(after, 9 * before))
        bound = 1 / math.sqrt(9 * before)
        with torch.no_grad():
            nn.init.dirac_(self.filters.uniform_(-bound, bound)[:before])

    @property
    def filters(self) -> Tensor:
        """The matrix as (after, before, 3, 3), in the memory format channels_last."""
        return self.weight.view(len(self.weight), 3, 3, -1).permute(0, 3, 1, 2)

    def forward(self, images: Tensor) -> Tensor:
        return F.conv2d(images, self.filters, padding=1)


@torch.no_grad()
def rescale_(matrices: Sequence[Tensor]) -> None:
    """To the norm that a matrix with rows of norm 1 has."""
    for matrix in matrices:
        matrix.mul_(len(matrix) ** 0.5 / matrix.norm())


def whitening(images: Tensor) -> Tensor:
    """Filters whose outputs on patches of these images are uncorrelated and of variance 1, and their
    negatives."""
    patches = F.unfold(images, _PATCH).transpose(1, 2).flatten(0, 1)
    values, vectors = torch.linalg.eigh((patches.T @ patches / len(patches)).double().cpu())
    filters = (vectors / (values + _LEAST_VARIANCE).sqrt()).T.unflatten(1, (-1, _PATCH, _PATCH))
    return torch.cat([filters, -filters])


class Network(nn.Module):
    """The whole; ``width`` is that of the first block, the others have four times as many channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = (2 * 3 * _PATCH**2, width, 4 * width, 4 * width)
        self.whiten = nn.Conv2d(3, widths[0], _PATCH)
        self.whiten.weight.requires_grad_(False)
        blocks = [_block(*pair) for pair in pairwise(widths)]
        self.body = nn.Sequential(nn.GELU(), *blocks, nn.MaxPool2d(3), nn.Flatten())
        self.head = nn.Linear(widths[-1], CLASSES, bias=False)
        with torch.no_grad():
            self.head.weight.div_(self.head.weight.std())
        rescale_(self.matrices)

    @torch.no_grad()
    def whiten_by_(self, images: Tensor) -> None:
        """Set the first filters, which are not trained; ``images`` are as the model is given them."""
        self.whiten.weight.copy_(whitening(images))

    @property
    def matrices(self) -> list[nn.Parameter]:
        """The filters that Muon trains."""
        return [module.weight for module in self.modules() if isinstance(module, Filters)]

    @property
    def first_bias(self) -> nn.Parameter:
        """That of the whitening layer, whose filters are not trained."""
        assert isinstance(self.whiten.bias, nn.Parameter)
        return self.whiten.bias

    @property
    def biases(self) -> list[nn.Parameter]:
        """Those of batch norm."""
        return [module.bias for module in self.modules() if isinstance(module, nn.BatchNorm2d)]

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.whiten(images)))
        return logits / self.head.in_features


def _block(before: int, after: int) -> nn.Module:
    convolved = [Filters(before, after), nn.MaxPool2d(2), _norm(after), nn.GELU()]
    return nn.Sequential(*convolved, Filters(after, after), _norm(after), nn.GELU())


def _norm(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
    norm.weight.requires_grad_(False)
    return norm
