"""N replicas in one process, as rows of one matrix. It imports torch and ``replicas.base``, nobody else."""

from hdet.replicas.stacked.optimizer import StackedOptimizer
from hdet.replicas.stacked.replicas import StackedReplicas

__all__ = ["StackedOptimizer", "StackedReplicas"]
