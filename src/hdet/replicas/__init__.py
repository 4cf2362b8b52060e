"""Who else trains this model, and how to meet them: the only room that knows ``torch.distributed``.

It imports torch and no other room. The engine sees :class:`Replicas` alone; processes, replicas that lie on
several of them, one lone process and rows of one matrix (``stacked/``) are behind it."""

from hdet.replicas.arms import Arms
from hdet.replicas.base import Mean, Replicas, Undone
from hdet.replicas.compressed import Wire
from hdet.replicas.fault_tolerant import FaultTolerantReplicas
from hdet.replicas.find import ProcessGroup, find_replicas, replicas_of
from hdet.replicas.layout import is_flat
from hdet.replicas.local import give_up_gathered, is_dtensor, local
from hdet.replicas.process import ProcessReplicas
from hdet.replicas.refusals import is_wired, refuse_divergence, refuse_flat_gradients, refuse_wiring
from hdet.replicas.sharded import ShardedReplicas
from hdet.replicas.shards import place_of, places, ruler, sharded_like
from hdet.replicas.solo import SoloReplica
from hdet.replicas.stacked import StackedReplicas
from hdet.replicas.zero import state_of

__all__ = [
    "Arms",
    "FaultTolerantReplicas",
    "Mean",
    "ProcessGroup",
    "ProcessReplicas",
    "Replicas",
    "ShardedReplicas",
    "SoloReplica",
    "StackedReplicas",
    "Undone",
    "Wire",
    "find_replicas",
    "give_up_gathered",
    "is_dtensor",
    "is_flat",
    "is_wired",
    "local",
    "place_of",
    "places",
    "refuse_divergence",
    "refuse_flat_gradients",
    "refuse_wiring",
    "replicas_of",
    "ruler",
    "sharded_like",
    "state_of",
]
