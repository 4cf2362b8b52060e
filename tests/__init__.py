"""Tests, in the rooms of what they test; ``distributed`` runs processes, ``recorded`` old runs."""

from pathlib import Path

#: The checkout.
ROOT = Path(__file__).parents[1]
