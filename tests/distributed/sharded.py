"""One small model in every layout that ranks may have it in, trained on the same data in all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import hdet
from hdet.history import SyncRecord
from hdet.replicas import local

#: Samples of a batch; the ranks of one replica share them.
SAMPLES = 16


class Uneven(nn.Module):
    """Shapes that no number of ranks divides, and biases too short to reach the last rank."""

    def __init__(self, wide: int = 7, narrow: int = 3, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.one = nn.Linear(5, wide, dtype=dtype)
        self.two = nn.Linear(wide, narrow, dtype=dtype)
        self.last = nn.Linear(narrow, 1, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.two(torch.tanh(self.one(x)))))
        return out


def replicas_in(layout: str) -> int:
    """How many replicas the four ranks of a layout are (two of DDP)."""
    return 2 if layout in ("ddp", "hsdp", "tp x dp", "hsdp x tp") or "hybrid" in layout else 1


def whose(layout: str, rank: int) -> tuple[int, int, int]:
    """The replica of a rank, its part, and how many parts there are, as far as data go."""
    world = dist.get_world_size()
    parts = world // replicas_in(layout)
    tensor = {"tp": parts, "tp x dp": parts, "fsdp2 x tp": 2, "hsdp x tp": 2}.get(layout, 1)
    # Ranks that hold parts of one matrix see the same data.
    return rank // parts, rank % parts // tensor, parts // tensor


def batch(number: int, layout: str, rank: int, samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """A rank's share of its replica's batch. One replica alone has the batches of both."""
    replica, part, parts = whose(layout, rank)
    owners = (0, 1) if replicas_in(layout) == 1 else (replica,)
    every = []
    for owner in owners:
        generator = torch.Generator().manual_seed(1000 * number + owner)
        every.append(torch.randn(samples, 5, generator=generator, dtype=torch.float64))
    x = torch.cat(every).chunk(parts)[part]
    return x, torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]


def place(model: Any, layout: str, **options: Any) -> Any:
    """The model in a layout."""
    world = dist.get_world_size()
    if layout in ("ddp", "zero"):
        return DistributedDataParallel(model)
    if layout == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(model.one, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options) or model
    if layout == "fsdp2":
        fully_shard(model.one, **options)
        return fully_shard(model, **options) or model
    if "tp" in layout:
        return place_matrices(model, layout)
    if layout.startswith("fsdp1"):
        hybrid = "hybrid" in layout
        if hybrid:
            options["device_mesh"] = init_device_mesh("cpu", (2, world // 2))
        strategy = ShardingStrategy.HYBRID_SHARD if hybrid else ShardingStrategy.FULL_SHARD
        keep, here = "original" in layout, torch.device("cpu")
        shared: dict[str, Any] = {"sharding_strategy": strategy, "use_orig_params": keep, "device_id": here}
        model.one = FullyShardedDataParallel(model.one, **shared, **options)
        return FullyShardedDataParallel(model, **shared, **options)
    return model


def place_matrices(model: Any, layout: str) -> Any:
    """Tensor parallelism: alone, beside data parallelism by hand, and below (H)SDP."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    every = {"tp": (1, 1, 4), "tp x dp": (2, 1, 2), "fsdp2 x tp": (1, 2, 2)}
    sizes = every.get(layout, (2, dist.get_world_size() // 4, 2))
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard", "tensor"))
    parallelize_module(model, mesh["tensor"], {"one": ColwiseParallel(), "two": RowwiseParallel()})
    if layout == "fsdp2 x tp":
        fully_shard(model, mesh=mesh["shard"])
    elif layout == "hsdp x tp":
        fully_shard(model, mesh=mesh["replicate", "shard"])
    elif layout == "tp x dp":
        model.replicate = mesh.get_group("replicate")
    return model


class Run:
    """One rank's side of a run.

    Args:
        rank: of this process.
        layout: ``"ddp"``, ``"hsdp"``, ``"fsdp2"``, …
        optimizer: ``"sgd"``, ``"adamw"``.
    """

    def __init__(
        self,
        rank: int,
        layout: str,
        optimizer: str = "adamw",
        *,
        seed: int = 0,
        decay: float = 0.01,
        widths: tuple[int, ...] = (),
        prepare: Callable[[nn.Module], object] = lambda model: None,
        **options: Any,
    ) -> None:
        torch.manual_seed(seed)
        self.rank, self.layout, self.number = rank, layout, 0
        model = Uneven(*widths)
        prepare(model)
        self.model = place(model, layout, **options)
        kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
        settings: dict[str, Any] = {"lr": 0.01, "weight_decay": decay}
        if optimizer == "sgd":
            settings["momentum"] = 0.9
        self.optimizer: Any
        if layout == "zero":
            from torch.distributed.optim import ZeroRedundancyOptimizer

            self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), kinds[optimizer], **settings)
        else:
            self.optimizer = kinds[optimizer](self.model.parameters(), **settings)
        self.records: list[SyncRecord] = []
        #: What the loss is multiplied by, by number of the step.
        self.scale: dict[int, float] = {}

    def loss(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return (self.model(pair[0]) - pair[1]).square().mean()

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        return batch(number, self.layout, self.rank)

    def probe(self, per_sync: int = 4) -> hdet.Probe:
        held_out = [batch(10_000 + k, self.layout, self.rank, 64) for k in range(2 * per_sync)]
        return hdet.Probe(self.loss, held_out, model=self.model, per_sync=per_sync)

    def train_once(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(batch(self.number, self.layout, self.rank)) * self.scale.get(self.number, 1.0)
        loss.backward()
        if group := getattr(self.model, "replicate", None):
            for parameter in self.model.parameters():
                dist.all_reduce(local(parameter.grad), group=group)
                local(parameter.grad).div_(dist.get_world_size(group))
        self.optimizer.step()
        self.number += 1
        return loss.detach()

    def run(self, scheduler: Any, until: int) -> Run:
        while self.number < until and not getattr(scheduler, "finished", False):
            record = scheduler.step(self.train_once())
            self.records += [record] if record else []
        return self

    def weights(self) -> dict[str, Tensor]:
        """Whole parameters, by name. A collective."""
        return whole(self.model)


@torch.no_grad()
def whole(model: Any) -> dict[str, Tensor]:
    """All parameters of a model, put together from their shards."""
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model):
            return {_plain(name): p.detach().clone() for name, p in model.named_parameters()}
    named = {_plain(name): p for name, p in model.named_parameters()}
    return {
        n: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for n, p in named.items()
    }


def _plain(name: str) -> str:
    return name.replace("_fsdp_wrapped_module.", "").removeprefix("module.")


def shards(model: nn.Module) -> list[Tensor]:
    """What lies on this rank."""
    return [local(p).detach().clone() for p in model.parameters()]
