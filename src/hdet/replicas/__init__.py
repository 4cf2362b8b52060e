"""Which replicas train this model, and how they communicate: the only room that knows ``torch.distributed``.

It imports torch and no other room. The loop sees :class:`Replicas` alone: processes, replicas on several
processes each, one process alone, or rows of one matrix (``stacked/``)."""

from hdet.replicas.arms import Arms
from hdet.replicas.base import Mean, Replicas, SoloReplica, raise_together
from hdet.replicas.find import (
    ProcessGroup,
    ddps,
    find_replicas,
    refuse_divergence,
    refuse_flat_gradients,
    refuse_wiring,
    replicas_of,
)
from hdet.replicas.processes import ProcessReplicas
from hdet.replicas.sharded import (
    drop_gathered,
    is_dtensor,
    is_flat,
    local,
    ruler,
    shard_offset,
    shard_positions,
    sharded_like,
    state_of,
)
from hdet.replicas.stacked import StackedReplicas

__all__ = [
    "Arms",
    "Mean",
    "ProcessGroup",
    "ProcessReplicas",
    "Replicas",
    "SoloReplica",
    "StackedReplicas",
    "ddps",
    "drop_gathered",
    "find_replicas",
    "is_dtensor",
    "is_flat",
    "local",
    "raise_together",
    "refuse_divergence",
    "refuse_flat_gradients",
    "refuse_wiring",
    "replicas_of",
    "ruler",
    "shard_offset",
    "shard_positions",
    "sharded_like",
    "state_of",
]
