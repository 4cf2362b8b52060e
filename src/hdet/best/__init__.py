"""The best of what was seen: one copy of weights that could be handed over, chosen by a probe with its error
in mind. It imports controllers (the choice), probes and replicas; a horizon and ``hdet.BestMean`` use it."""

from hdet.best.keeper import Handed, Keeper

__all__ = ["Handed", "Keeper"]
