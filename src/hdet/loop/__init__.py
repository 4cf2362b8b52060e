"""The one cycle that all doors run in: hooks → window over? → compare, measure, average, gather → decide.

Eq. 1 and 9 stand in ``levels``, Eq. 2 in ``fan_out``, Eq. 3 in ``converge``. It imports hyperparameters,
policies, replicas and weights, and names no policy.
"""
