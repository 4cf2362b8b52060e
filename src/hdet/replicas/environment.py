"""What ``torch.distributed`` finds on this machine, and the group that a launcher has prepared."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

__all__ = ["available_backends", "launch_variables", "launched_group", "launched_ranks"]

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def available_backends() -> dict[str, bool]:
    """Which of torch's own backends this build of torch can use."""
    return {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        "mpi": dist.is_mpi_available(),
    }


def launch_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What torchrun, or another launcher, told this process."""
    return {name: environment[name] for name in _VARIABLES if name in environment}


def launched_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """How many ranks a launcher has started; 1 where there was none.

    >>> launched_ranks({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"})
    2
    >>> launched_ranks({"WORLD_SIZE": "2"})
    1
    """
    complete = {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environment.keys()
    return int(environment["WORLD_SIZE"]) if complete else 1


@contextmanager
def launched_group(timeout: float = 60.0) -> Iterator[tuple[str, torch.device]]:
    """The default group over the ranks that a launcher has started; yields its backend and our device.

    NCCL where every rank of this machine has a GPU to itself, gloo otherwise.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    on_gpu = dist.is_nccl_available() and torch.cuda.device_count() >= local_size
    backend = "nccl" if on_gpu else "gloo"
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    try:
        yield backend, device
        dist.barrier()  # leave together: no rank takes the group down while another still uses it
    finally:
        # An optimizer and the hooks on it hold each other, and with them DDP: let those go before the group.
        gc.collect()
        dist.destroy_process_group()
