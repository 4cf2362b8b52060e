"""The paper's metrics of a model that foretells yes or no: AUC and normalised entropy.

Scores and labels are ``[…, samples, answers]``, the metric is ``[…, answers]``; labels may lack the leading
dimensions. It is NaN where it is not defined: a score is NaN, or all labels of an answer are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["auc", "normalised_entropy"]


def auc(scores: Tensor, labels: Tensor) -> Tensor:
    """How often a sample with label 1 scores higher than one with label 0; a tie counts half.

    >>> auc(torch.tensor([[0.1], [0.4], [0.4], [0.8]]), torch.tensor([[0], [0], [1], [1]]))
    tensor([0.8750], dtype=torch.float64)
    """
    values = scores.double().transpose(-1, -2).contiguous()
    yes = labels.double().expand_as(scores).transpose(-1, -2)
    in_order = values.sort(dim=-1).values
    # The rank of a score, from 1; of equal ones the mean of their ranks.
    below = torch.searchsorted(in_order, values)
    up_to = torch.searchsorted(in_order, values, right=True)
    rank = (below + up_to + 1) / 2
    positives = yes.sum(-1)
    pairs = positives * (yes.shape[-1] - positives)
    found = ((rank * yes).sum(-1) - positives * (positives + 1) / 2) / pairs
    return found.masked_fill(values.isnan().any(-1), torch.nan)


def normalised_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Log loss over that of who knows how often the answer is yes, and nothing else: 1 is as good as that.

    >>> normalised_entropy(torch.zeros(4, 1), torch.tensor([[0], [0], [1], [1]]))
    tensor([1.], dtype=torch.float64)
    """
    yes = labels.double().expand_as(logits)
    loss = F.binary_cross_entropy_with_logits(logits.double(), yes, reduction="none").mean(-2)
    rate = yes.mean(-2)
    entropy = -torch.xlogy(rate, rate) - torch.xlogy(1 - rate, 1 - rate)
    return loss / entropy.masked_fill(entropy == 0, torch.nan)
