"""A graph of papers that cite one another: the model holds it, a batch names nodes or pairs of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.base import generator
from benchmarks.zoo.data import arrays, split, tensor, three_parts
from benchmarks.zoo.models import cross_entropy, yes_or_no
from benchmarks.zoo.task import Parts, Task, task

__all__ = ["TASKS"]

_FILE = "graph_citeseer.npz"
_KINDS = 6


class _Graph(nn.Module):
    """Two layers that take a mean over neighbours (Kipf and Welling 2017), for all nodes at once."""

    begin: Tensor
    end: Tensor
    weight: Tensor
    words: Tensor
    offsets: Tensor

    def __init__(self, links: Tensor, width: int, outputs: int) -> None:
        super().__init__()
        found = arrays(_FILE)
        offsets = tensor(found["feat_indptr"])
        nodes = torch.arange(len(offsets) - 1)
        begin = torch.cat([links[:, 0], links[:, 1], nodes])
        end = torch.cat([links[:, 1], links[:, 0], nodes])
        degree = torch.bincount(begin, minlength=len(nodes)).float()
        held = {"begin": begin, "end": end, "weight": (degree[begin] * degree[end]).rsqrt()[:, None]}
        held |= {"words": tensor(found["feat_indices"]), "offsets": offsets[:-1]}
        for name, value in held.items():
            self.register_buffer(name, value, persistent=False)
        # The mean over a paper's words is a linear layer on its normalised bag of words.
        self.first = nn.Parameter(torch.empty(int(found["n_features"]), width))
        self.second = nn.Linear(width, outputs)
        self.dropout = nn.Dropout(0.5)
        nn.init.xavier_uniform_(self.first)

    def nodes(self) -> Tensor:
        """One row for each node."""
        hidden = self._around(F.embedding_bag(self.words, self.first, self.offsets)).relu()
        return self._around(self.second(self.dropout(hidden)))

    def _around(self, rows: Tensor) -> Tensor:
        return torch.zeros_like(rows).index_add(0, self.begin, self.weight * rows[self.end])


class _Kinds(_Graph):
    """Logits of the nodes asked for."""

    def forward(self, asked: Tensor) -> Tensor:
        return self.nodes()[asked]


class _Links(_Graph):
    """Whether there is a link between two nodes."""

    def forward(self, pairs: Tensor) -> Tensor:
        ends = self.nodes()[pairs]
        return (ends[:, 0] * ends[:, 1]).sum(1)


def _links() -> Tensor:
    return tensor(arrays(_FILE)["edges"])


def _labels() -> Parts:
    """The published parts: 120 nodes to train on, as many of each class; the others as they come."""
    found = arrays(_FILE)
    y, which = tensor(found["y"]), tensor(found["split"])
    rows = [torch.nonzero((which == part) & (y < _KINDS)).flatten() for part in (1, 2, 3)]
    return three_parts(*((one, y[one]) for one in rows))


def _pairs() -> Parts:
    """As many links as pairs drawn at random."""
    links = _links()
    draw = generator(0, "zoo links")
    pairs = torch.cat([links, torch.randint(len(arrays(_FILE)["y"]), links.shape, generator=draw)])
    order = torch.randperm(len(pairs), generator=draw)
    return split(pairs[order], (torch.arange(len(pairs)) < len(links)).float()[order])


def _link_model() -> _Links:
    """It sees the links that are trained on."""
    pairs, there = _pairs().train
    return _Links(pairs[there == 1], 64, 32)


TASKS: tuple[Task, ...] = (
    task(
        "papers-few-labels",
        "citations",
        200,
        data=_labels,
        model=lambda: _Kinds(_links(), 16, _KINDS),
        loss=cross_entropy,
        batch=None,
    ),
    task(
        "papers-links",
        "citations",
        400,
        data=_pairs,
        model=_link_model,
        loss=yes_or_no,
        batch=1024,
    ),
)
