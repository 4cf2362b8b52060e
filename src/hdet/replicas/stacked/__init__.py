"""N replicas in one process, as rows of one matrix. They import torch and ``replicas.base`` alone."""

from hdet.replicas.stacked.replicas import StackedReplicas

__all__ = ["StackedReplicas"]
