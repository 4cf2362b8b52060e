"""Who else trains this model, and how to meet them: the only room that knows ``torch.distributed``.

It imports torch and no other room. The engine sees :class:`Replicas` alone; processes, one lone process and
rows of one matrix (``stacked/``) are behind it."""

from hdet.replicas.arms import Arms
from hdet.replicas.base import Mean, Replicas, Undone
from hdet.replicas.compressed import Wire
from hdet.replicas.fault_tolerant import FaultTolerantReplicas
from hdet.replicas.find import ProcessGroup, find_replicas, local, replicas_of
from hdet.replicas.process import ProcessReplicas
from hdet.replicas.refusals import is_wired, refuse_wiring
from hdet.replicas.solo import SoloReplica
from hdet.replicas.stacked import StackedReplicas

__all__ = [
    "Arms",
    "FaultTolerantReplicas",
    "Mean",
    "ProcessGroup",
    "ProcessReplicas",
    "Replicas",
    "SoloReplica",
    "StackedReplicas",
    "Undone",
    "Wire",
    "find_replicas",
    "is_wired",
    "local",
    "refuse_wiring",
    "replicas_of",
]
