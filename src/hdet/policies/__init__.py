"""Policies: when a sync is due, what is measured there, and how that moves hyperparameters; one file for
each way. A policy imports controllers, hyperparameters, probes, weights and replicas, never the engine
that asks it."""
