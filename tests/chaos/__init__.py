"""Faults at random places, more of them than every run of the tests can wait for: ``make chaos``."""
