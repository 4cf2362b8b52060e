"""The one cycle that all doors run in: hooks → window over? → compare, measure, average, gather → decide.

Eq. 1 and 9 are in ``levels``, Eq. 2 in ``fan_out``, Eq. 3 in ``converge``. It imports hyperparameters,
probes and replicas, and names no policy.
"""
