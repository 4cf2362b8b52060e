"""Runs recorded before the package was rearranged, so that a change of behaviour cannot pass unseen.

``python -m tests.recorded`` writes them anew. Do that only when the method is meant to change, and say so.
"""
