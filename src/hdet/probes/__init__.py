"""Held-out losses: the loss at the present weights on batches that are not trained on, and how to set
such batches aside. It imports torch alone."""

from hdet.probes.probe import Probe

__all__ = ["Probe"]
