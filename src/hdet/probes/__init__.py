"""Held-out losses: the loss at the current weights on batches that are not trained on, and how to set such
batches aside. This room imports torch and ``replicas``."""

from hdet.probes.probe import Probe

__all__ = ["Probe"]
