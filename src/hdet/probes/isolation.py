"""What makes losses at different weights comparable: nothing but the weights decides them, and nothing of
the measurement is left afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase  # no public name covers batch and instance norm

from hdet.replicas import give_up_gathered

__all__ = ["forked", "random_state", "reseed", "weights_alone"]


@contextmanager
def weights_alone(model: nn.Module) -> Iterator[None]:
    """Nothing but the weights decides the loss in here, and nothing of it is left afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module, _ in flags
        for name, buffer in module.named_buffers(recurse=False)
    ]
    # The weights were moved in place, which autocast does not notice: it would go on using the casts of the
    # last point. Training must not find those made in here either; older torch makes them without a gradient.
    torch.clear_autocast_cache()
    give_up_gathered(model)  # nor does FSDP notice it
    try:
        for module, trained in flags:
            _set_mode(module, trained)
        yield
    finally:
        torch.clear_autocast_cache()
        give_up_gathered(model)
        for module, name, buffer, before in buffers:
            if getattr(module, name) is not buffer:
                setattr(module, name, buffer)
            buffer.copy_(before)
        for module, trained in flags:
            module.training = trained


def _set_mode(module: nn.Module, trained: bool) -> None:
    # The flag alone, not eval(): a train() that was overridden may fold or unfold weights.
    if isinstance(module, nn.SyncBatchNorm) and trained:
        # Training, it would wait for ranks that may not be measuring; without running statistics it takes
        # those of its own batch.
        module.training = False
        module.running_mean = module.running_var = None
    else:
        module.training = trained and isinstance(module, _NormBase)


@contextmanager
def forked(model: nn.Module) -> Iterator[list[int]]:
    """Within, the random state of the CPU and of the model's CUDA devices is another; yields the devices."""
    tensors = chain(model.parameters(), model.buffers())
    devices = sorted({tensor.device.index for tensor in tensors if tensor.is_cuda})
    with torch.random.fork_rng(devices, device_type="cuda"):
        yield devices


@contextmanager
def random_state(model: nn.Module, *key: object) -> Iterator[None]:
    """Within, the random state is a function of ``key``."""
    with forked(model) as devices:
        reseed(devices, *key)
        yield


def reseed(devices: Sequence[int], *key: object) -> None:
    """Let the forked random state begin anew, as a function of ``key``."""
    digest = hashlib.sha256("\0".join(map(str, ("probe", *key))).encode()).digest()
    seed = int.from_bytes(digest[:7], "big")
    # torch.manual_seed would reseed every CUDA device, also those that are not forked.
    torch.default_generator.manual_seed(seed)
    for device in devices:
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
