"""What makes losses at different weights comparable: only the weights decide them, and measuring leaves
nothing behind; and batch norm's running statistics, recomputed for the current weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase  # no public names cover all kinds

from hdet.replicas import Replicas, drop_gathered

__all__ = ["forked", "random_state", "refresh_norms_", "trained_norms", "weights_alone"]


@contextmanager
def weights_alone(model: nn.Module, rows: Iterable[Tensor] = (), *, deployed: bool = False) -> Iterator[None]:
    """Inside, only the weights decide the loss; flags, buffers and ``rows`` (buffers of several replicas,
    which the model does not hold) are restored afterwards.

    Batch norm that is training uses the statistics of its batch or, ``deployed``, its running ones.
    """
    flags = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module, _ in flags
        if module._buffers  # most have none, and to ask named_buffers of each takes longer
        for name, buffer in module.named_buffers(recurse=False)
    ]
    held = [(row, row.clone()) for row in rows]
    # The weights were moved in place, which neither autocast's cache of casts nor FSDP's gathered weights
    # notice. Nor may training find casts made in here: older torch makes them without a gradient.
    torch.clear_autocast_cache()
    drop_gathered(model)
    try:
        _set_flags((m, False) for m, trains in flags if trains and (deployed or not isinstance(m, _NormBase)))
        for module, _ in flags:
            if isinstance(module, nn.SyncBatchNorm) and module.training:
                # In training it would wait for ranks that may not be measuring; without running statistics
                # it takes those of its own batch.
                module.training = False
                module.running_mean = module.running_var = None
        yield
    finally:
        torch.clear_autocast_cache()
        drop_gathered(model)
        for module, name, buffer, before in buffers:
            if getattr(module, name) is not buffer:
                setattr(module, name, buffer)
            buffer.copy_(before)
        for row, before in held:
            row.copy_(before)
        _set_flags(flags)


def _set_flags(flags: Iterable[tuple[nn.Module, bool]]) -> None:
    """Whether each module trains: the flag alone, since an overridden train() may fold or unfold weights.

    An assignment asks first whether it is a parameter, a buffer or a module, and takes as long as the rest.
    """
    for module, training in flags:
        if "training" in (own := vars(module)):
            own["training"] = training
        else:  # a scripted module has it elsewhere
            module.training = training


@contextmanager
def forked(model: nn.Module) -> Iterator[Callable[..., None]]:
    """Inside, the CPU and the model's CUDA devices have a random state of their own. Yields a function that
    seeds it from its arguments."""
    devices: list[int] = []
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # else nothing lies there
        tensors = chain(model.parameters(), model.buffers())
        devices = sorted({tensor.device.index for tensor in tensors if tensor.is_cuda})

    def reseed(*key: object) -> None:
        digest = hashlib.sha256("\0".join(map(str, ("probe", *key))).encode()).digest()
        seed = int.from_bytes(digest[:7], "big")
        # torch.manual_seed would reseed every CUDA device, also those that are not forked.
        torch.default_generator.manual_seed(seed)
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)

    with torch.random.fork_rng(devices, device_type="cuda"):
        yield reseed


@contextmanager
def random_state(model: nn.Module, *key: object) -> Iterator[None]:
    """Inside, the random state is a function of ``key``."""
    with forked(model) as reseed:
        reseed(*key)
        yield


def trained_norms(model: nn.Module) -> list[_BatchNorm]:
    """Every batch norm whose running statistics training updates."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats
    ]


@torch.no_grad()
def refresh_norms_(
    model: nn.Module,
    run: Callable[[Any], object],
    batches: Iterable[Any],
    norms: Sequence[_BatchNorm],
    replicas: Replicas | None = None,
) -> None:
    """Recompute the statistics of ``norms`` from these batches alone, with dropout off. All other modules
    and all training flags stay as they are. Of several replicas in this process, each has its own."""
    if not norms:
        return
    flags = [(module, module.training) for module in model.modules()]
    momenta = [norm.momentum for norm in norms]
    rows_of = replicas.buffers_of if replicas is not None and replicas.local_count > 1 else None
    drop_gathered(model)
    try:
        _set_flags((module, False) for module, _ in flags)
        _set_flags((norm, True) for norm in norms)
        for norm in norms:
            if rows_of:
                for name, row in rows_of(norm).items():
                    row.fill_(1 if name == "running_var" else 0)
            else:
                norm.reset_running_stats()
        for k, batch in enumerate(batches):
            for norm in norms:  # a plain mean over the batches; for None rows would have to read a counter
                norm.momentum = 1 / (k + 1) if rows_of else None
            run(batch)
    finally:
        drop_gathered(model)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        _set_flags(flags)
