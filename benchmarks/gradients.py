"""One gradient for all processes, for loops whose model is not in DDP."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["average_gradients"]


def average_gradients(model: nn.Module) -> None:
    """As DDP does, after the backward pass: in the host's memory, since gloo sends from there."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients]).cpu()
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, part in zip(gradients, torch.split(flat.to(gradients[0].device), sizes), strict=True):
        gradient.copy_(part.view_as(gradient))
